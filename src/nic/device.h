// SPDX-License-Identifier: MIT
// The devices of this machine: one for each network interface that makes sense, described but not
// opened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "host/interfaces.h"

namespace verbena::nic {

// What a NIC of ours can hold, told truthfully to programs and enforced (architecture section 8).
struct Limits {
  std::uint32_t queue_pairs = 16'000;
  std::uint32_t work_requests = 32'768;  // in one send or receive queue
  std::uint32_t sges = 32;               // in one work request (sends, receives, READ)
  std::uint32_t inline_bytes = 1'024;
  std::uint32_t completion_queues = 65'536;
  std::uint32_t completions = 1u << 22;  // in one completion queue
  std::uint32_t regions = 65'536;
  std::uint32_t windows = 65'536;
  std::uint32_t domains = 32'768;
  std::uint32_t shared_receive_queues = 16'384;
  std::uint32_t address_handles = 65'536;
  std::uint32_t device_memory_bytes = 64u << 20;  // in all
  std::uint32_t reads_in_flight = 128;            // of one queue pair, in each direction
  std::uint64_t message_bytes = 1u << 30;
  // As many as Linux lets one socket join (net.ipv4.igmp_max_memberships), on all interfaces.
  std::uint32_t multicast_groups = 20;
  std::uint32_t multicast_members = 4'096;  // queue pairs in one group
  std::uint32_t flows = 4'096;              // on one device, of one process
  std::uint32_t counters = 4'096;           // of flows
  std::uint32_t work_queue_tables = 1'024;
  std::uint32_t work_queues_in_table = 2'048;
};

struct Device {
  std::string name;  // vrb_<ifname>
  std::string interface;
  std::uint32_t interface_index = 0;
  std::uint64_t guid =
      0;  // host order; from the MAC (EUI-64), or from the boot id where there is none
  std::uint32_t interface_mtu = 0;
  std::uint8_t active_mtu =
      5;  // as in verbs: 1 is 256 bytes, 5 is 4096: what fits into interface_mtu with the headers
  bool is_up = true;
  bool is_loopback = false;
  std::vector<Gid> gids;  // all RoCE v2
  Limits limits;
};

// The devices in the order that programs see (architecture section 1): those of the interfaces that
// are there now, or of these.
std::vector<Device> devices();
std::vector<Device> devices_among(std::vector<host::Interface> all);

}  // namespace verbena::nic
