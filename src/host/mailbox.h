// SPDX-License-Identifier: MIT
// How other threads reach the control thread: a queue, and a signal that says "look". The signal is
// SIGURG, sent to that one thread (tgkill), where it is blocked and read from a signalfd. It needs
// no descriptor on the sender's side; a blocked signal is queued whatever its disposition; and
// should it ever arrive anywhere else, its default action is to do nothing.
//
// One thing discards a pending signal: the program setting SIGURG's disposition to "ignore" in that
// very moment. Then the next signal, or the control thread's slow heartbeat, finds the task.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <functional>
#include <vector>

#include "base/mutex.h"

namespace verbena::host {

class Mailbox {
 public:
  using Task = std::function<void()>;
  static constexpr int kSignal = SIGURG;

  explicit Mailbox(std::size_t tasks_max) : tasks_max_(tasks_max) {}

  // On the control thread: from now on it can be woken.
  void open();
  // On the control thread: what was posted, in order.
  std::vector<Task> take();
  // On the control thread: the same, and nothing can be posted any more.
  std::vector<Task> close();

  // Any thread. False: full, or closed, or this is a forked child.
  enum class Limit : bool { kKeep, kIgnore };
  bool post(Task task, Limit limit = Limit::kKeep);
  // Any thread, without a lock and without the heap: makes the control thread look. False: there is
  // none here.
  bool nudge();
  // On the control thread: whether somebody did since the last call.
  bool take_nudge() { return is_nudged_.exchange(false, std::memory_order_acq_rel); }

 private:
  Mutex mutex_;
  std::vector<Task> tasks_;
  const std::size_t tasks_max_;
  pid_t process_ = 0;
  std::atomic<pid_t> thread_{0};  // 0: closed
  std::atomic<bool> is_nudged_{false};
};

}  // namespace verbena::host
