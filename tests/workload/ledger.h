// SPDX-License-Identifier: MIT
// The account of a send queue: every work request that was posted ends in exactly one completion,
// in order; an unsignaled one may end without, by a later one that succeeds, or with the queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace verbena::workload {

class SendLedger {
 public:
  // Requests that end, oldest first; all but the last one of a completion without one of their own.
  struct Ended {
    std::size_t count = 0;
    const char* wrong = nullptr;
  };

  void posted(std::uint64_t id, bool is_signaled) { open_.push_back({id, is_signaled}); }
  std::size_t open() const { return open_.size(); }
  bool has_failed() const { return has_failed_; }

  Ended completed(std::uint64_t id, bool is_success) {
    if (is_success && has_failed_) return {.wrong = "success after a failure"};
    Ended ended;
    for (; !open_.empty() && open_.front().id != id; ++ended.count) {
      if (const char* wrong = wrong_without_completion()) return {.wrong = wrong};
      open_.pop_front();
    }
    if (open_.empty()) return {.wrong = "a completion of nothing"};
    if (is_success && !open_.front().is_signaled)
      return {.wrong = "a completion that nobody asked for"};
    open_.pop_front();
    ++ended.count;
    has_failed_ |= !is_success;
    return ended;
  }
  // No more completions come: what is open has ended well, and nobody wanted to know.
  Ended closed() {
    Ended ended;
    for (; !open_.empty(); ++ended.count) {
      if (const char* wrong = wrong_without_completion()) return {.wrong = wrong};
      open_.pop_front();
    }
    return ended;
  }
  // How what is open ended is lost.
  std::size_t forget() {
    const std::size_t count = open_.size();
    open_.clear();
    return count;
  }

 private:
  struct Open {
    std::uint64_t id;
    bool is_signaled;
  };
  const char* wrong_without_completion() const {
    if (open_.front().is_signaled) return "a signaled request had no completion";
    return has_failed_ ? "a request after a failure had no completion" : nullptr;
  }

  std::deque<Open> open_;
  bool has_failed_ = false;
};

}  // namespace verbena::workload
