// SPDX-License-Identifier: MIT
// Waiting for rsockets and other descriptors: as poll(2) and select(2), with -1 and errno.
#pragma once

#include <poll.h>
#include <sys/select.h>

#include "base/time.h"

namespace verbena::rsocket {

int poll_all(pollfd* fds, nfds_t count, Instant deadline);
int select_all(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
               Instant deadline);

}  // namespace verbena::rsocket
