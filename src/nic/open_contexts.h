// SPDX-License-Identifier: MIT
// The devices that the program has open, each of which stands for a network interface: when that
// goes down, comes up, changes its addresses or goes away, the program is told (IBTA vol 1, 11.6.3:
// port error, port active, GID table change, catastrophic error).
#pragma once

#include <vector>

#include "base/mutex.h"

namespace verbena::nic {

class Context;
class Nic;

class OpenContexts {
 public:
  explicit OpenContexts(Nic& nic) : nic_(nic) {}
  OpenContexts(const OpenContexts&) = delete;
  OpenContexts& operator=(const OpenContexts&) = delete;

  void add(Context& context);
  void remove(Context& context);
  // Compares with what was there the last time, and tells. On a thread that may touch the program's
  // descriptors.
  void look();

 private:
  void look_at_all();

  Nic& nic_;
  Mutex lock_;
  std::vector<Context*> open_;
};

}  // namespace verbena::nic
