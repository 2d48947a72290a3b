// SPDX-License-Identifier: MIT
// What the environment asks of the NIC, read when it is made (README.md has the list).
#pragma once

namespace verbena::nic {

struct Policy {
  bool direct = true;  // VERBENA_PATH=ring: everything between processes of this host by the ring
  bool adopts = true;  // VERBENA_ADOPT=never: private memory stays private

  static Policy from_environment();
};

}  // namespace verbena::nic
