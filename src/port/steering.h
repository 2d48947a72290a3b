// SPDX-License-Identifier: MIT
// Which of the processes that share UDP port 4791 a packet is for. The one place where ports look
// into packets.
//
// * A packet's destination queue pair number begins with its slot (base/types.h).
// * Queue pair 1 is everybody's (the CM, IBTA vol 1, 12.6): the answer to a message of ours goes by
//   the remote communication id, whose upper ten bits are the slot of who drew it; a SIDR answer by
//   the request id in the same way; a request by its service id, through a table.
// * Multicast (0xFFFFFF) reaches every socket anyway.
//
// The same rules run in the kernel as a classic BPF program of the reuseport group, whose result is
// the position of a socket in it, in order of bind. A program that is wrong or missing costs only
// speed: owner() judges every packet again.
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"

namespace verbena::port {

// A communication id, or SIDR request id, that steers its answers home.
constexpr std::uint32_t steered_id(SlotNumber slot, std::uint32_t random) {
  return std::uint32_t{slot.value} << 22 | (random & 0x3FFFFF);
}
constexpr SlotNumber slot_of_id(std::uint32_t id) { return {static_cast<std::uint16_t>(id >> 22)}; }

struct Service {
  std::uint64_t id = 0;
  SlotNumber slot;
  friend auto operator<=>(const Service&, const Service&) = default;
};

// The slot that the packet's queue pair number begins with; none for the reserved ones.
std::optional<SlotNumber> plain_slot(std::span<const std::byte> payload);

class Steering {
 public:
  static constexpr std::size_t kServicesMax = 256;

  // Who holds which socket of the group, by position. Positions without a living holder may name
  // their last one.
  void set_positions(std::span<const SlotNumber> slots);
  // False: there is no room, or the service id is another slot's.
  bool add_service(Service service);
  void remove_service(Service service);
  // All of a slot's.
  void remove_services(SlotNumber slot);
  std::span<const Service> services() const { return services_; }

  enum class Whose : std::uint8_t { kSlot, kEverybody, kOneOfAll, kNobody };
  struct Owner {
    Whose whose = Whose::kNobody;
    SlotNumber slot;
  };
  // kEverybody: multicast, and what of queue pair 1 nobody in particular is asked for. kOneOfAll:
  // somebody's, who alone knows: a rejection by one that has not heard of its own request yet and
  // withdraws it (IBTA 12.6.7).
  Owner owner(std::span<const std::byte> payload) const;
  std::optional<std::size_t> position(SlotNumber slot) const;
  // `each` with every slot that holds a socket.
  template <class Each>
  void each_slot(const Each& each) const {
    for (const auto& [slot, position] : by_slot_)
      each(slot);
  }

  // For SO_ATTACH_REUSEPORT_CBPF. A search tree: some ten steps a packet, whatever the number of
  // members. What nobody in particular is asked for goes to the position `fallback`. Empty where
  // nobody is in the group.
  std::vector<sock_filter> program(std::uint16_t fallback) const;

 private:
  Owner owner_by_slot(SlotNumber slot) const;
  Owner owner_of_cm(std::span<const std::byte> payload) const;
  std::vector<sock_filter> service_program(std::uint16_t fallback) const;

  std::vector<std::pair<SlotNumber, std::uint16_t>> by_slot_;  // sorted
  std::vector<Service> services_;                              // sorted
};

}  // namespace verbena::port
