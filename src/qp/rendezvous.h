// SPDX-License-Identifier: MIT
// Messages that a queue pair fetches: a rendezvous that has matched a tag (tag_matcher.h). It READs
// the message into the entry's buffers and tells the peer so by a message of its own, both on its
// send queue, where these work requests have places that the program's do not take.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "qp/operation.h"
#include "qp/reason.h"
#include "qp/tag_matcher.h"
#include "queues/completion_queue.h"
#include "queues/work_queue.h"

namespace verbena::qp {

// The indices of the program's last work requests, as many as it has places. With the queue pair's
// lock.
class ProgramPlaces {
 public:
  explicit ProgramPlaces(std::uint32_t count) : last_(count) {}
  // Of the one whose place the `nth` from now on takes, from 0 on; none: nobody's.
  std::optional<std::uint32_t> former(std::size_t nth) const {
    const std::uint64_t number = posted_ + nth;
    return number < last_.size() ? std::nullopt : std::optional(last_[number % last_.size()]);
  }
  void posted(std::uint32_t index) { last_[posted_++ % last_.size()] = index; }
  void forget() { posted_ = 0; }

 private:
  std::vector<std::uint32_t> last_;
  std::uint64_t posted_ = 0;
};

// With the queue pair's lock.
class RendezvousQueue {
 public:
  // So many are fetched at a time; each takes two places of the send queue.
  static constexpr std::uint32_t kAtATime = 8;
  static constexpr std::uint32_t kPlaces = 2 * kAtATime;
  // More of the send queue: places are free again a little after their work requests are done.
  static constexpr std::uint32_t kReserve = 2 * kPlaces;
  static constexpr std::uint32_t kFinishBytes = 16;  // inline

  RendezvousQueue(QpNum qp, TagMatcher& tags, queues::SendQueue& queue)
      : qp_(qp), tags_(tags), queue_(queue) {}

  void add(TagHandle entry);
  // Posts as many as may be on their way. Only where work requests can be posted.
  void post();
  // Of internal work requests. False: the program does not hear of it, as the queue was full.
  bool done(std::uint64_t wr_id, OpKind kind, queues::Status status, Reason reason);
  // Those that were not posted end, too. False as done().
  bool flush();
  // All of them, and nobody hears of it: the queue pair begins anew, or is gone.
  void forget();
  // Places of the send queue that are taken.
  std::uint32_t places() const { return reads_ + finishes_; }

 private:
  std::optional<TagHandle> take_first();
  bool complete(TagHandle entry, queues::Status status, Reason reason);
  void post_read(TagHandle entry);
  void post_finish(const Rendezvous& message);
  queues::SendWqe& new_wqe(queues::SendOpcode opcode, std::uint64_t wr_id);

  const QpNum qp_;
  TagMatcher& tags_;
  queues::SendQueue& queue_;
  TagHandle first_;  // that wait; 0: none
  TagHandle last_;
  TagHandle posted_[kAtATime] = {};  // being fetched
  std::uint32_t reads_ = 0;
  std::uint32_t finishes_ = 0;
};

}  // namespace verbena::qp
