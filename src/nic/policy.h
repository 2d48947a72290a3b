// SPDX-License-Identifier: MIT
// What the environment asks of the NIC, and allows it, read when it is made (README.md has the
// list of variables).
#pragma once

namespace verbena::nic {

struct Policy {
  bool direct = true;  // VERBENA_PATH=ring: everything between processes of this host by the ring
  bool adopts = true;  // VERBENA_ADOPT=never: private memory stays private, as with few descriptors

  static Policy from_environment();
};

}  // namespace verbena::nic
