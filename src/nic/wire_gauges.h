// SPDX-License-Identifier: MIT
// The receive buffers of the processes of this host that are spoken to by the wire. Unreliable
// messages to them have no acknowledgement that would slow their sender down, and no line between
// does: so the sender looks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/types.h"
#include "base/unique_fd.h"
#include "nic/forked_descriptors.h"
#include "port/udp_socket.h"

namespace verbena::nic {

class WireGauges {
 public:
  // Whether the slot's receive buffer takes more. False also while it is being looked for: whoever
  // sends waits a little, though not for long, since it may not be there.
  bool has_room(SlotNumber slot) const {
    const int shown = gauges_[slot.value].load(std::memory_order_acquire);
    if (shown >= kFirst) return port::has_room(shown - kFirst);
    return shown == kNone;
  }
  // False: it is being looked for.
  bool is_found(SlotNumber slot) const {
    return gauges_[slot.value].load(std::memory_order_relaxed) >= kNone;
  }
  // True: nobody has asked for this slot before, or it was not there, so the caller sees to it that
  // somebody fills().
  bool want(SlotNumber slot) {
    std::atomic<int>& gauge = gauges_[slot.value];
    int known = gauge.load(std::memory_order_relaxed);
    if (known == kWanted || known >= kFirst) return false;
    if (known == kNone && calls_.fetch_add(1, std::memory_order_relaxed) % kCallsBetween != 0)
      return false;
    if (!gauge.compare_exchange_strong(known, kWanted)) return false;
    any_wanted_.store(true, std::memory_order_release);
    return true;
  }
  // For one thread: calls fetch(slot) for each that is wanted.
  template <class Fetch>
  void fill(Fetch&& fetch) {
    if (!any_wanted_.load(std::memory_order_relaxed) || !any_wanted_.exchange(false)) return;
    for (std::uint16_t i = 0; i < kSlotCount; ++i) {
      if (gauges_[i].load(std::memory_order_relaxed) != kWanted) continue;
      auto socket = fetch(SlotNumber{i});
      const int fd = socket ? port::lift_descriptor(socket->release()) : -1;
      if (fd >= 0) close_in_children(fd);
      gauges_[i].store(fd < 0 ? kNone : kFirst + fd, std::memory_order_release);
    }
  }

 private:
  static constexpr int kUnknown = 0;
  static constexpr int kWanted = 1;
  static constexpr int kNone = 2;
  static constexpr int kFirst = 3;  // this and more: a descriptor

  static constexpr std::uint32_t kCallsBetween = 64;

  std::array<std::atomic<int>, kSlotCount> gauges_{};
  std::atomic<std::uint32_t> calls_{0};  // for slots that were not there
  std::atomic<bool> any_wanted_{false};
};

}  // namespace verbena::nic
