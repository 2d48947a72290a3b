// SPDX-License-Identifier: MIT
// epoll(7) with rsockets. The kernel cannot know what an rsocket is ready for, so those of a set
// are kept here, and a wait is rpoll(3) on them and on the kernel's set: it costs a look at each of
// them.
//
// With EPOLLET what was told is not told again until the program has done something about it: read
// or accepted, or found no more room to write. That tells a little more than the kernel would,
// which a program for EPOLLET must bear.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <ctime>

namespace verbena::rspreload {

// As the functions of epoll: -1 with errno, else what they return.
int epoll_control(int epoll, int operation, int fd, epoll_event* event);
// Null: without end.
int epoll_wait_all(int epoll, epoll_event* events, int most, const timespec* timeout);
// Whether there are rsockets in that set.
bool has_rsockets(int epoll);

// A connection of TCP, perhaps in sets, is an rsocket now.
void became_rsocket(int fd, int rsocket);
// A descriptor goes: of a set, or in one.
void left_sets(int fd);

// What a call did about what was told; `events` may be told again. errno stays.
void told_again(int fd, std::uint32_t events);

// After a call that moves data, of which `wanted` were asked for. Gives the result back.
ssize_t after_input(int fd, ssize_t result);
ssize_t after_output(int fd, ssize_t result, std::size_t wanted);

}  // namespace verbena::rspreload
