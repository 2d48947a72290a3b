// SPDX-License-Identifier: MIT
#include "port/udp_senders.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/log.h"
#include "host/raw_calls.h"
#include "wire/ip.h"

namespace verbena::port {
UdpSenders::UdpSenders(std::uint32_t count, std::uint32_t buffer)
    : count_(std::clamp<std::uint32_t>(count, 1, kSlotCount)), buffer_(buffer) {}

UdpSenders::~UdpSenders() {
  check();
  const auto close_all = [this](const Set& set) {
    for (std::size_t i = 0; i < count_; ++i)
      if (const std::uint64_t packed = set.senders[i]) host::raw::close(unpack(packed).fd);
  };
  close_all(unbound_);
  for (const auto& set : owned_)
    if (set) close_all(*set);
}

// To groups an interface is named, and the address with it.
bool UdpSenders::may_be_bound(const Route& route) {
  return wire::is_ipv4(route.from) && wire::is_ipv4(route.to) && !wire::is_multicast(route.to);
}

auto UdpSenders::set_of(const Route& route) -> Set* {
  if (!may_be_bound(route)) return &unbound_;
  for (const std::atomic<Set*>& each : bound_) {
    Set* const set = each.load(std::memory_order_acquire);
    if (!set) return nullptr;
    if (set->source == route.from) return set;
  }
  return &unbound_;
}

Sender UdpSenders::make(const Route& route) {
  const std::lock_guard lock(lock_);
  if (set_of(route) == &unbound_) return make_unbound(route);
  const Sender bound = make_bound(route);
  return bound.fd >= 0 ? bound : make_unbound(route);
}

// None: the address is not ours, just now at least, or the system gives no sockets. That is
// remembered nowhere, so that there is one as soon as it can be.
Sender UdpSenders::make_bound(const Route& route) {
  Set* set = set_of(route);
  const std::size_t index = index_of(route.slot);
  if (set && set->senders[index] != 0) return unpack(set->senders[index]);
  const auto made = make_sender(buffer_, &route.from);
  if (!made) return {};
  const bool is_new = !set;
  if (is_new) {
    owned_[sources_] = std::make_unique<Set>();
    set = owned_[sources_].get();
    set->source = route.from;
  }
  keep(*made, index, *set);
  if (is_new) bound_[sources_++].store(set, std::memory_order_release);
  return *made;
}

Sender UdpSenders::make_unbound(const Route& route) {
  const std::size_t index = index_of(route.slot);
  if (unbound_.senders[index] != 0) return unpack(unbound_.senders[index]);
  const auto made = make_sender(buffer_);
  if (!made) {
    LOG_WARN("no socket to send to slot %u: %s", route.slot.value, to_string(made.error()));
    return any_other(route);
  }
  keep(*made, index, unbound_);
  return *made;
}

void UdpSenders::keep(const Sender& sender, std::size_t index, Set& set) {
  set.files[index] = file_of(sender.fd);
  set.senders[index].store(pack(sender), std::memory_order_release);
}

// Where the system gives no more sockets, slots share what there is. It is remembered nowhere, so
// that a slot gets its own as soon as there is one; its packets then have another source port,
// which costs at most a retransmission.
Sender UdpSenders::any_other(const Route& route) {
  for (const Set* const set : {set_of(route), &unbound_})
    for (std::size_t i = 0; set && i < count_; ++i)
      if (const std::uint64_t packed = set->senders[i]) return unpack(packed);
  return {};
}

void UdpSenders::forget(const Route& route) {
  const std::lock_guard lock(lock_);
  if (Set* const set = set_of(route)) forget_strangers(*set);
  forget_strangers(unbound_);
}

void UdpSenders::check() {
  const std::lock_guard lock(lock_);
  forget_strangers(unbound_);
  for (const auto& set : owned_)
    if (set) forget_strangers(*set);
}

void UdpSenders::forget_strangers(Set& set) const {
  for (std::size_t i = 0; i < count_; ++i) {
    const std::uint64_t packed = set.senders[i];
    if (packed != 0 && file_of(unpack(packed).fd) != set.files[i]) set.senders[i] = 0;
  }
}

}  // namespace verbena::port
