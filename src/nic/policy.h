// SPDX-License-Identifier: MIT
// What the environment asks of the NIC, and allows it, read when it is made (README.md has the
// list of variables).
#pragma once

#include <cstdint>

#include "nic/wire_line.h"

namespace verbena::nic {

// VERBENA_PATH: how processes of this host reach each other. Other hosts are reached by the wire.
enum class Path : std::uint8_t {
  kAuto,  // the fastest way there is
  kRing,  // never by the initiator itself, always by the ring
  kWire,  // as other hosts
};

struct Policy {
  Path path = Path::kAuto;
  bool adopts = true;  // VERBENA_ADOPT=never: private memory stays private, as with few descriptors

  // VERBENA_AGREE=never: reliable connections by the wire do not ask whether the peer is one of
  // ours (docs/decisions/0012).
  bool agrees = true;
  LineOptions line{};  // VERBENA_FAULT, VERBENA_CAPTURE

  // Whether processes of this host may reach each other's memory themselves.
  bool is_direct() const { return path == Path::kAuto; }

  static Policy from_environment();
};

}  // namespace verbena::nic
