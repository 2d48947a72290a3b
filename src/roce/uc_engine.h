// SPDX-License-Identifier: MIT
// The carrier of an unreliable connection (IBTA vol 1, 9.8.2): packets go out and are forgotten;
// what comes is taken while it comes in order. A gap ends the message in which it lies, and the
// next First or Only begins another.
#pragma once

#include <optional>

#include "roce/assembly.h"
#include "roce/engine.h"
#include "roce/notifier.h"

namespace verbena::roce {

class UcEngine final : public Engine {
 public:
  UcEngine(const Settings& settings, Wire& wire, Congestion* congestion);

  void start(const qp::QpAttributes& attributes) override;
  void receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow& window,
               qp::Responder& responder, const Now& now) override;
  void receive_broken(const wire::Head&, wire::Malformed, const Arrival&, qp::Responder&) override {
  }
  const EngineCounters& counters() const override { return counters_; }

  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  void collect(qp::SendWindow&, qp::Budget&, const Now&) override {}
  bool serve(qp::Responder&, qp::Budget&, const Now&) override { return false; }
  std::optional<Instant> next_deadline() const override { return departure_; }

 private:
  enum class Standing : std::uint8_t { kExpected, kBegins, kLost, kLate };
  Standing classify(const wire::Packet& packet) const;
  void take(const wire::Packet& packet, qp::Responder& responder);
  Wire::Sent send(const qp::Operation& op, qp::SendWindow& window);
  bool may_depart(const Now& now);

  Settings settings_;
  Wire& wire_;
  Congestion* congestion_;
  Notifier notifier_;
  EngineCounters counters_;

  bool started_ = false;
  wire::Psn next_;
  std::optional<qp::OpIndex> sending_;  // the operation on its way
  std::uint64_t sent_ = 0;              // bytes of it
  std::optional<Instant> departure_;

  wire::Psn expected_;
  Assembly assembly_;
};

}  // namespace verbena::roce
