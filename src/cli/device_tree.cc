// SPDX-License-Identifier: MIT
#include "cli/device_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "cli/system_text.h"

namespace verbena::cli {
namespace {

// Writes the entries of one folder.
class Folder {
 public:
  Folder(std::vector<TreeEntry>& entries, std::string path)
      : entries_(entries), path_(std::move(path)) {}

  Folder below(const std::string& name) const { return {entries_, path_ + "/" + name}; }
  // The kernel ends a value with a newline.
  const Folder& file(const std::string& name, const std::string& value) const {
    entries_.push_back({TreeEntry::Kind::kFile, path_ + "/" + name, value + "\n"});
    return *this;
  }
  const Folder& link(const std::string& name, const std::string& target) const {
    entries_.push_back({TreeEntry::Kind::kLink, path_ + "/" + name, target});
    return *this;
  }

 private:
  std::vector<TreeEntry>& entries_;
  std::string path_;
};

// Counted by hardware; this NIC keeps its counts elsewhere and leaves these at 0.
constexpr const char* kCounters[] = {"excessive_buffer_overrun_errors",
                                     "link_downed",
                                     "link_error_recovery",
                                     "local_link_integrity_errors",
                                     "multicast_rcv_packets",
                                     "multicast_xmit_packets",
                                     "port_rcv_constraint_errors",
                                     "port_rcv_data",
                                     "port_rcv_errors",
                                     "port_rcv_packets",
                                     "port_rcv_remote_physical_errors",
                                     "port_rcv_switch_relay_errors",
                                     "port_xmit_constraint_errors",
                                     "port_xmit_data",
                                     "port_xmit_discards",
                                     "port_xmit_packets",
                                     "port_xmit_wait",
                                     "symbol_error",
                                     "unicast_rcv_packets",
                                     "unicast_xmit_packets",
                                     "VL15_dropped"};
constexpr const char* kHardwareCounters[] = {
    "duplicate_request", "implied_nak_seq_err", "lifespan",          "local_ack_timeout_err",
    "out_of_sequence",   "packet_seq_err",      "rnr_nak_retry_err", "rx_atomic_requests",
    "rx_read_requests",  "rx_write_requests"};

// The files of ports/1; the numbers as libibverbs answers them.
void describe_port(const Folder& port, const nic::Device& device) {
  port.file("state", device.is_up ? "4: ACTIVE" : "1: DOWN")
      .file("phys_state", device.is_up ? "5: LinkUp" : "3: Disabled")
      .file("rate", "100 Gb/sec (4X EDR)")
      .file("link_layer", "Ethernet")
      .file("lid", "0x0")
      .file("lid_mask_count", "0")
      .file("sm_lid", "0x0")
      .file("sm_sl", "0")
      .file("cap_mask", "0x04000000");
  port.below("pkeys").file("0", "0xffff");
  const Folder attributes = port.below("gid_attrs");
  for (std::size_t i = 0; i < device.gids.size(); ++i) {
    const std::string index = std::to_string(i);
    port.below("gids").file(index, spell_gid(device.gids[i]));
    attributes.below("types").file(index, "RoCE v2");
    attributes.below("ndevs").file(index, device.interface);
  }
  for (const char* name : kCounters)
    port.below("counters").file(name, "0");
  for (const char* name : kHardwareCounters)
    port.below("hw_counters").file(name, "0");
}

void describe_device(const Folder& root, const nic::Device& device, const Locality& near,
                     std::size_t index) {
  const std::string& name = device.name;
  const std::string uverbs = fmt::format("uverbs{}", index);
  const std::string from_class = "../../devices/verbena/" + name;
  const Folder hardware = root.below("sys/devices/verbena/" + name);
  hardware.file("vendor", "0x5652")
      .file("device", "0x0001")
      .file("subsystem_vendor", "0x5652")
      .file("subsystem_device", "0x0001")
      .file("class", "0x020700")  // an InfiniBand controller
      .file("revision", "0x00")
      .file("numa_node", near.numa_node)
      .file("local_cpus", near.local_cpus)
      .file("local_cpulist", near.local_cpulist)
      .link("net/" + device.interface, "/sys/class/net/" + device.interface);

  const Folder rdma = hardware.below("infiniband/" + name);
  rdma.file("node_type", "1: CA")
      .file("node_guid", spell_guid(device.guid))
      .file("sys_image_guid", spell_guid(device.guid))
      .file("node_desc", "verbena " + device.interface)
      .file("fw_ver", VERBENA_VERSION)
      .file("hw_rev", "0")
      .file("hca_type", "verbena")
      .file("board_id", "verbena")
      .file("uevent", "NAME=" + name)
      .link("device", "../../../" + name)
      .link("subsystem", "../../../../../class/infiniband");
  describe_port(rdma.below("ports/1"), device);
  root.below("sys/class/infiniband").link(name, from_class + "/infiniband/" + name);

  hardware.below("infiniband_verbs/" + uverbs)
      .file("ibdev", name)
      .file("abi_version", "1")
      .file("dev", "1:3")  // what stat says of the node: it is /dev/null
      .file("uevent", "MAJOR=1\nMINOR=3\nDEVNAME=infiniband/" + uverbs)
      .link("device", "../../../" + name)
      .link("subsystem", "../../../../../class/infiniband_verbs");
  root.below("sys/class/infiniband_verbs").link(uverbs, from_class + "/infiniband_verbs/" + uverbs);
  root.below("dev/infiniband").link(uverbs, "/dev/null");
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

Locality locality_of(const std::string& interface) {
  Locality near;
  near.local_cpulist = read_line("/sys/devices/system/cpu/online");
  if (near.local_cpulist.empty()) near.local_cpulist = "0";
  near.local_cpus = cpu_mask(near.local_cpulist);
  const std::string device = "/sys/class/net/" + interface + "/device";
  // A virtio interface hangs below the PCI device that knows.
  for (const std::string& folder : {device, device + "/.."}) {
    const std::string node = read_line(folder + "/numa_node");
    const std::string mask = read_line(folder + "/local_cpus");
    const std::string list = read_line(folder + "/local_cpulist");
    if (!node.empty() && !mask.empty() && !list.empty()) return {node, mask, list};
  }
  return near;
}

std::string spell_gid(const Gid& gid) {
  std::string text;
  for (std::size_t i = 0; i < sizeof gid.bytes; i += 2) {
    text += fmt::format("{}{:02x}{:02x}", i ? ":" : "", gid.bytes[i], gid.bytes[i + 1]);
  }
  return text;
}

std::string spell_guid(std::uint64_t guid) {
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff,
                     guid >> 16 & 0xffff, guid & 0xffff);
}

std::vector<TreeEntry> describe_tree(std::span<const nic::Device> devices,
                                     std::span<const Locality> near) {
  std::vector<TreeEntry> entries;
  const Folder root(entries, "");
  // Where there is no device the folders are there all the same: programs tell "no device" from "no
  // RDMA" by them.
  root.below("sys/class/infiniband_verbs").file("abi_version", "6");
  for (const char* folder : {"/sys/class/infiniband", "/sys/devices/verbena", "/dev/infiniband"}) {
    entries.push_back({TreeEntry::Kind::kFolder, folder, ""});
  }
  for (std::size_t i = 0; i < devices.size(); ++i)
    describe_device(root, devices[i], near[i], i);
  for (TreeEntry& entry : entries)
    entry.path.erase(0, 1);
  return entries;
}

}  // namespace verbena::cli
