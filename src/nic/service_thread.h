// SPDX-License-Identifier: MIT
// Threads of ours in the program's process: small stack, detached, deaf to the program's signals.
#pragma once

namespace verbena::nic {

// False: the system gives none. `name` as in /proc: at most 15 letters.
bool start_service_thread(const char* name, void* (*run)(void*), void* argument);

}  // namespace verbena::nic
