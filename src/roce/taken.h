// SPDX-License-Identifier: MIT
// Packets of a train that are received together (Engine::receive_run).
#pragma once

#include <cstddef>

namespace verbena::roce {

// What became of them.
struct Taken {
  std::size_t packets = 0;  // were intact, and are received
  // The next one is to be forgotten. Else it is to be verified and received like any other, and
  // nothing has happened to it.
  bool is_corrupt = false;

  std::size_t seen() const { return packets + (is_corrupt ? 1 : 0); }
};

}  // namespace verbena::roce
