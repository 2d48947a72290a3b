// SPDX-License-Identifier: MIT
// What the program's other threads are doing in the kernel at the moment, as /proc tells: who
// sleeps on a word of a range, and who has handed its pages to a device. Neither is a touch that
// userfaultfd could hold: both have looked the memory up before.
//
// It sees calls, and those of threads that rest: a thread on a processor is looked at again until
// it rests, or has had the time of a processor that lies between looking the memory up and going to
// sleep. Whoever comes later has to be held by other means. What it does not see: a sleeper on a
// process-shared futex elsewhere that was requeued to a word of the range, device reads by
// ioctl(2), and a thread in whose place an interrupt has had the processor all the time.
//
// Raw system calls, nothing allocated.
#pragma once

#include <cstdint>

#include "memory/process_map.h"

namespace verbena::memory {

enum class ThreadUse : std::uint8_t {
  kSleeps,         // on a futex that is not private to the process: its identity is the page's
  kSleepsOrReads,  // or reads from a device, past the page cache
};

// True when somebody uses the range in this way, or /proc does not say. Without a descriptor to ask
// with, nobody does if there are no more threads than the `quiet` ones.
bool is_used_by_others(const PageRun& range, ThreadUse use, std::uint32_t quiet = 1);
// Waits for a millisecond at most until it is not. True: it still is.
bool stays_used_by_others(const PageRun& range, ThreadUse use, std::uint32_t quiet = 1);

// One thread's line of /proc/self/task/ID/syscall, for the tests.
struct ThreadCall {
  long number = -1;  // none: it waits for a page, or runs
  std::uint64_t arguments[6] = {};
  bool is_running = false;
};
bool parse_call(const char* text, std::uint64_t length, ThreadCall& call);

}  // namespace verbena::memory
