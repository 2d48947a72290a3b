// SPDX-License-Identifier: MIT
// How many of our queue pairs send to each process of the network: they share its receive buffer,
// and nobody may fill it alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/mutex.h"
#include "base/types.h"

namespace verbena::nic {

class WirePeers {
 public:
  struct Key {
    Gid address;
    SlotNumber slot;
    friend auto operator<=>(const Key& a, const Key& b) {
      for (unsigned i = 0; i < sizeof a.address.bytes; ++i)
        if (a.address.bytes[i] != b.address.bytes[i])
          return a.address.bytes[i] <=> b.address.bytes[i];
      return a.slot.value <=> b.slot.value;
    }
  };
  using Count = std::atomic<std::uint32_t>;

  // Good until leave().
  const Count& join(const Key& key) {
    const std::lock_guard guard(lock_);
    std::unique_ptr<Count>& count = counts_[key];
    if (!count) count = std::make_unique<Count>(0);
    count->fetch_add(1, std::memory_order_relaxed);
    return *count;
  }
  void leave(const Key& key) {
    const std::lock_guard guard(lock_);
    const auto at = counts_.find(key);
    if (at->second->fetch_sub(1, std::memory_order_relaxed) == 1) counts_.erase(at);
  }

 private:
  Mutex lock_;
  std::map<Key, std::unique_ptr<Count>> counts_;
};

}  // namespace verbena::nic
