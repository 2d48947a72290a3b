// SPDX-License-Identifier: MIT
// The end of an XRC target at a conduit of another process that has shared receive queues of its
// domain (qp/relay.h): writes pieces of requests into it, and reads the answers. At the other end
// is a RingResponder as of any target.
//
// What the other process writes is hostile: an answer to nothing, or one that does not fit what was
// asked for, ends this.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "local/conduit.h"
#include "qp/relay.h"

namespace verbena::local {

class RingRelay {
 public:
  explicit RingRelay(Conduit conduit);

  // False: there is no room yet.
  bool send(const qp::RelayPiece& piece);
  std::uint32_t outstanding() const { return static_cast<std::uint32_t>(pending_.size()); }
  std::optional<qp::RelayReply> reply();
  void take_reply();
  // Nothing will be answered any more but what reply() gives.
  bool is_over() const;
  Signal take_signal();
  void close();

 private:
  struct Pending {
    qp::OpKind kind;
    std::uint32_t length;
  };
  std::uint32_t oldest() const { return next_index_ - outstanding(); }
  std::optional<qp::RelayReply> reply_by_record();
  std::optional<qp::RelayReply> done();
  std::optional<qp::RelayReply> broken();

  Conduit conduit_;
  RingWriter requests_;
  RingReader responses_;
  std::uint32_t next_index_ = 0;
  std::uint32_t epoch_ = 0;
  std::deque<Pending> pending_;
  std::uint32_t received_ = 0;  // bytes of the oldest one, a READ
  bool has_value_ = false;      // of the oldest one, an atomic
  std::optional<qp::RelayReply> reply_;
  Unit unit_;                // of the response that is the reply
  std::uint32_t units_ = 0;  // to be consumed with it
  Signal signal_ = Signal::kNone;
  bool broken_ = false;
};

}  // namespace verbena::local
