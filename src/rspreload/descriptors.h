// SPDX-License-Identifier: MIT
// What stands behind each descriptor of the program: nothing of ours, an rsocket, or a connection
// of TCP that becomes one with its first data (late.h). dup(2) gives an rsocket several
// descriptors; it is closed with the last of them.
#pragma once

#include <cstdint>

namespace verbena::rspreload {

// A socket of TCP on its way to be an rsocket.
enum class Late : std::uint8_t { kNone, kFresh, kAccepted, kConnected };

int rsocket_of(int fd);  // -1: none
Late late_of(int fd);
bool is_ours(int fd);  // either of both

void set_rsocket(int fd, int rsocket);
void set_late(int fd, Late late);
// Nothing of ours is behind it any more. The rsocket that it was the last descriptor of, or -1.
int forget(int fd);

// Whether it is an rsocket's own, which has more of them, or others only.
bool is_needed(int fd);

// A number that the program has put something else at, while its rsocket still has to close it:
// that close is none.
void keep_number(int fd);
bool is_kept(int fd);
int drop_kept(int fd);  // 0
// The number that this thread keeps while its rsocket ends. Every close of it meanwhile is the
// rsocket's, whoever calls: a sanitizer's close(2) may stand between the two.
class Replacing {
 public:
  explicit Replacing(int fd);
  ~Replacing();
  Replacing(const Replacing&) = delete;
  Replacing& operator=(const Replacing&) = delete;
};
bool is_replaced_here(int fd);
// The lowest from there on that there is something behind, or that is known_to(fd); at most `last`.
int next_ours(int from, int last, bool (*is_known)(int fd));

// Whether all this is another process's: a child of vfork(2) has its parent's memory, but
// descriptors of its own.
bool are_borrowed();

// The lowest from there on that has an rsocket, or -1.
int next_rsocket(int from);

}  // namespace verbena::rspreload
