// SPDX-License-Identifier: MIT
#include <algorithm>
#include <utility>

#include "host/interfaces.h"
#include "nic/device.h"

namespace verbena::nic {
namespace {

// IP, UDP, BTH with the longest extension headers, ICRC: what a packet needs around its payload.
constexpr std::uint32_t kPacketOverhead = 40 + 8 + 12 + 28 + 4;

std::uint8_t active_mtu_for(std::uint32_t interface_mtu) {
  std::uint8_t mtu = 1;
  for (std::uint32_t bytes = 512; mtu < 5 && bytes + kPacketOverhead <= interface_mtu; bytes *= 2)
    ++mtu;
  return mtu;
}

// EUI-64 from the MAC (IBTA vol 1, 4.1.1; RFC 4291 appendix A). An interface without one is told
// apart by its index; the locally administered bit stays as it is.
std::uint64_t guid_of(const host::Interface& interface) {
  const bool has_mac = std::any_of(std::begin(interface.mac), std::end(interface.mac),
                                   [](std::uint8_t byte) { return byte != 0; });
  std::uint8_t bytes[8] = {0x02, 'v', 'r', 0xff, 0xfe, 'b', 0, 0};
  if (has_mac) {
    const std::uint8_t* mac = interface.mac;
    const std::uint8_t eui[8] = {
        static_cast<std::uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
    std::copy(std::begin(eui), std::end(eui), bytes);
  } else {
    bytes[6] = static_cast<std::uint8_t>(interface.index >> 8);
    bytes[7] = static_cast<std::uint8_t>(interface.index);
  }
  std::uint64_t guid = 0;
  for (const std::uint8_t byte : bytes)
    guid = guid << 8 | byte;
  return guid;
}

}  // namespace

std::vector<Device> devices() { return devices_among(host::all_interfaces()); }

std::vector<Device> devices_among(std::vector<host::Interface> all) {
  std::vector<Device> devices;
  for (host::Interface& interface : host::device_interfaces(std::move(all))) {
    Device device;
    device.name = "vrb_" + interface.name;
    device.interface = interface.name;
    device.interface_index = interface.index;
    device.guid = guid_of(interface);
    device.interface_mtu = interface.mtu;
    device.active_mtu = active_mtu_for(interface.mtu);
    device.is_up = interface.is_up || interface.is_loopback;
    device.is_loopback = interface.is_loopback;
    device.gids = std::move(interface.addresses);
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace verbena::nic
