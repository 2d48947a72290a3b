// SPDX-License-Identifier: MIT
// What RingResponder serves; for its own files.
#pragma once

#include "local/ring_responder.h"

namespace verbena::local {

// A request as copied out of the ring; only its payload still lies there.
struct RingResponder::Request {
  alignas(kUnit) RequestRecord record;
  const std::byte* payload = nullptr;
  std::uint64_t source_identity = 0;  // of the region that lent payload lies in

  RequestKind kind() const { return static_cast<RequestKind>(record.head.kind); }
  bool is_lent() const { return record.head.flags & kLent; }
  bool is_first() const { return record.head.flags & kFirst; }
  bool is_last() const { return record.head.flags & kLast; }
  bool is_relayed() const { return record.head.flags & kRelayed; }
  // A target may have to answer a READ while the next message comes in.
  bool is_fetch() const { return is_relayed() && kind() == RequestKind::kRead; }
  std::span<const std::byte> bytes() const {
    const bool is_inline = record.piece_length <= kInlineMax && !is_lent();
    return {is_inline ? record.inline_payload : payload, record.piece_length};
  }
  MemoryKey key() const { return {record.remote_key}; }
  qp::Arrived arrived() const {
    qp::Arrived arrived;
    arrived.has_immediate = record.head.flags & kWithImmediate;
    arrived.invalidates = record.head.flags & kWithInvalidate;
    arrived.is_solicited = record.head.flags & kSolicitedEvent;
    arrived.immediate = record.immediate;
    return arrived;
  }
};

}  // namespace verbena::local
