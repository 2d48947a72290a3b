// SPDX-License-Identifier: MIT
// Port spaces (rdma_cm(7)): a port belongs to one process of the network namespace, by names that
// the NIC binds (GsiTable).
//
// An id that is bound to a port has a claim on it. Who connects without having been bound needs a
// number to show to the peer and nothing more: that is only different from others of this process,
// so that ten thousand connections need no descriptors.
//
// All addresses against one of them, as for TCP: who takes all looks whether anybody has one, and
// who takes one looks whether anybody has all; each after having taken its own, so that of two at
// the same time at most one succeeds.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/contracts.h"
#include "base/mutex.h"
#include "base/random.h"
#include "rdmacm/address.h"
#include "rdmacm/border.h"

namespace verbena::rdmacm {

struct Id;

class Ports {
 public:
  explicit Ports(const GsiTable& table) : table_(table) {}

  // Takes the port of `address`, or one that is free, which it then has. 0; EADDRINUSE,
  // EADDRNOTAVAIL (all addresses are wanted, and somebody has one), EACCES ... After
  // Manager::open(), without its lock.
  int claim(Id& id, Address& address);
  // Requests for what the id has claimed come here.
  int serve(const Id& id);
  // A number for an id that is not bound.
  std::uint16_t borrow(Id& id);
  void give_back(Id& id);

 private:
  int claim_port(Id& id, const Address& address);
  int claim_patiently(const GsiPlace& place);
  int find_conflict(const Id& id, const Address& address) const;

  const GsiTable& table_;
  Mutex lock_;
  KernelRandom random_;
  std::set<std::pair<std::uint32_t, std::uint16_t>> borrowed_;  // port space and port
};

}  // namespace verbena::rdmacm
