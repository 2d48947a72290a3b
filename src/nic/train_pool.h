// SPDX-License-Identifier: MIT
// Buffers in which queue pairs build what they send: lent for one turn, so there are about as many
// as threads that send at the same time, and not one for each queue pair.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "port/train.h"

namespace verbena::nic {

class TrainPool {
 public:
  explicit TrainPool(port::Port& port) : port_(port) {}
  TrainPool(const TrainPool&) = delete;
  TrainPool& operator=(const TrainPool&) = delete;
  ~TrainPool() { delete last_.load(); }

  std::unique_ptr<port::TrainBuilder> take() {
    if (auto* const last = last_.exchange(nullptr, std::memory_order_acquire))
      return std::unique_ptr<port::TrainBuilder>(last);
    {
      const std::lock_guard guard(lock_);
      if (!free_.empty()) {
        auto builder = std::move(free_.back());
        free_.pop_back();
        return builder;
      }
    }
    return std::make_unique<port::TrainBuilder>(port_.limits(), kBytes, kTrains);
  }
  // Empty.
  void give_back(std::unique_ptr<port::TrainBuilder> builder) {
    std::unique_ptr<port::TrainBuilder> before(
        last_.exchange(builder.release(), std::memory_order_acq_rel));
    if (!before) return;
    const std::lock_guard guard(lock_);
    if (free_.size() < kKept) free_.push_back(std::move(before));
  }

 private:
  static constexpr std::size_t kBytes = 256 << 10;
  static constexpr std::size_t kTrains = 64;
  static constexpr std::size_t kKept = 16;

  port::Port& port_;
  // The one that was used last, mostly by the same thread: without a lock. It is in the cache, too.
  std::atomic<port::TrainBuilder*> last_{nullptr};
  Mutex lock_;
  std::vector<std::unique_ptr<port::TrainBuilder>> free_;
};

}  // namespace verbena::nic
