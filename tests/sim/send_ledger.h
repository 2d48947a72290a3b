// SPDX-License-Identifier: MIT
// The truth about one send queue: what was posted, what its carrier was allowed to see, what the
// carrier said about it, and so which completions must come. It knows the rules of the
// specification in the simplest form, and none of the code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/test_clock.h"
#include "base/types.h"
#include "qp/queue_pair.h"

namespace verbena::sim {

struct PostedSend {
  std::uint64_t wr_id = 0;
  queues::SendOpcode opcode = queues::SendOpcode::kSend;
  std::uint8_t flags = 0;
  std::uint32_t immediate = 0;
  std::uint64_t remote_address = 0;
  MemoryKey remote_key{};
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
  std::uint32_t address_handle = 0;
  QpNum remote_qp{};
  std::uint32_t remote_qkey = 0;
  std::vector<Sge> sges;
  std::uint64_t length = 0;
  std::optional<queues::Status> local_error;  // what it must fail with before it is sent
  bool uses_revocable = false;                // of memory that may be deregistered any time

  // How it ended.
  bool is_done = false;
  bool is_flushed = false;
  std::optional<queues::Status> failed;

  bool reads() const {
    return opcode == queues::SendOpcode::kRead || opcode == queues::SendOpcode::kCompareSwap ||
           opcode == queues::SendOpcode::kFetchAdd;
  }
  bool is_fenced() const { return (flags & queues::kFence) != 0; }
};

class SendLedger {
 public:
  struct Limits {
    std::uint32_t depth = 0;
    bool is_reliable = true;
    bool signal_all = false;
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry = 0;
    std::uint8_t reads_out_max = 0;
    const bool* is_revoked = nullptr;  // whether the revocable memory is gone
  };
  SendLedger(Failures& failures, const Limits& limits);

  // The place of the one that is posted next was never used, or what lay there is done and its
  // completion was taken (10.8.5.1).
  bool has_room() const;
  void posted(PostedSend send);
  const PostedSend& at(std::uint32_t index) const { return sends_[index]; }
  std::size_t count() const { return sends_.size(); }

  // What next() gave; what was issued.
  void offered(const qp::Operation& op);
  void sent(std::uint32_t index);

  // What the window is about to be told.
  void told(std::uint32_t index, qp::Answer answer);
  void told_peer_lost();
  void memory_refused(std::uint32_t index);  // gather or scatter refused it: revoked

  void draining();
  void resumed();
  // The queue pair is in ERR or SQE. `for_a_reason`: something else than its own work request did
  // it.
  void stopped(bool for_a_reason);
  bool is_active() const { return active_; }
  bool is_drained() const { return done_ == drain_limit_; }

  void completed(const queues::Completion& completion);
  void finish();  // all of it must have been accounted for
  void forget();  // RESET, or completions were lost

  // For carriers: what is in flight in this round.
  std::uint32_t oldest() const { return done_; }
  std::uint32_t cursor() const { return cursor_; }
  std::uint32_t issued() const { return issued_; }
  bool has_read_before(std::uint32_t index) const;

 private:
  bool same(const PostedSend& send, const qp::Operation& op) const;
  void done_upto(std::uint32_t end);
  void fail(std::uint32_t index, queues::Status status);
  bool is_revoked() const { return *limits_.is_revoked; }
  bool is_signaled(const PostedSend& send) const {
    return limits_.signal_all || send.flags & queues::kSignaled;
  }

  Failures& failures_;
  Limits limits_;
  std::vector<PostedSend> sends_;
  std::uint32_t done_ = 0;
  std::uint32_t cursor_ = 0;
  std::uint32_t issued_ = 0;   // all below were sent once
  std::uint32_t offered_ = 0;  // all below were offered once
  std::uint32_t drain_limit_ = UINT32_MAX;
  std::uint32_t drain_posted_ = 0;
  std::uint32_t reported_ = 0;  // all below are accounted for
  std::uint8_t retries_left_ = 0;
  std::uint8_t rnr_left_ = 0;
  Instant not_before_;
  bool active_ = true;
  bool forgotten_ = false;
};

}  // namespace verbena::sim
