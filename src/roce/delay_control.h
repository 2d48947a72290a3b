// SPDX-License-Identifier: MIT
// Congestion control by delay, for two ends that both do it (after Jin, Wei, Low, "FAST TCP", IEEE
// INFOCOM 2004): a window that leaves a fixed number of bytes waiting in the queue, as seen from
// how much longer round trips are than the shortest one. All that share a queue want the same
// number there, and so come to the same window.
//
//   start: twice as much each round trip ─► the first sign of a queue ─► half the way to
//   window * (shortest + queueing) / round_trip + waiting, once a round trip
//
// Who comes when a queue stands already would take it for the way itself, and want its bytes on top
// of it: so now and then a connection that sees a queue leaves it for a round trip, and looks
// again.
//
// A loss is a sign of a full queue only where round trips are long, where nothing measures them any
// more, or where a tenth is lost: a bad line loses, too, and sending less would not help it.
#pragma once

#include "roce/congestion.h"

namespace verbena::roce {

struct DelayControlOptions {
  std::size_t packet_bytes = 4096;
  std::size_t window_start = 16 * 1024;
  std::size_t window_max = 1 << 20;
  std::size_t waiting = 12 * 1024;                 // bytes of ours that may wait in the queue
  Duration queueing = Duration::microseconds(25);  // a longer round trip that says nothing yet
  Duration look_again_after = Duration::milliseconds(10);
};

class DelayControl final : public Congestion {
 public:
  explicit DelayControl(const DelayControlOptions& options = {});

  void sent(std::size_t bytes, Instant now) override;
  void acknowledged(std::size_t bytes, std::optional<Duration> round_trip, Instant now) override;
  void notified(Instant now) override;
  void lost(Instant now) override;
  void timed_out(Instant now) override { halve(now); }
  std::size_t window() const override;
  Instant next_departure(Instant now) override { return now; }

 private:
  void measure(Duration round_trip, Instant now);
  void look_again(Duration round_trip, Instant now);
  void halve(Instant now);
  bool is_long(Duration round_trip) const { return round_trip > shortest_ + options_.queueing; }

  DelayControlOptions options_;
  double window_;
  double waiting_;
  bool is_starting_ = true;
  Duration shortest_{};
  Duration last_{};
  Instant measured_at_;
  Instant halved_at_;
  double acknowledged_ = 0;  // bytes since the last measurement

  bool is_looking_ = false;  // lets the queue drain
  Instant looked_at_;        // began or ended

  std::uint32_t packets_ = 0;  // sent, and how many gaps, since losses were counted
  std::uint32_t losses_ = 0;
};

}  // namespace verbena::roce
