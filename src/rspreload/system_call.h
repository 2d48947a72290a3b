// SPDX-License-Identifier: MIT
// syscall(2) stands before libc's here: this is libc's, and who calls it.
#pragma once

extern "C" [[gnu::visibility("hidden")]] long verbena_system_call(long number, ...);

namespace verbena::rspreload {

// Whether that is code of this library, or of those that it stands on.
bool is_own_code(const void* at);

// close(2) of what may be an rsocket's (calls.cc), for who calls it.
int close_descriptor(int fd, const void* caller);

}  // namespace verbena::rspreload
