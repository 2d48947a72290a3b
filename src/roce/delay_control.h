// SPDX-License-Identifier: MIT
// Congestion control by delay, for two ends that both do it (after Kumar et al., "Swift: Delay is
// Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020): a window that
// grows by a packet a round trip while round trips stay below a target, and shrinks by how far they
// are above it, once a round trip. The target is the shortest round trip seen and some queueing.
#pragma once

#include "roce/congestion.h"

namespace verbena::roce {

struct DelayControlOptions {
  std::size_t packet_bytes = 4096;
  std::size_t window_min = 4096;
  std::size_t window_max = 1 << 20;
  Duration queueing = Duration::microseconds(15);  // that is no congestion yet
  double decrease_most = 0.5;
  double decrease_gain = 0.8;
};

class DelayControl final : public Congestion {
 public:
  explicit DelayControl(const DelayControlOptions& options = {})
      : options_(options), window_(static_cast<double>(options.window_max)) {}

  void sent(std::size_t, Instant) override {}
  void acknowledged(std::size_t bytes, std::optional<Duration> round_trip, Instant now) override;
  void notified(Instant now) override { shrink(options_.decrease_most, now); }
  void lost(Instant now) override { shrink(options_.decrease_most, now); }
  std::size_t window() const override { return static_cast<std::size_t>(window_); }
  Instant next_departure(Instant now) override { return now; }

 private:
  void shrink(double by, Instant now);

  DelayControlOptions options_;
  double window_;
  Duration shortest_{};
  Duration last_{};
  bool is_above_ = false;
  Instant shrunk_at_;
};

}  // namespace verbena::roce
