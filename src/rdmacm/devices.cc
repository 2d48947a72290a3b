// SPDX-License-Identifier: MIT
#include "rdmacm/devices.h"

#include <endian.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "base/not_cancelled.h"
#include "rdmacm/address.h"
#include "rdmacm/manager.h"

namespace verbena::rdmacm {
namespace {

constexpr std::uint32_t kPort = 1;  // the only one of ours

}  // namespace

int Devices::open() {
  const UncancelledGuard guard(lock_);
  if (is_open_) return devices_.empty() ? ENODEV : 0;
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (!list) return errno;
  for (int i = 0; i < count; ++i) {
    ibv_context* const context = ibv_open_device(list[i]);
    if (!context) continue;
    ibv_device_attr attributes{};
    Device device{.context = context, .guid = be64toh(ibv_get_device_guid(list[i]))};
    if (ibv_query_device(context, &attributes) == 0) {
      device.reads_in_max = static_cast<std::uint8_t>(std::min(attributes.max_qp_rd_atom, 255));
      device.reads_out_max =
          static_cast<std::uint8_t>(std::min(attributes.max_qp_init_rd_atom, 255));
    }
    devices_.push_back(device);
  }
  ibv_free_device_list(list);
  if (count > 0 && devices_.empty()) return errno ? errno : ENODEV;
  is_open_ = true;
  return devices_.empty() ? ENODEV : 0;
}

void Devices::look(Instant now) {
  known_.clear();
  for (Device& device : devices_) {
    ibv_gid_entry entries[64];
    ssize_t count = 0;
    for (std::uint32_t i = 0; i < std::size(entries); ++i) {
      if (ibv_query_gid_ex(device.context, kPort, i, &entries[count], 0) == 0) ++count;
    }
    for (const ibv_gid_entry& entry : std::span(entries).first(static_cast<std::size_t>(count))) {
      Known known{.address = {},
                  .port = {.device = &device,
                           .gid_index = static_cast<std::uint8_t>(entry.gid_index),
                           .interface = entry.ndev_ifindex}};
      std::memcpy(known.address.bytes, entry.gid.raw, sizeof known.address.bytes);
      known_.push_back(known);
    }
  }
  known_until_ = now + kKnownFor;
}

const Devices::Known* Devices::look_up(const Gid& address, std::uint32_t interface) const {
  for (const Known& each : known_) {
    const bool fits = interface == 0 || each.port.interface == interface;
    if (fits && each.address == address) return &each;
  }
  return nullptr;
}

std::optional<LocalPort> Devices::find(const Gid& address, std::uint32_t interface, Instant now) {
  const UncancelledGuard guard(lock_);
  const bool is_fresh = now < known_until_;
  if (!is_fresh) look(now);
  const Known* found = look_up(address, interface);
  if (!found && is_fresh) {
    look(now);
    found = look_up(address, interface);
  }
  if (!found) return std::nullopt;
  return found->port;
}

void Devices::forget_addresses() {
  const UncancelledGuard guard(lock_);
  known_until_ = Instant();
  way_.reset();
}

bool Devices::are_all_loopback() {
  const UncancelledGuard guard(lock_);
  look(clock_now());
  return std::ranges::all_of(
      known_, [](const Known& each) { return Address::of(each.address, 0, 0).is_loopback(); });
}

Result<Address, int> Devices::source_towards(const Address& destination, Instant now) {
  const UncancelledGuard guard(lock_);
  if (way_ && now < way_->until && way_->destination.gid() == destination.gid() &&
      way_->destination.scope() == destination.scope()) {
    return way_->source;
  }
  const auto found = verbena::rdmacm::source_towards(destination);
  if (found) way_ = Way{destination, *found, now + kRouteKnownFor};
  return found;
}

ibv_pd* Devices::domain_of(Device& device) {
  const UncancelledGuard guard(lock_);
  if (!device.domain) device.domain = ibv_alloc_pd(device.context);
  return device.domain;
}

ibv_xrcd* Devices::xrc_domain_of(Device& device) {
  const UncancelledGuard guard(lock_);
  if (device.xrc_domain) return device.xrc_domain;
  ibv_xrcd_init_attr wanted{};
  wanted.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  wanted.fd = -1;
  wanted.oflags = O_CREAT;
  device.xrc_domain = ibv_open_xrcd(device.context, &wanted);
  return device.xrc_domain;
}

}  // namespace verbena::rdmacm
