// SPDX-License-Identifier: MIT
// Connections that become rsockets only when data flow, for servers that fork to serve one: an
// rsocket belongs to the process that made it. RDMAV_FORK_SAFE, at both ends, asks for it
// (rsocket(7)).
//
// Both begin with a connection of TCP. The end that accepted it listens by rdma_cm at the address
// that it was reached at, and says so by four bytes of 0; the other looks for these, connects
// there, and leaves TCP. Each does so in its first call for data, which waits for the other's.
#pragma once

namespace verbena::rspreload {

bool is_fork_safe();

// The rsocket behind it for a call that moves data, or -1; makes it one where it is time.
int rsocket_for_data(int fd);

// For a call that waits for `events` (poll(2)).
int rsocket_for_wait(int fd, short events);

// For each new rsocket: larger buffers than librdmacm's, and what RS_SQ_SIZE, RS_RQ_SIZE and
// RS_INLINE say.
void set_options(int rsocket);

}  // namespace verbena::rspreload
