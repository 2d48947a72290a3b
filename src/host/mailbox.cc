// SPDX-License-Identifier: MIT
#include "host/mailbox.h"

#include <unistd.h>

#include <mutex>
#include <utility>

namespace verbena::host {

void Mailbox::open() {
  const std::lock_guard lock(mutex_);
  process_ = getpid();
  thread_ = gettid();
}

std::vector<Mailbox::Task> Mailbox::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(tasks_, {});
}

std::vector<Mailbox::Task> Mailbox::close() {
  const std::lock_guard lock(mutex_);
  thread_ = 0;
  return std::exchange(tasks_, {});
}

bool Mailbox::nudge() {
  if (getpid() != process_) return false;
  is_nudged_.store(true, std::memory_order_release);
  const pid_t thread = thread_.load(std::memory_order_relaxed);
  return thread != 0 && tgkill(process_, thread, kSignal) == 0;
}

bool Mailbox::post(Task task, Limit limit) {
  // Before the lock: a thread of the parent's may have held it when it forked us.
  if (getpid() != process_) return false;
  const std::lock_guard lock(mutex_);
  const bool is_full = limit == Limit::kKeep && tasks_.size() >= tasks_max_;
  if (thread_ == 0 || is_full) return false;
  tasks_.push_back(std::move(task));
  // Under the lock, so that the thread still exists.
  tgkill(process_, thread_, kSignal);
  return true;
}

}  // namespace verbena::host
