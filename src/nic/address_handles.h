// SPDX-License-Identifier: MIT
// Address handles by number, since work requests name them by number and may outlive them.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/types.h"
#include "qp/state.h"

namespace verbena::nic {

// What a datagram needs to find its way.
struct DatagramAddress {
  PdId pd;
  Gid source;
  Gid destination;
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  bool is_on_this_host = false;
};

class AddressHandles {
 public:
  explicit AddressHandles(std::uint32_t most) : most_(most) {}

  // None when all are taken. A number comes back only after all others were used.
  std::optional<std::uint32_t> add(const DatagramAddress& address) {
    const std::lock_guard guard(lock_);
    if (free_.size() > kRested || (entries_.size() >= most_ && !free_.empty())) {
      const std::uint32_t place = free_.front();
      free_.pop_front();
      // The upper bits count the uses of a place, so a handle that is gone is not taken for its
      // successor.
      entries_[place].number += kPlaces;
      entries_[place].address = address;
      return entries_[place].number;
    }
    if (entries_.size() >= most_) return std::nullopt;
    const auto number = static_cast<std::uint32_t>(entries_.size());
    entries_.push_back({number, address});
    return number;
  }
  void remove(std::uint32_t number) {
    const std::lock_guard guard(lock_);
    Entry& entry = entries_[number % kPlaces];
    entry.address.reset();
    free_.push_back(number % kPlaces);
  }
  std::optional<DatagramAddress> find(std::uint32_t number) const {
    const std::lock_guard guard(lock_);
    const std::uint32_t place = number % kPlaces;
    if (place >= entries_.size() || entries_[place].number != number) return std::nullopt;
    return entries_[place].address;
  }

 private:
  static constexpr std::uint32_t kPlaces = 1 << 20;
  // So many places rest before one is used again.
  static constexpr std::size_t kRested = 64;
  struct Entry {
    std::uint32_t number;
    std::optional<DatagramAddress> address;
  };

  mutable Mutex lock_;
  std::uint32_t most_;
  std::vector<Entry> entries_;
  std::deque<std::uint32_t> free_;  // oldest first
};

}  // namespace verbena::nic
