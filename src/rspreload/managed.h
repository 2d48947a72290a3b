// SPDX-License-Identifier: MIT
// Which descriptors are rsockets, and which sockets shall become some.
#pragma once

namespace verbena::rspreload {

bool is_managed(int fd);
void manage(int fd);
void forget(int fd);

// Whether a socket that is asked for from there shall be an rsocket: of the right kind, and not
// asked for by RDMA itself, whose libraries have sockets of their own.
bool is_wanted(int domain, int type, int protocol, const void* caller);

// What RS_SQ_SIZE, RS_RQ_SIZE and RS_INLINE say goes to each new rsocket.
void set_options(int fd);

}  // namespace verbena::rspreload
