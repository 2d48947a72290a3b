// SPDX-License-Identifier: MIT
// The account of a queue: every work request that was posted ends in exactly one completion, in
// order; an unsignaled one may end without, by a later one that succeeds.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace chaos {

class SendLedger {
 public:
  void posted(std::uint64_t id, bool is_signaled) { open_.push_back({id, is_signaled}); }
  std::size_t open() const { return open_.size(); }
  bool has_failed() const { return has_failed_; }
  std::uint64_t oldest() const { return open_.front().id; }

  // Takes in a completion. What is wrong with it, if anything.
  std::optional<std::string> completed(std::uint64_t id, bool is_success) {
    if (is_success && has_failed_) return "success after a failure";
    // Those before it ended well, without a completion of their own.
    while (!open_.empty() && open_.front().id != id) {
      if (open_.front().is_signaled) return "a signaled request before it had no completion";
      if (has_failed_) return "an unsignaled request after a failure had no completion";
      open_.pop_front();
    }
    if (open_.empty()) return "nothing of this number is open";
    if (is_success && !open_.front().is_signaled) return "success of an unsignaled request";
    open_.pop_front();
    has_failed_ = !is_success;
    return std::nullopt;
  }

 private:
  struct Open {
    std::uint64_t id;
    bool is_signaled;
  };
  std::deque<Open> open_;
  bool has_failed_ = false;
};

// Receives of one queue pair complete in the order in which they were posted.
class ReceiveLedger {
 public:
  void posted(std::uint64_t id) { open_.push_back(id); }
  std::size_t open() const { return open_.size(); }
  std::optional<std::string> completed(std::uint64_t id) {
    if (open_.empty()) return "no receive is open";
    if (open_.front() != id) return "receives complete out of order";
    open_.pop_front();
    return std::nullopt;
  }

 private:
  std::deque<std::uint64_t> open_;
};

}  // namespace chaos
