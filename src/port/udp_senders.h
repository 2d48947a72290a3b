// SPDX-License-Identifier: MIT
// The sockets that send: one for each destination slot, made when first needed, never replaced
// while they live, because their source ports are in ICRCs.
//
// Packets over IPv4 leave by sockets that are bound to their source address: to name it in each
// call costs the kernel some 150 ns. When the address goes away those refuse what they are
// given, as the kernel refuses the name of such an address; and when it comes back they serve
// again. Over IPv6 only the name is refused, so there it is named.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "base/types.h"
#include "port/port.h"
#include "port/udp_socket.h"

namespace verbena::port {

class UdpSenders {
 public:
  // At most `count` sockets of each source address, which slots then share.
  UdpSenders(std::uint32_t count, std::uint32_t buffer);
  UdpSenders(const UdpSenders&) = delete;
  UdpSenders& operator=(const UdpSenders&) = delete;
  ~UdpSenders();

  // Any thread. fd -1: the system gives none.
  Sender get(const Route& route) {
    const Set* const set = set_of(route);
    if (!set) return make(route);
    const std::uint64_t known = set->senders[index_of(route.slot)].load(std::memory_order_acquire);
    return known ? unpack(known) : make(route);
  }
  // Somebody closed it: forgets it, and the next one is another.
  void forget(const Route& route);
  // Forgets those whose number is not ours any more.
  void check();

 private:
  // Those of one source address, or of none.
  struct Set {
    Gid source{};
    std::array<std::atomic<std::uint64_t>, kSlotCount> senders{};  // 0: none
    std::array<ino_t, kSlotCount> files{};
  };

  static constexpr unsigned kPortBits = 16;
  static Sender unpack(std::uint64_t packed) {
    return {.fd = static_cast<int>(packed >> (kPortBits + 1)) - 1,
            .port = static_cast<std::uint16_t>(packed),
            .is_bound = (packed >> kPortBits & 1) != 0};
  }
  static std::uint64_t pack(const Sender& sender) {
    return static_cast<std::uint64_t>(sender.fd + 1) << (kPortBits + 1) |
           std::uint64_t{sender.is_bound} << kPortBits | sender.port;
  }
  std::size_t index_of(SlotNumber slot) const { return slot.value % count_; }
  static bool may_be_bound(const Route& route);
  // Null: of an address that has none so far.
  Set* set_of(const Route& route);
  Sender make(const Route& route);
  Sender make_bound(const Route& route);
  Sender make_unbound(const Route& route);
  Sender any_other(const Route& route);
  static void keep(const Sender& sender, std::size_t index, Set& set);
  void forget_strangers(Set& set) const;

  const std::uint32_t count_;
  const std::uint32_t buffer_;
  Mutex lock_;  // to change what follows
  Set unbound_;
  // In the order in which they were made, and never fewer. Further addresses do without.
  static constexpr std::size_t kSourcesMax = 8;
  std::array<std::atomic<Set*>, kSourcesMax> bound_{};
  std::array<std::unique_ptr<Set>, kSourcesMax> owned_;
  std::size_t sources_ = 0;
};

}  // namespace verbena::port
