// SPDX-License-Identifier: MIT
// For tests: whether a poller would be woken.
#pragma once

#include <poll.h>

namespace verbena::nic {

// Whether there is something to read from `fd` now.
inline bool is_readable(int fd) {
  pollfd watched{fd, POLLIN, 0};
  return poll(&watched, 1, 0) == 1;
}

}  // namespace verbena::nic
