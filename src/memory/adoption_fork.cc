// SPDX-License-Identifier: MIT
#include "memory/adoption_fork.h"

#include <pthread.h>

#include <mutex>

#include "base/mutex.h"

namespace verbena::memory {

struct ForkHandlers {
  static void before() {
    lock.lock();
    for (ForkParticipant* each = first; each; each = each->next_)
      each->before_fork();
  }
  static void in_parent() {
    for (ForkParticipant* each = first; each; each = each->next_)
      each->after_fork_in_parent();
    lock.unlock();
  }
  static void in_child() {
    for (ForkParticipant* each = first; each; each = each->next_)
      each->after_fork_in_child();
    lock.unlock();
  }

  static inline constinit Mutex lock;
  static inline constinit ForkParticipant* first = nullptr;
  static inline constinit bool are_installed = false;
};

bool join_forks(ForkParticipant& participant) {
  const std::lock_guard guard(ForkHandlers::lock);
  if (!ForkHandlers::are_installed) {
    ForkHandlers::are_installed =
        pthread_atfork(ForkHandlers::before, ForkHandlers::in_parent, ForkHandlers::in_child) == 0;
  }
  if (!ForkHandlers::are_installed) return false;
  participant.next_ = ForkHandlers::first;
  ForkHandlers::first = &participant;
  return true;
}

void leave_forks(ForkParticipant& participant) {
  const std::lock_guard guard(ForkHandlers::lock);
  for (ForkParticipant** at = &ForkHandlers::first; *at; at = &(*at)->next_) {
    if (*at != &participant) continue;
    *at = participant.next_;
    return;
  }
}

}  // namespace verbena::memory
