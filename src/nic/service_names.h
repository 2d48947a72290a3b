// SPDX-License-Identifier: MIT
// Which process of this host serves what: services of rdma_cm, by abstract unix names, which are
// exclusive in the network namespace and which the kernel takes back when their process dies.
//
//   @verbena/port/<service id>/<place>          it is taken
//   @verbena/port/<service id>/<place>/<slot>   and this slot listens there
//
// A place is an address, or all of a family. Two names, because who looks for a service needs the
// slot of whoever holds a name, which the kernel does not tell: so it asks for each slot, once, and
// later only whether what it knows still holds.
//
// The sockets are the control thread's, where the program cannot close them and forked children do
// not inherit them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/time.h"
#include "base/types.h"
#include "host/control.h"

namespace verbena::nic {

struct ServicePlace {
  enum class Kind : std::uint8_t { kAddress, kAllIpv4, kAllIpv6 };
  std::uint64_t service = 0;
  Kind kind = Kind::kAddress;
  Gid address{};  // of kAddress
  friend auto operator<=>(const ServicePlace&, const ServicePlace&) = default;
};

class ServiceNames {
 public:
  explicit ServiceNames(host::Control& control) : control_(control) {}
  ServiceNames(const ServiceNames&) = delete;
  ServiceNames& operator=(const ServiceNames&) = delete;

  // Any thread but the control thread, without its locks.
  enum class Claimed : std::uint8_t { kYes, kTaken, kNoDescriptor, kGone };
  Claimed claim(const ServicePlace& place);
  // What was claimed is served by this slot from now on.
  Claimed serve(const ServicePlace& place, SlotNumber slot);
  void release(const ServicePlace& place);

  // Any thread, by a socket of the moment.
  static bool is_claimed(const ServicePlace& place);
  // Who serves what is sent to this address. None: nobody does.
  std::optional<SlotNumber> find(std::uint64_t service, const Gid& address, Instant now);
  // Whether find() found somebody a moment ago.
  bool was_found(std::uint64_t service, Instant now);

 private:
  struct Held {
    host::PrivateFd claim;
    host::PrivateFd serving;
  };
  Claimed on_control(const ServicePlace& place, std::optional<SlotNumber> slot);
  std::optional<SlotNumber> just_found(std::uint64_t service, const Gid& address, Instant now);
  std::optional<SlotNumber> find_at(const ServicePlace& place, Instant now);

  host::Control& control_;
  std::map<ServicePlace, Held> held_;  // the control thread's

  Mutex known_lock_;
  struct Known {
    SlotNumber slot;
    Instant found;
  };
  std::map<ServicePlace, Known> known_;
};

}  // namespace verbena::nic
