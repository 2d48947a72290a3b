// SPDX-License-Identifier: MIT
#include "cli/device_tree.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cli/system_text.h"

namespace verbena::cli {
namespace {

using testing::Contains;
using testing::Key;
using testing::Pair;

nic::Device device_called(const std::string& interface) {
  nic::Device device;
  device.name = "vrb_" + interface;
  device.interface = interface;
  device.guid = 0x0011223344556677;
  device.gids = {Gid{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7}}};
  return device;
}

std::map<std::string, std::string> by_path(const std::vector<TreeEntry>& entries) {
  std::map<std::string, std::string> map;
  for (const TreeEntry& entry : entries) {
    EXPECT_TRUE(map.emplace(entry.path, entry.content).second) << entry.path << " is there twice";
  }
  return map;
}

TEST(CpuMask, IsWrittenAsTheKernelDoes) {
  EXPECT_EQ(cpu_mask("0"), "1");
  EXPECT_EQ(cpu_mask("0-1"), "3");
  EXPECT_EQ(cpu_mask("0-3,8"), "10f");
  EXPECT_EQ(cpu_mask("31"), "80000000");
  EXPECT_EQ(cpu_mask("0-32"), "1,ffffffff");
  EXPECT_EQ(cpu_mask("64"), "1,00000000,00000000");
  EXPECT_EQ(cpu_mask(""), "0");
  EXPECT_EQ(cpu_mask("nonsense"), "0");
  EXPECT_EQ(cpu_mask("0-99999999999"), cpu_mask("0-8191"));
}

TEST(DeviceTree, SpellsNumbersAsSysfsDoes) {
  EXPECT_EQ(spell_guid(0x0011223344556677), "0011:2233:4455:6677");
  EXPECT_EQ(spell_gid(Gid{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0xff}}),
            "fe80:0000:0000:0000:0001:0203:0405:06ff");
}

TEST(DeviceTree, HasWhatProgramsLookFor) {
  const std::vector<nic::Device> devices = {device_called("eth0"), device_called("lo")};
  const std::vector<Locality> near(2);
  const auto tree = by_path(describe_tree(devices, near));
  const std::string top = "sys/devices/verbena/vrb_eth0/";
  const std::string port = top + "infiniband/vrb_eth0/ports/1/";
  EXPECT_THAT(tree, Contains(Pair("sys/class/infiniband_verbs/abi_version", "6\n")));
  EXPECT_THAT(tree, Contains(Pair("sys/class/infiniband/vrb_eth0",
                                  "../../devices/verbena/vrb_eth0/infiniband/vrb_eth0")));
  EXPECT_THAT(tree, Contains(Pair("sys/class/infiniband_verbs/uverbs1",
                                  "../../devices/verbena/vrb_lo/infiniband_verbs/uverbs1")));
  EXPECT_THAT(tree, Contains(Pair(top + "infiniband_verbs/uverbs0/ibdev", "vrb_eth0\n")));
  EXPECT_THAT(tree, Contains(Pair(top + "net/eth0", "/sys/class/net/eth0")));
  EXPECT_THAT(tree, Contains(Pair(top + "numa_node", "-1\n")));
  EXPECT_THAT(tree, Contains(Pair(port + "state", "4: ACTIVE\n")));
  EXPECT_THAT(tree, Contains(Pair(port + "gids/0", "0000:0000:0000:0000:0000:ffff:c000:0207\n")));
  EXPECT_THAT(tree, Contains(Pair(port + "gid_attrs/types/0", "RoCE v2\n")));
  EXPECT_THAT(tree, Contains(Pair(port + "gid_attrs/ndevs/0", "eth0\n")));
  EXPECT_THAT(tree, Contains(Key(port + "counters/port_rcv_data")));
  EXPECT_THAT(tree, Contains(Pair("dev/infiniband/uverbs1", "/dev/null")));
}

TEST(DeviceTree, ShowsAPortThatIsDown) {
  nic::Device device = device_called("eth0");
  device.is_up = false;
  const std::vector<Locality> near(1);
  const auto tree = by_path(describe_tree(std::span(&device, 1), near));
  EXPECT_THAT(tree, Contains(Pair("sys/devices/verbena/vrb_eth0/infiniband/vrb_eth0/ports/1/state",
                                  "1: DOWN\n")));
}

TEST(DeviceTree, HasItsFoldersWithoutDevices) {
  const auto tree = by_path(describe_tree({}, {}));
  EXPECT_THAT(tree, Contains(Key("sys/class/infiniband")));
  EXPECT_THAT(tree, Contains(Key("dev/infiniband")));
}

TEST(DeviceTree, LinksLeadSomewhere) {
  const nic::Device device = device_called("eth0");
  const std::vector<Locality> near(1);
  const std::vector<TreeEntry> entries = describe_tree(std::span(&device, 1), near);
  for (const TreeEntry& entry : entries) {
    if (entry.kind != TreeEntry::Kind::kLink || entry.content.starts_with('/')) continue;
    std::string folder = entry.path.substr(0, entry.path.rfind('/'));
    std::string target = entry.content;
    while (target.starts_with("../")) {
      const std::size_t slash = folder.rfind('/');
      ASSERT_NE(slash, std::string::npos) << entry.path << " leads out of the tree";
      folder.erase(slash);
      target.erase(0, 3);
    }
    const std::string wanted = fmt::format("{}/{}", folder, target);
    EXPECT_TRUE(std::ranges::any_of(entries,
                                    [&wanted](const TreeEntry& other) {
                                      return other.path == wanted ||
                                             other.path.starts_with(wanted + "/");
                                    }))
        << entry.path << " leads to " << wanted;
  }
}

}  // namespace
}  // namespace verbena::cli
