// SPDX-License-Identifier: MIT
// The devices, open for as long as the process lives (rdma_get_devices(3)), and which of them has
// an address.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/time.h"
#include "base/types.h"
#include "rdmacm/address.h"
#include "rdmacm/border.h"

namespace verbena::rdmacm {

struct Device {
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;        // made when first wanted
  ibv_xrcd* xrc_domain = nullptr;  // the same
  std::uint64_t guid = 0;          // host order
  std::uint8_t reads_in_max = 0;
  std::uint8_t reads_out_max = 0;
};

// A device by one of its addresses.
struct LocalPort {
  Device* device = nullptr;
  std::uint8_t gid_index = 0;
  std::uint32_t interface = 0;
};

class Devices {
 public:
  // Opens those that are there, once. 0, or an errno.
  int open();
  // After open(); they stay where they are.
  std::span<Device> all() { return devices_; }
  // None: no device has this address. `interface`: 0 is any.
  std::optional<LocalPort> find(const Gid& address, std::uint32_t interface, Instant now);
  bool are_all_loopback();
  // Interfaces or addresses have changed: what was seen of them counts no more.
  void forget_addresses();
  // Where the system would send from; errno: it would not.
  Result<Address, int> source_towards(const Address& destination, Instant now);
  // The domain of a device for all who bring none. Null: errno says why.
  ibv_pd* domain_of(Device& device);
  ibv_xrcd* xrc_domain_of(Device& device);

 private:
  // Addresses come and go; asking for all of them takes longer than the rest of a connection.
  static constexpr Duration kKnownFor = Duration::milliseconds(500);
  // Programs resolve one address for thousands of connections.
  static constexpr Duration kRouteKnownFor = Duration::milliseconds(5);
  struct Known {
    Gid address;
    LocalPort port;
  };
  void look(Instant now);
  const Known* look_up(const Gid& address, std::uint32_t interface) const;

  Mutex lock_;
  bool is_open_ = false;
  std::vector<Device> devices_;
  std::vector<Known> known_;
  Instant known_until_;
  struct Way {
    Address destination;
    Address source;
    Instant until;
  };
  std::optional<Way> way_;  // the last one
};

}  // namespace verbena::rdmacm
