// SPDX-License-Identifier: MIT
#include "rdmacm/ports.h"

#include <time.h>

#include <mutex>

#include "host/interfaces.h"
#include "rdmacm/id.h"
#include "wire/ip.h"

namespace verbena::rdmacm {
namespace {

// What the kernel takes by default (net.ipv4.ip_local_port_range).
constexpr std::uint16_t kFirstPort = 32'768;
constexpr std::uint16_t kLastPort = 60'999;
constexpr unsigned kTriesMax = 1'000;
constexpr unsigned kTriesForDead = 4;
constexpr long kPauseForDead = 5'000'000;  // nanoseconds

GsiPlace place_of(std::uint64_t service, GsiPlace::Kind kind, const Gid& address = {}) {
  return {.service = service, .kind = kind, .address = address};
}

bool takes_ipv4(const Id& id, const Address& address) {
  return address.family() == AF_INET || !id.is_ipv6_only.value_or(false);
}

// What binding to this address takes.
std::vector<GsiPlace> places_of(const Id& id, const Address& address) {
  const std::uint64_t service = id.service_id(address);
  if (!address.is_any()) return {place_of(service, GsiPlace::kAddress, address.gid())};
  std::vector<GsiPlace> all;
  if (takes_ipv4(id, address)) all.push_back(place_of(service, GsiPlace::kAllIpv4));
  if (address.family() != AF_INET) all.push_back(place_of(service, GsiPlace::kAllIpv6));
  return all;
}

}  // namespace

int Ports::claim(Id& id, Address& address) {
  if (!address.is_port_open()) return claim_port(id, address);
  for (unsigned i = 0; i < kTriesMax; ++i) {
    {
      const std::lock_guard guard(lock_);
      address.set_port(
          static_cast<std::uint16_t>(kFirstPort + random_.next() % (kLastPort - kFirstPort + 1)));
    }
    const int error = claim_port(id, address);
    if (error != EADDRINUSE && error != EADDRNOTAVAIL) return error;
  }
  address.set_port(0);
  return EADDRNOTAVAIL;
}

int Ports::claim_port(Id& id, const Address& address) {
  // Several may be bound to one port when all agree; only one of them listens, and takes it then.
  if (id.reuses_address && id.stage == Stage::kIdle) return 0;
  std::vector<GsiPlace> taken;
  int error = 0;
  for (const GsiPlace& place : places_of(id, address)) {
    error = claim_patiently(place);
    if (error) break;
    taken.push_back(place);
  }
  if (!error) error = find_conflict(id, address);
  if (error) {
    for (const GsiPlace& place : taken)
      table_.release(&place);
    return error;
  }
  id.claims = std::move(taken);
  return 0;
}

// The kernel takes a dead process's names back a moment after the process has gone for its parent.
int Ports::claim_patiently(const GsiPlace& place) {
  for (unsigned i = 0;; ++i) {
    const int error = table_.claim(&place);
    if (error != EADDRINUSE || i == kTriesForDead) return error;
    const timespec pause{.tv_sec = 0, .tv_nsec = kPauseForDead};
    nanosleep(&pause, nullptr);
  }
}

int Ports::find_conflict(const Id& id, const Address& address) const {
  const std::uint64_t service = id.service_id(address);
  if (!address.is_any()) {
    const auto kind = wire::is_ipv4(address.gid()) ? GsiPlace::kAllIpv4 : GsiPlace::kAllIpv6;
    const GsiPlace all = place_of(service, kind);
    return table_.is_claimed(&all) ? EADDRINUSE : 0;
  }
  for (const host::Interface& interface : host::all_interfaces()) {
    for (const Gid& each : interface.addresses) {
      const bool is_wanted =
          wire::is_ipv4(each) ? takes_ipv4(id, address) : address.family() != AF_INET;
      const GsiPlace one = place_of(service, GsiPlace::kAddress, each);
      if (is_wanted && table_.is_claimed(&one)) return EADDRNOTAVAIL;
    }
  }
  return 0;
}

int Ports::serve(const Id& id) {
  for (const GsiPlace& place : id.claims)
    if (const int error = table_.serve(&place)) return error;
  return 0;
}

std::uint16_t Ports::borrow(Id& id) {
  const std::lock_guard guard(lock_);
  const auto space = static_cast<std::uint32_t>(id.ps);
  std::uint16_t port = 0;
  // With more connections than numbers some share one, which harms nobody.
  for (unsigned i = 0; i < kTriesMax; ++i) {
    port = static_cast<std::uint16_t>(kFirstPort + random_.next() % (kLastPort - kFirstPort + 1));
    id.has_local_port = borrowed_.insert({space, port}).second;
    if (id.has_local_port) break;
  }
  return port;
}

void Ports::give_back(Id& id) {
  for (const GsiPlace& place : id.claims)
    table_.release(&place);
  id.claims.clear();
  if (!id.has_local_port) return;
  const std::lock_guard guard(lock_);
  borrowed_.erase({static_cast<std::uint32_t>(id.ps), id.source().port()});
  id.has_local_port = false;
}

}  // namespace verbena::rdmacm
