// SPDX-License-Identifier: MIT
// DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section
// 5.1): the sender's rate falls with every notification, by how often they came lately, and rises
// again with time and with bytes sent: half the way back five times, then in steps, then in larger
// ones. What RoCE hardware does on CNPs.
//
//   cut ─► fast recovery (5 events) ─► additive increase ─► (both counters beyond) hyper increase
#pragma once

#include "roce/congestion.h"

namespace verbena::roce {

struct DcqcnOptions {
  double line_bits_per_second = 25e9;
  double minimum_bits_per_second = 40e6;
  double additive_bits_per_second = 40e6;
  double hyper_bits_per_second = 400e6;
  double gain = 1.0 / 256;
  Duration alpha_interval = Duration::microseconds(55);
  Duration increase_interval = Duration::microseconds(55);
  std::uint64_t increase_bytes = 10'000'000;
  std::size_t burst_bytes = 16 * 1024;  // may leave at once, for the sake of batches
};

class Dcqcn final : public Congestion {
 public:
  explicit Dcqcn(const DcqcnOptions& options = {});

  void sent(std::size_t bytes, Instant now) override;
  void acknowledged(std::size_t, std::optional<Duration>, Instant) override {}
  void notified(Instant now) override;
  void lost(Instant) override {}
  void timed_out(Instant now) override { notified(now); }
  std::size_t window() const override { return SIZE_MAX; }
  Instant next_departure(Instant now) override;

  double bits_per_second() const { return rate_; }

 private:
  void catch_up(Instant now);
  void increase();

  DcqcnOptions options_;
  double rate_;
  double target_;
  double alpha_ = 1;
  bool is_limited_ = false;  // a notification came, and the line's rate is not reached again
  Instant alpha_at_;
  Instant increase_at_;
  std::uint64_t bytes_ = 0;
  unsigned timer_events_ = 0;
  unsigned byte_events_ = 0;
  Instant free_at_;  // when what was sent has left at our rate
};

}  // namespace verbena::roce
