// SPDX-License-Identifier: MIT
// The handler of SIGSEGV and SIGBUS that turns a fault inside a guarded access (guarded_copy.h)
// into its refusal. Every other fault goes to whoever handled it before us, with the flags and the
// mask it asked for, and kills the program as it would have without us where nobody did.
//
// On x86-64 each guarded instruction is listed in the section `verbena_faults` with the place to go
// on at, as the Linux kernel does for its own copies from user space: the handler changes the
// program counter and returns. No thread-local state, no jump out of a handler, no work when
// nothing faults. Elsewhere a guard is a sigsetjmp and a thread-local pointer to it.
#pragma once

#include <csetjmp>
#include <csignal>

namespace verbena::memory {

// Installs the handlers, once; cheap when they are there. A program that replaces them later has
// what it had before.
void install_fault_guard();

// The signals that a thread of ours blocks: all but those that guarded accesses need.
sigset_t signals_but_faults();

// The portable guard of this thread: where to go on, or null.
inline thread_local sigjmp_buf* fault_return [[gnu::tls_model("initial-exec")]] = nullptr;

}  // namespace verbena::memory
