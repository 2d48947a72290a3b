// SPDX-License-Identifier: MIT
// `verbena ls`: the devices as programs see them.
#include <arpa/inet.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/device_tree.h"
#include "cli/table.h"
#include "nic/device.h"

namespace verbena::cli {
namespace {

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// The address that the GID is.
std::string spell_address(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (std::memcmp(gid.bytes, kMappedPrefix, sizeof kMappedPrefix) == 0) {
    inet_ntop(AF_INET, gid.bytes + sizeof kMappedPrefix, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.bytes, text, sizeof text);
  }
  return text;
}

unsigned bytes_of_mtu(std::uint8_t code) { return 128u << code; }

nlohmann::json as_json(const nic::Device& device) {
  nlohmann::json gids = nlohmann::json::array();
  for (std::size_t i = 0; i < device.gids.size(); ++i) {
    gids.push_back({{"index", i},
                    {"gid", spell_gid(device.gids[i])},
                    {"address", spell_address(device.gids[i])},
                    {"type", "RoCE v2"}});
  }
  return {{"name", device.name},
          {"interface", device.interface},
          {"interface_index", device.interface_index},
          {"state", device.is_up ? "active" : "down"},
          {"guid", spell_guid(device.guid)},
          {"mtu", bytes_of_mtu(device.active_mtu)},
          {"interface_mtu", device.interface_mtu},
          {"gids", gids}};
}

void print_table(const std::vector<nic::Device>& devices) {
  std::vector<Row> rows = {{"DEVICE", "INTERFACE", "STATE", "MTU", "GID", "ADDRESS"}};
  for (const nic::Device& device : devices) {
    Row row = {device.name, device.interface, device.is_up ? "active" : "down",
               std::to_string(bytes_of_mtu(device.active_mtu))};
    if (device.gids.empty()) row.insert(row.end(), {"-", "none: give the interface an address"});
    for (std::size_t i = 0; i < device.gids.size(); ++i) {
      row.resize(4);
      row.insert(row.end(), {std::to_string(i), spell_address(device.gids[i])});
      rows.push_back(row);
      row.assign(4, "");  // the device's further addresses stand below the first
    }
    if (device.gids.empty()) rows.push_back(row);
  }
  fmt::print("{}", aligned(rows));
  fmt::print(
      "\nPrograms take the first device, or the one you name, and ask for the number of a GID:\n"
      "  verbena run -- ibv_rc_pingpong -d {0} -g 0\n"
      "  verbena run -- ib_write_bw -d {0} -x 0\n",
      devices[0].name);
}

class Ls final : public Command {
 public:
  explicit Ls(CLI::App& app) {
    app.add_flag("--json", as_json_, "Print them as JSON");
    app.add_flag("--all", all_, "Also those that programs see only when VERBENA_DEVICES asks");
  }

  int run(const std::vector<std::string>&) override {
    if (all_) setenv("VERBENA_DEVICES", "all", 1);
    const std::vector<nic::Device> devices = nic::devices();
    if (as_json_) {
      nlohmann::json list = nlohmann::json::array();
      for (const nic::Device& device : devices)
        list.push_back(as_json(device));
      fmt::print("{}\n", nlohmann::json{{"devices", list}}.dump(2));
      return 0;
    }
    if (devices.empty()) {
      fmt::print(stderr, "verbena: no device, because no network interface is up, not even lo\n");
      return 1;
    }
    print_table(devices);
    return 0;
  }

 private:
  bool as_json_ = false;
  bool all_ = false;
};

}  // namespace

std::unique_ptr<Command> add_ls(CLI::App& app) {
  app.footer(
      "A device is a network interface seen as an RDMA NIC; a GID is one of its addresses, and\n"
      "programs want to know which by its number (perftest -x, pingpong -g).");
  return std::make_unique<Ls>(app);
}

}  // namespace verbena::cli
