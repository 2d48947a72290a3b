// SPDX-License-Identifier: MIT
// The files that a kernel with RDMA hardware would show for our devices (Documentation/ABI/stable/
// sysfs-class-infiniband): what is in the tree, not where it lies.
//
//   sys/class/infiniband/vrb_eth0          -> ../../devices/verbena/vrb_eth0/infiniband/vrb_eth0
//   sys/class/infiniband_verbs/uverbs0     ->
//   ../../devices/verbena/vrb_eth0/infiniband_verbs/uverbs0 sys/devices/verbena/vrb_eth0/ the
//   device: vendor, numa_node, net/eth0 ... dev/infiniband/uverbs0                 -> /dev/null
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "nic/device.h"

namespace verbena::cli {

struct TreeEntry {
  enum class Kind : std::uint8_t { kFolder, kFile, kLink };
  Kind kind;
  std::string path;  // in the tree, without a slash in front; folders above it come by themselves
  std::string content;  // of the file, or the link's target

  friend bool operator==(const TreeEntry&, const TreeEntry&) = default;
};

// Where a device is near, in the kernel's notation.
struct Locality {
  std::string numa_node = "-1";
  std::string local_cpus = "1";     // as a mask: "ff", "ffffffff,ffffffff"
  std::string local_cpulist = "0";  // as ranges: "0-7"
};

// What the kernel says of the hardware below `interface`; all processors where it says nothing.
Locality locality_of(const std::string& interface);

// A GID, a GUID as sysfs spells them.
std::string spell_gid(const Gid& gid);
std::string spell_guid(std::uint64_t guid);

// `near` holds one entry for each device.
std::vector<TreeEntry> describe_tree(std::span<const nic::Device> devices,
                                     std::span<const Locality> near);

}  // namespace verbena::cli
