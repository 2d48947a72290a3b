// SPDX-License-Identifier: MIT
// The truth about receives: in which order they were posted, which message took which, and so which
// completions must come.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/test_clock.h"
#include "base/types.h"
#include "queues/completion_queue.h"

namespace verbena::sim {

struct PostedReceive {
  std::uint64_t wr_id = 0;
  std::vector<Sge> sges{};
  bool has_bad_key = false;
  std::uint64_t room() const {
    std::uint64_t bytes = 0;
    for (const Sge& sge : sges)
      bytes += sge.length;
    return bytes;
  }
};

// A queue of receives, of one queue pair or shared.
using PostedReceives = std::deque<PostedReceive>;

// What one queue pair does with them.
class ReceiveLedger {
 public:
  ReceiveLedger(Failures& failures, PostedReceives& queue, bool is_shared)
      : failures_(failures), queue_(queue), is_shared_(is_shared) {}

  // The receive that the next message gets; null when there is none.
  const PostedReceive* front() const {
    if (current_) return &*current_;
    return queue_.empty() ? nullptr : &queue_.front();
  }
  void take() {
    if (current_) return;
    current_ = queue_.front();
    queue_.pop_front();
  }
  // The current one has ended so.
  void ended(queues::Completion expected);
  // ERR: what is left of ours is flushed, also what is posted later.
  void flushed();
  void completed(const queues::Completion& completion);
  void finish();
  void forget() { forgotten_ = true; }
  std::uint64_t messages() const { return messages_; }

 private:
  Failures& failures_;
  PostedReceives& queue_;
  bool is_shared_;
  bool forgotten_ = false;
  std::optional<PostedReceive> current_;
  std::deque<queues::Completion> expected_;
  std::uint64_t messages_ = 0;
};

}  // namespace verbena::sim
