// SPDX-License-Identifier: MIT
// The carrier of a reliable connection: a requester and a responder.
#pragma once

#include <optional>

#include "roce/agreement.h"
#include "roce/engine.h"
#include "roce/notifier.h"
#include "roce/rc_responder.h"
#include "roce/requester.h"

namespace verbena::roce {

class RcEngine final : public Engine {
 public:
  RcEngine(const Settings& settings, Wire& wire, Congestion* congestion, Congestion* when_agreed);

  void start(const qp::QpAttributes& attributes) override { requester_.start(attributes); }
  void set_in_flight(const InFlight& most) override { requester_.set_in_flight(most); }
  void receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow& window,
               qp::Responder& responder, const Now& now) override;
  bool receive_at_once(std::span<const std::byte> datagram, const Gid& from, qp::SendWindow& window,
                       qp::Responder& responder, const Now& now) override;
  Taken receive_run(wire::Unverified& packets, const Gid& from, qp::Responder& responder) override;
  void receive_broken(const wire::Head& bth, wire::Malformed why, const Arrival& arrival,
                      qp::Responder& responder) override;
  const EngineCounters& counters() const override { return counters_; }
  bool has_agreed() const override { return agreement_.is_agreed(); }
  Sendings sendings() const override {
    return {.packets = requester_.counters().packets,
            .repeated = requester_.counters().repeated,
            .executed = requester_.acknowledged()};
  }

  bool transmit_at_once(const AtOnce& message, const qp::SendWindow& window) override {
    return requester_.transmit_at_once(message, window);
  }
  void sent_at_once(const AtOnce& message, const Now& now) override {
    requester_.sent_at_once(message, now);
  }
  bool wants_to_send() const override { return requester_.wants_to_send(); }
  bool owes() const override { return responder_.owes(); }
  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) override {
    requester_.issue(window, budget, now);
  }
  void collect(qp::SendWindow& window, qp::Budget&, const Now& now) override {
    requester_.collect(window, now);
  }
  bool serve(qp::Responder& responder, qp::Budget& budget, const Now& now) override {
    return responder_.serve(responder, budget, now);
  }
  bool is_holding() const override { return requester_.is_holding(); }
  std::optional<Instant> next_deadline() const override;

  const Requester& requester() const { return requester_; }
  const RcResponder& responder() const { return responder_; }
  const Agreement& agreement() const { return agreement_; }

 private:
  void agree();
  bool is_plain(const wire::Middle& piece) const;
  // Of a request that takes an acknowledgement along, or says so.
  void receive_together(const wire::Packet& packet, qp::SendWindow& window,
                        qp::Responder& responder, const Now& now);

  Settings settings_;
  Congestion* congestion_;
  Congestion* when_agreed_;
  Agreement agreement_;
  RcResponder responder_;
  Requester requester_;
  Notifier notifier_;
  EngineCounters counters_;
};

}  // namespace verbena::roce
