// SPDX-License-Identifier: MIT
// A receive queue that sessions of one process share: whose message comes takes the oldest.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "workload/receives.h"

namespace chaos {

class Pool {
 public:
  static constexpr std::uint32_t kRoom = 4096;  // of each receive

  explicit Pool(ibv_pd* pd);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ibv_srq* queue() const { return queue_; }
  // Which number came is what the completion said; false: it was not posted, or has come before.
  bool take(std::uint64_t id) { return posted_.completed(id).has_value(); }
  std::span<std::byte> area(std::uint32_t place) {
    return std::span(memory_).subspan(std::size_t{place} * kRoom, kRoom);
  }
  // False: it was refused.
  bool post(std::uint32_t place);
  // A queue pair that was destroyed may have taken some along.
  void replace_lost();

 private:
  static constexpr std::uint32_t kPlaces = 512;
  static constexpr std::uint32_t kAtFirst = 64;
  static constexpr std::uint32_t kReplaced = 4;

  std::vector<std::byte> memory_;
  ibv_mr* region_;
  ibv_srq* queue_;
  std::uint32_t used_ = 0;
  verbena::workload::Receives posted_;
};

}  // namespace chaos
