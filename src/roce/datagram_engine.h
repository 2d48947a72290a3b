// SPDX-License-Identifier: MIT
// The carrier of unreliable datagrams (IBTA vol 1, 9.8.3; UD): each message is one packet, to
// whomever its work request says.
#pragma once

#include "roce/engine.h"

namespace verbena::roce {

class DatagramEngine final : public Engine {
 public:
  DatagramEngine(const Settings& settings, Wire& wire, Paths& paths)
      : settings_(settings), wire_(wire), paths_(paths) {}

  void start(const qp::QpAttributes& attributes) override;
  void receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow& window,
               qp::Responder& responder, const Now& now) override;
  void receive_broken(const wire::Head&, wire::Malformed, const Arrival&, qp::Responder&) override {
  }
  const EngineCounters& counters() const override { return counters_; }

  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  void collect(qp::SendWindow&, qp::Budget&, const Now&) override {}
  bool serve(qp::Responder&, qp::Budget&, const Now&) override { return false; }
  std::optional<Instant> next_deadline() const override { return std::nullopt; }

 private:
  Wire::Sent send(const qp::Operation& op, const Path& path, qp::SendWindow& window);

  Settings settings_;
  Wire& wire_;
  Paths& paths_;
  EngineCounters counters_;
  bool started_ = false;
  std::uint32_t qkey_ = 0;
  wire::Psn next_;
};

// A datagram for a multicast group, to one of the queue pairs that are attached to it. False: it is
// not for this one, or cannot be taken.
bool deliver_multicast(const wire::Packet& packet, const Arrival& arrival,
                       qp::Responder& responder);

}  // namespace verbena::roce
