// SPDX-License-Identifier: MIT
// What this process holds: descriptors of all its tables, mappings, threads.
#pragma once

#include <string>

namespace chaos {

// "fds N maps N shared N threads N".
std::string audit();

}  // namespace chaos
