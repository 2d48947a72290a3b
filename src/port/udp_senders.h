// SPDX-License-Identifier: MIT
// The sockets that send: one for each destination slot, made when first needed, never replaced
// while they live, because their source ports are in ICRCs.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "base/types.h"
#include "port/udp_socket.h"

namespace verbena::port {

class UdpSenders {
 public:
  // At most `count` sockets, which slots then share.
  UdpSenders(std::uint32_t count, std::uint32_t buffer);
  UdpSenders(const UdpSenders&) = delete;
  UdpSenders& operator=(const UdpSenders&) = delete;
  ~UdpSenders();

  // Any thread. fd -1: the system gives none.
  Sender get(SlotNumber slot) {
    const std::uint64_t known = senders_[index_of(slot)].load(std::memory_order_acquire);
    return known ? unpack(known) : make(slot);
  }
  bool is_same(SlotNumber a, SlotNumber b) const { return index_of(a) == index_of(b); }
  // Somebody closed it: forgets it, and the next one is another.
  void forget(SlotNumber slot);
  // Forgets those whose number is not ours any more.
  void check();

 private:
  static Sender unpack(std::uint64_t packed) {
    return {static_cast<int>(packed >> 16) - 1, static_cast<std::uint16_t>(packed)};
  }
  static std::uint64_t pack(Sender sender) {
    return static_cast<std::uint64_t>(sender.fd + 1) << 16 | sender.port;
  }
  std::size_t index_of(SlotNumber slot) const { return slot.value % count_; }
  Sender make(SlotNumber slot);
  Sender any_other() const;
  bool is_ours(std::size_t index) const;

  const std::uint32_t count_;
  const std::uint32_t buffer_;
  Mutex lock_;                                                    // to change what follows
  std::array<std::atomic<std::uint64_t>, kSlotCount> senders_{};  // 0: none
  std::array<ino_t, kSlotCount> files_{};
};

}  // namespace verbena::port
