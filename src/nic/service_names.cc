// SPDX-License-Identifier: MIT
#include "nic/service_names.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "base/unique_fd.h"
#include "host/raw_calls.h"
#include "nic/abstract_name.h"
#include "wire/ip.h"

namespace verbena::nic {
namespace {

constexpr std::size_t kKnownMax = 1024;
// perftest -R: a second and more lie between its two connections.
constexpr Duration kMoment = Duration::seconds(5);
// So long what was found is believed without another look: with thousands of requests a second the
// looks would cost most. Whoever serves no more by then refuses by himself.
constexpr Duration kBelief = Duration::milliseconds(1);

// A Gid in hexadecimal, or the family.
void print_place(const ServicePlace& place, std::span<char, 33> text) {
  switch (place.kind) {
    case ServicePlace::Kind::kAllIpv4: std::snprintf(text.data(), text.size(), "ipv4"); return;
    case ServicePlace::Kind::kAllIpv6: std::snprintf(text.data(), text.size(), "ipv6"); return;
    case ServicePlace::Kind::kAddress: break;
  }
  for (std::size_t i = 0; i < sizeof place.address.bytes; ++i)
    std::snprintf(text.data() + 2 * i, 3, "%02x", place.address.bytes[i]);
}

AbstractName name_of(const ServicePlace& place, std::optional<SlotNumber> slot = std::nullopt) {
  char where[33] = {};
  print_place(place, where);
  const auto service = static_cast<unsigned long long>(place.service);
  if (!slot) return AbstractName("verbena/port/%016llx/%s", service, where);
  return AbstractName("verbena/port/%016llx/%s/%u", service, where, slot->value);
}

}  // namespace

ServiceNames::Claimed ServiceNames::on_control(const ServicePlace& place,
                                               std::optional<SlotNumber> slot) {
  const auto found = held_.find(place);
  if (!slot && found != held_.end()) return Claimed::kTaken;
  if (slot && found == held_.end()) return Claimed::kGone;
  host::PrivateFd socket = control_.descriptors().make([] { return host::raw::datagram_socket(); });
  if (!socket) return Claimed::kNoDescriptor;
  const AbstractName name = name_of(place, slot);
  if (host::raw::bind(socket.get(), name.get(), name.size()) != 0) {
    return errno == EADDRINUSE ? Claimed::kTaken : Claimed::kNoDescriptor;
  }
  (slot ? found->second.serving : held_[place].claim) = std::move(socket);
  return Claimed::kYes;
}

ServiceNames::Claimed ServiceNames::claim(const ServicePlace& place) {
  // The task may outlive the call.
  auto* const result = new Claimed(Claimed::kGone);
  if (!control_.call([=, this] { *result = on_control(place, std::nullopt); })) {
    return Claimed::kGone;
  }
  return *std::unique_ptr<Claimed>(result);
}

ServiceNames::Claimed ServiceNames::serve(const ServicePlace& place, SlotNumber slot) {
  auto* const result = new Claimed(Claimed::kGone);
  if (!control_.call([=, this] { *result = on_control(place, slot); })) return Claimed::kGone;
  return *std::unique_ptr<Claimed>(result);
}

// Waits, so that the name is free for whoever is told that we have left.
void ServiceNames::release(const ServicePlace& place) {
  static_cast<void>(control_.call([=, this] { held_.erase(place); }));
}

bool ServiceNames::is_claimed(const ServicePlace& place) {
  const UniqueFd socket = name_socket();
  return socket && is_bound(socket, name_of(place));
}

std::optional<SlotNumber> ServiceNames::find_at(const ServicePlace& place, Instant now) {
  const UniqueFd socket = name_socket();
  if (!socket || !is_bound(socket, name_of(place))) return std::nullopt;
  {
    const std::lock_guard guard(known_lock_);
    const auto known = known_.find(place);
    if (known != known_.end() && is_bound(socket, name_of(place, known->second.slot))) {
      known->second.found = now;
      return known->second.slot;
    }
  }
  for (std::uint16_t slot = 0; slot < kSlotCount; ++slot) {
    if (!is_bound(socket, name_of(place, SlotNumber{slot}))) continue;
    const std::lock_guard guard(known_lock_);
    if (known_.size() >= kKnownMax) known_.clear();
    known_[place] = {SlotNumber{slot}, now};
    return SlotNumber{slot};
  }
  return std::nullopt;
}

std::optional<SlotNumber> ServiceNames::just_found(std::uint64_t service, const Gid& address,
                                                   Instant now) {
  const auto all =
      wire::is_ipv4(address) ? ServicePlace::Kind::kAllIpv4 : ServicePlace::Kind::kAllIpv6;
  const std::lock_guard guard(known_lock_);
  for (const ServicePlace& place :
       {ServicePlace{.service = service, .address = address}, {.service = service, .kind = all}}) {
    const auto known = known_.find(place);
    if (known != known_.end() && now - known->second.found < kBelief) return known->second.slot;
  }
  return std::nullopt;
}

std::optional<SlotNumber> ServiceNames::find(std::uint64_t service, const Gid& address,
                                             Instant now) {
  if (const auto slot = just_found(service, address, now)) return slot;
  if (auto slot = find_at({.service = service, .address = address}, now)) return slot;
  const auto all =
      wire::is_ipv4(address) ? ServicePlace::Kind::kAllIpv4 : ServicePlace::Kind::kAllIpv6;
  return find_at({.service = service, .kind = all}, now);
}

bool ServiceNames::was_found(std::uint64_t service, Instant now) {
  const std::lock_guard guard(known_lock_);
  for (auto each = known_.lower_bound({.service = service});
       each != known_.end() && each->first.service == service; ++each) {
    if (now - each->second.found < kMoment) return true;
  }
  return false;
}

}  // namespace verbena::nic
