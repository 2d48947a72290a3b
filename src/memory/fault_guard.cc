// SPDX-License-Identifier: MIT
#include "memory/fault_guard.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/mutex.h"

#if defined(__x86_64__)
namespace {
// One block of guarded instructions, as guarded_copy_x86_64.cc lists it; distances from each field
// to what it means.
struct GuardedBlock {
  std::int32_t begin;
  std::int32_t end;
  std::int32_t go_on;
};
}  // namespace
extern "C" {
[[gnu::visibility("hidden")]] extern const GuardedBlock __start_verbena_faults[];
[[gnu::visibility("hidden")]] extern const GuardedBlock __stop_verbena_faults[];
}
#endif

namespace verbena::memory {
namespace {

struct Previous {
  int signal;
  struct sigaction action;
};
// Read by the handler, written before it is installed. No destructor.
constinit Previous previous_segv{SIGSEGV, {}};
constinit Previous previous_bus{SIGBUS, {}};

// Sent by somebody (kill, sigqueue) or about memory that nobody is touching: the instruction at
// hand did nothing wrong.
bool is_asynchronous(int signal, const siginfo_t& info) {
  return info.si_code <= 0 || (signal == SIGBUS && info.si_code == BUS_MCEERR_AO);
}

#if defined(__x86_64__)
std::uintptr_t target_of(const std::int32_t& distance) {
  return reinterpret_cast<std::uintptr_t>(&distance) + static_cast<std::uintptr_t>(distance);
}

bool go_on_after_block(ucontext_t& context) {
  auto& counter = context.uc_mcontext.gregs[REG_RIP];
  const auto at = static_cast<std::uintptr_t>(counter);
  for (const GuardedBlock* b = __start_verbena_faults; b != __stop_verbena_faults; ++b) {
    if (at < target_of(b->begin) || at >= target_of(b->end)) continue;
    counter = static_cast<greg_t>(target_of(b->go_on));
    return true;
  }
  return false;
}
#else
bool go_on_after_block(ucontext_t&) { return false; }
#endif

void die_by_default(int signal, siginfo_t& info) {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  // A faulting instruction runs again when the handler returns, and kills with the true registers
  // and address. A signal that was sent has to be sent again.
  if (is_asynchronous(signal, info)) {
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), signal, &info);
  }
}

void hand_on(int signal, siginfo_t& info, void* context) {
  Previous& previous = signal == SIGSEGV ? previous_segv : previous_bus;
  const struct sigaction action = previous.action;
  if (action.sa_flags & SA_RESETHAND) previous.action = {};
  if (action.sa_flags & SA_SIGINFO) return action.sa_sigaction(signal, &info, context);
  if (action.sa_handler == SIG_DFL) return die_by_default(signal, info);
  if (action.sa_handler == SIG_IGN) {
    // The kernel does not let a thread ignore its own fault.
    if (!is_asynchronous(signal, info)) die_by_default(signal, info);
    return;
  }
  action.sa_handler(signal);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  auto& interrupted = *static_cast<ucontext_t*>(context);
  if (!is_asynchronous(signal, *info)) {
    if (go_on_after_block(interrupted)) return;
    if (sigjmp_buf* guard = fault_return) {
      // As the return from the handler would do it.
      pthread_sigmask(SIG_SETMASK, &interrupted.uc_sigmask, nullptr);
      siglongjmp(*guard, 1);
    }
  }
  hand_on(signal, *info, context);
}

bool is_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

// Whoever was there runs under the mask and flags it asked for, since ours have them too.
struct sigaction ours_over(const struct sigaction& old) {
  struct sigaction action{};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  if (is_handler(old)) {
    action.sa_mask = old.sa_mask;
    action.sa_flags = old.sa_flags & ~static_cast<int>(SA_RESETHAND);
  }
  // On the alternate stack where there is one: Go runs C on stacks of its own that have no room for
  // a handler.
  action.sa_flags |= SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = on_fault;
  return action;
}

void install(Previous& previous) {
  // Asked first, so that the handler knows whom to call from its first moment on.
  if (sigaction(previous.signal, nullptr, &previous.action) != 0) return;
  const struct sigaction action = ours_over(previous.action);
  sigaction(previous.signal, &action, nullptr);
}

}  // namespace

void install_fault_guard() {
  static constinit std::atomic<bool> installed{false};
  if (installed.load(std::memory_order_acquire)) return;
  static constinit Mutex lock;
  std::lock_guard guard(lock);
  if (installed.load(std::memory_order_relaxed)) return;
  install(previous_segv);
  install(previous_bus);
  installed.store(true, std::memory_order_release);
}

sigset_t signals_but_faults() {
  sigset_t set;
  sigfillset(&set);
  sigdelset(&set, SIGSEGV);
  sigdelset(&set, SIGBUS);
  return set;
}

}  // namespace verbena::memory
