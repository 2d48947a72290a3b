// SPDX-License-Identifier: MIT
// rpoll(3): of rsockets only this is here yet. rping waits by it for what is no rsocket.
#include <poll.h>
#include <rdma/rsocket.h>

extern "C" {

// NOLINTNEXTLINE(readability-identifier-naming): of the header
[[gnu::visibility("default")]] int rpoll(pollfd* fds, nfds_t count, int timeout) {
  return poll(fds, count, timeout);
}

}  // extern "C"
