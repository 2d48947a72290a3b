// SPDX-License-Identifier: MIT
#include "watcher.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "qp/operation.h"

namespace verbena::fabric {

using wire::AethKind;
using wire::Kind;
using wire::NakCode;
using wire::OpcodeShape;
using wire::Packet;

namespace {

constexpr std::size_t kNear = 1 << 16;

// docs/decisions/0012: between ends that agreed, a NAK with this mark in its reserved bits names a
// gap, acknowledges nothing, and has the number of missing packets for an MSN.
constexpr std::uint8_t kGapMark = 0x4D;
bool names_gap(const Packet& packet) {
  return packet.mark == kGapMark && packet.syndrome.kind() == AethKind::kNak;
}

// docs/decisions/0030: a SEND with this mark ends with an ACK: a zero, its PSN, its AETH.
constexpr std::uint8_t kPiggybackMark = 0x39;
constexpr std::uint8_t kAgreedMark = 0x35;
struct Apart {
  Packet request;
  Packet acknowledge;
};
constexpr std::size_t kPiggybackBytes = 8;
bool takes_along(const Packet& packet) {
  return packet.mark == kPiggybackMark && !packet.shape->is_response;
}
bool has_acknowledge(const Packet& packet) {
  const OpcodeShape& shape = *packet.shape;
  const bool is_whole = shape.starts_message() && shape.ends_message();
  if (shape.kind != Kind::kSend || !is_whole || packet.payload.size() < kPiggybackBytes)
    return false;
  const auto bytes = packet.payload.last(kPiggybackBytes);
  return bytes[0] == std::byte{0} && (bytes[4] >> 5) == std::byte{0};
}
Apart apart(const Packet& both) {
  const auto at = [bytes = both.payload.last(kPiggybackBytes)](std::size_t i) {
    return std::to_integer<std::uint32_t>(bytes[i]);
  };
  Apart made{.request = both, .acknowledge = {}};
  made.request.mark = kAgreedMark;
  made.request.payload = both.payload.first(both.payload.size() - kPiggybackBytes);
  Packet& acknowledge = made.acknowledge;
  acknowledge.opcode = wire::Opcode::of(both.opcode.service(), wire::Code::kAcknowledge);
  acknowledge.shape = &wire::shape_of(acknowledge.opcode);
  acknowledge.pkey = both.pkey;
  acknowledge.mark = kAgreedMark;
  acknowledge.dest_qp = both.dest_qp;
  acknowledge.psn = wire::Psn(at(1) << 16 | at(2) << 8 | at(3));
  acknowledge.syndrome = wire::Syndrome(static_cast<std::uint8_t>(at(4)));
  acknowledge.msn = wire::Msn(at(5) << 16 | at(6) << 8 | at(7));
  return made;
}

std::uint64_t mix(std::uint64_t digest, std::uint64_t value) {
  return (digest ^ value) * 0x100000001B3;
}
// What is sent again is the same, but for what asks for an answer and what tells the way.
std::uint64_t digest_of(const Packet& packet) {
  std::uint64_t digest = mix(0xCBF29CE484222325, packet.opcode.value);
  for (const std::uint64_t value :
       {std::uint64_t{packet.is_solicited}, std::uint64_t{packet.remote_key.value},
        packet.remote_address, std::uint64_t{packet.dma_length}, packet.swap_or_add, packet.compare,
        std::uint64_t{packet.immediate}, std::uint64_t{packet.invalidate_key.value},
        std::uint64_t{packet.srq_number}, std::uint64_t{packet.payload.size()}})
    digest = mix(digest, value);
  for (const std::byte byte : packet.payload)
    digest = mix(digest, static_cast<std::uint64_t>(byte));
  return digest;
}

bool is_atomic(Kind kind) { return kind == Kind::kCompareSwap || kind == Kind::kFetchAdd; }
Kind kind_of(wire::Opcode opcode) { return wire::shape_of(opcode).kind; }

}  // namespace

void Direction::fail(const char* what, const Packet& packet) const {
  failures_.add(std::string("on the wire: ") + what + ": " + wire::name_of(packet.opcode) +
                " of PSN " + std::to_string(packet.psn.value()) + " to " +
                std::to_string(packet.dest_qp.value));
}

std::optional<std::size_t> Direction::place_of(wire::Psn psn) const {
  // From the end, for the line may be longer than half of the circle in theory only.
  const std::int32_t behind =
      wire::Psn(connection_.first_psn) + static_cast<std::uint32_t>(line_.size()) - psn;
  const auto at = static_cast<std::int64_t>(line_.size()) - behind;
  if (at < 0 || at > static_cast<std::int64_t>(line_.size() + kNear)) return std::nullopt;
  return static_cast<std::size_t>(at);
}

bool Direction::is_answer_expected(const Place& place) const {
  const Kind kind = kind_of(place.opcode);
  return kind == Kind::kReadRequest || is_atomic(kind) || kind == Kind::kFlush ||
         kind == Kind::kAtomicWrite;
}

bool Direction::has_unanswered_before(std::size_t at) const {
  return std::any_of(
      line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(at),
      [this](const Place& place) { return is_answer_expected(place) && !place.is_answered; });
}

unsigned Direction::reads_out() const {
  unsigned count = 0;
  for (std::size_t i = 0; i < line_.size(); ++i) {
    const Place& place = line_[i];
    const Kind kind = kind_of(place.opcode);
    if (kind != Kind::kReadRequest && !is_atomic(kind)) continue;
    count += place.offset + 1 == place.count && !place.is_answered;
  }
  return count;
}

// -- requests as they leave -----------------------------------------------------------------------

void Direction::request_sent(const Packet& packet) {
  const std::optional<std::size_t> at = place_of(packet.psn);
  if (packet.pkey != connection_.pkey || !packet.is_migrated) fail("a wrong BTH", packet);
  if (packet.opcode.service() != connection_.service) fail("a request of another service", packet);
  if (is_refused_) fail("sent after a refusal", packet);
  if (!at || *at > line_.size()) return fail("a PSN that is not next", packet);
  check_held_back(packet, *at);
  if (*at == line_.size()) {
    check_new(packet);
    is_repeating_ = false;
  } else {
    check_repeated(packet, *at);
    is_repeating_ = true;
  }
}

void Direction::check_new(const Packet& packet) {
  check_message(packet);
  const Kind kind = packet.shape->kind;
  if ((kind == Kind::kReadRequest || is_atomic(kind)) && reads_out() >= connection_.reads_max)
    fail("more READs than the peer has room for", packet);
  append(packet);
}

void Direction::check_message(const Packet& packet) {
  const OpcodeShape& shape = *packet.shape;
  if (!wire::may_follow(message_ ? &*message_ : nullptr, shape))
    fail("a packet that cannot follow the one before", packet);
  const bool is_full = packet.payload.size() == connection_.path_mtu;
  if (packet.payload.size() > connection_.path_mtu || (!shape.ends_message() && !is_full))
    fail("a payload that is not of the path MTU", packet);
  if (shape.reth && shape.starts_message()) message_left_ = packet.dma_length;
  if (shape.kind == Kind::kWrite) {
    if (packet.payload.size() > message_left_) fail("more bytes than the RETH says", packet);
    message_left_ -=
        static_cast<std::uint32_t>(std::min<std::size_t>(message_left_, packet.payload.size()));
    if (shape.ends_message() && message_left_ != 0) fail("fewer bytes than the RETH says", packet);
  }
  message_ = shape;
}

void Direction::append(const Packet& packet) {
  const std::uint32_t messages = line_.empty() ? 0 : line_.back().messages;
  const bool is_read = packet.shape->kind == Kind::kReadRequest;
  const std::uint32_t count =
      is_read ? wire::packets_of(packet.dma_length, connection_.path_mtu) : 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    line_.push_back({.opcode = packet.opcode,
                     .digest = i == 0 ? digest_of(packet) : 0,
                     .offset = i,
                     .count = count,
                     .address = packet.remote_address,
                     .length = packet.dma_length,
                     .messages = messages + (packet.shape->ends_message() ? 1 : 0)});
  }
}

void Direction::check_repeated(const Packet& packet, std::size_t at) {
  if (!is_reliable()) return fail("sent twice", packet);
  const Place& place = line_[at];
  if (at < known_upto_ && !is_answer_expected(place))
    fail("sent again although it was acknowledged", packet);
  if (packet.shape->kind != Kind::kReadRequest) {
    if (place.digest != digest_of(packet)) fail("sent again with other contents", packet);
    return;
  }
  // The rest of a READ, from its first missing answer on (9.7.3.1), perhaps not to its end.
  const std::uint64_t skipped = std::uint64_t{place.offset} * connection_.path_mtu;
  if (kind_of(place.opcode) != Kind::kReadRequest ||
      packet.remote_address != place.address + skipped ||
      packet.dma_length > place.length - skipped)
    fail("a READ sent again that asks for something else", packet);
}

// After "not ready" the peer is left alone for as long as it said (9.7.5.2.8).
void Direction::check_held_back(const Packet& packet, std::size_t at) {
  if (!held_back_at_ || at < *held_back_at_) return;
  // Who keeps what comes ahead may have asked for just that.
  if (packet.mark != 0 && at != *held_back_at_) return;
  if (failures_.now() < held_back_until_) fail("sent while held back", packet);
  held_back_at_.reset();
}

// -- requests as they arrive ----------------------------------------------------------------------

Serving Direction::serving() const {
  if (has_refused_) return Serving::kRefused;
  if (was_not_ready_) return Serving::kNotReady;
  if (has_gap_) return Serving::kGap;
  if (expected_ == 0) return Serving::kIdle;
  const OpcodeShape& before = wire::shape_of(line_[expected_ - 1].opcode);
  if (before.ends_message()) return Serving::kIdle;
  return before.kind == Kind::kSend ? Serving::kInSend : Serving::kInWrite;
}

Asked Direction::asked(const Packet& packet, std::size_t at) const {
  if (at > expected_) return Asked::kAhead;
  const bool is_again = at < expected_;
  const bool starts = packet.shape->starts_message();
  const Kind kind = packet.shape->kind;
  if (kind == Kind::kSend)
    return is_again ? Asked::kAgainSend : starts ? Asked::kSendStart : Asked::kSendMore;
  if (kind == Kind::kWrite)
    return is_again ? Asked::kAgainWrite : starts ? Asked::kWriteStart : Asked::kWriteMore;
  if (kind == Kind::kReadRequest) return is_again ? Asked::kAgainRead : Asked::kRead;
  if (is_atomic(kind)) return is_again ? Asked::kAgainAtomic : Asked::kAtomic;
  return is_again ? Asked::kAgainFlush : Asked::kFlush;
}

void Direction::request_delivered(const Packet& packet, bool is_marked) {
  marked_ += is_marked;
  const std::optional<std::size_t> at = place_of(packet.psn);
  if (!at || *at >= line_.size() || !is_reliable()) return;
  ++coverage_.responder[static_cast<std::size_t>(serving())]
                       [static_cast<std::size_t>(asked(packet, *at))];
  const std::uint32_t count =
      kind_of(line_[*at].opcode) == Kind::kReadRequest && line_[*at].offset == 0 ? line_[*at].count
                                                                                 : 1;
  if (*at > expected_) has_gap_ = true;
  if (*at > expected_ && connection_.keeps_order) return;
  if (delivered_.size() < *at + count) delivered_.resize(*at + count);
  std::fill_n(delivered_.begin() + static_cast<std::ptrdiff_t>(*at), count, true);
  if (*at == expected_) has_gap_ = was_not_ready_ = false;
  while (expected_ < delivered_.size() && delivered_[expected_])
    ++expected_;
  farthest_ = std::max(farthest_, expected_);
}

// -- answers as they leave ------------------------------------------------------------------------

void Direction::response_sent(const Packet& packet) {
  if (packet.shape->kind == Kind::kCongestionNotification) {
    if (++notifications_ > marked_) fail("a notification of nothing", packet);
    return;
  }
  if (packet.opcode.service() != connection_.service) fail("an answer of another service", packet);
  if (packet.pkey != connection_.pkey) fail("an answer of another partition", packet);
  const std::optional<std::size_t> at = place_of(packet.psn);
  if (!at || *at > line_.size()) return fail("an answer to nothing", packet);
  if (packet.shape->aeth) check_msn(packet, *at);
  if (packet.shape->kind == Kind::kAcknowledge) return check_acknowledge(packet, *at);
  check_answer(packet, *at);
}

// As many messages as are executed: no more than have come, no fewer than what is answered says.
void Direction::check_msn(const Packet& packet, std::size_t at) {
  const bool is_refusal = packet.syndrome.kind() != AethKind::kAck;
  if (names_gap(packet)) return;
  const std::uint32_t complete = farthest_ == 0 ? 0 : line_[farthest_ - 1].messages;
  if (wire::Msn(complete) - packet.msn < 0) fail("an MSN of messages that have not come", packet);
  const std::size_t executed = is_refusal ? at : at + 1;
  if (executed == 0 || executed > line_.size()) return;
  if (packet.msn - wire::Msn(line_[executed - 1].messages) < 0)
    fail("an MSN of fewer messages than are acknowledged", packet);
}

void Direction::check_acknowledge(const Packet& packet, std::size_t at) {
  const wire::Syndrome syndrome = packet.syndrome;
  if (!syndrome.is_defined()) return fail("a reserved syndrome", packet);
  switch (syndrome.kind()) {
    case AethKind::kAck:
      if (at >= expected_) fail("acknowledged what has not come", packet);
      return;
    case AethKind::kRnrNak:
      if (at >= farthest_) return fail("not ready for what has not come", packet);
      // It was not executed: it will come again, and is expected.
      expected_ = at;
      delivered_.resize(at);
      was_not_ready_ = true;
      return;
    case AethKind::kNak: break;
    case AethKind::kReserved: return;
  }
  if (syndrome.nak_code() == NakCode::kPsnSequenceError) {
    if (!names_gap(packet) && at > expected_) fail("missed what is not next", packet);
    return;
  }
  if (at >= farthest_ && at >= delivered_.size()) fail("refused what has not come", packet);
  has_refused_ = true;
}

void Direction::check_answer(const Packet& packet, std::size_t at) {
  if (at >= line_.size() || at >= expected_) return fail("answered what has not come", packet);
  Place& place = line_[at];
  if (!is_answer_expected(place)) return fail("an answer to what wants none", packet);
  const Kind asked = kind_of(place.opcode);
  if (packet.shape->kind == Kind::kAtomicAcknowledge) {
    if (!is_atomic(asked)) return fail("an atomic's answer to something else", packet);
    if (place.original && *place.original != packet.original)
      fail("an atomic answered in two ways", packet);
    place.original = packet.original;
    return;
  }
  if (is_atomic(asked)) return fail("another answer to an atomic", packet);
  if (asked != Kind::kReadRequest) {
    if (!packet.payload.empty() || packet.shape->place != wire::Place::kOnly)
      fail("bytes in the answer to a FLUSH", packet);
    return;
  }
  const std::uint64_t skipped = std::uint64_t{place.offset} * connection_.path_mtu;
  const std::size_t left = place.length - skipped;
  if (packet.payload.size() != std::min<std::size_t>(left, connection_.path_mtu))
    fail("an answer of another length", packet);
}

// -- answers as they arrive -----------------------------------------------------------------------

Asking Direction::asking() const {
  if (is_refused_) return Asking::kRefused;
  if (held_back_at_ && failures_.now() < held_back_until_) return Asking::kHeldBack;
  const bool waits = acknowledged_ < line_.size() || has_unanswered_before(line_.size());
  if (!waits) return Asking::kIdle;
  return is_repeating_ ? Asking::kRepeating : Asking::kWaiting;
}

void Direction::note(Answered answered) {
  ++coverage_.requester[static_cast<std::size_t>(asking())][static_cast<std::size_t>(answered)];
}

void Direction::response_delivered(const Packet& packet, bool is_understood) {
  if (!is_reliable()) return;
  if (packet.shape->kind == Kind::kCongestionNotification) return note(Answered::kNotification);
  const std::optional<std::size_t> at = place_of(packet.psn);
  if (!at) return;
  is_understood_ = is_understood;
  if (packet.shape->kind == Kind::kAcknowledge) return take_acknowledge(packet, *at);
  if (*at < line_.size()) take_answer(packet, *at);
}

void Direction::take_acknowledge(const Packet& packet, std::size_t at) {
  const wire::Syndrome syndrome = packet.syndrome;
  const bool is_new = at >= acknowledged_;
  if (syndrome.kind() == AethKind::kAck) {
    note(!is_new                  ? Answered::kNothingNew
         : at + 1 == line_.size() ? Answered::kAll
                                  : Answered::kSome);
    return acknowledge_before(at + 1);
  }
  if (syndrome.kind() == AethKind::kRnrNak) {
    note(is_new ? Answered::kNotReady : Answered::kNothingNew);
    if (!is_new) return;
    acknowledge_before(at);
    // Answers before it come first; it will be said again.
    if (has_unanswered_before(at)) return;
    held_back_at_ = at;
    held_back_until_ = failures_.now() + qp::rnr_delay(syndrome.code());
    return;
  }
  if (syndrome.nak_code() == NakCode::kPsnSequenceError) {
    note(is_new ? Answered::kSequence : Answered::kNothingNew);
    if (!names_gap(packet)) acknowledge_before(at);
    return;
  }
  note(is_new ? Answered::kRefusal : Answered::kNothingNew);
  if (!is_new) return;
  acknowledge_before(at);
  // What is answered late may still be missing before it.
  is_refused_ = !has_unanswered_before(at);
}

void Direction::take_answer(const Packet& packet, std::size_t at) {
  Place& place = line_[at];
  if (packet.shape->kind == Kind::kAtomicAcknowledge) {
    note(place.is_answered ? Answered::kNothingNew : Answered::kAtomic);
  } else if (place.is_answered) {
    note(Answered::kReadOld);
  } else {
    const bool is_next = place.offset == 0 || line_[at - 1].is_answered;
    note(is_next ? Answered::kReadNext : Answered::kReadAhead);
  }
  place.is_answered = true;
  acknowledge_before(at + 1);
}

void Direction::acknowledge_before(std::size_t at) {
  acknowledged_ = std::max(acknowledged_, std::min(at, line_.size()));
  if (is_understood_) known_upto_ = std::max(known_upto_, std::min(at, line_.size()));
  if (held_back_at_ && acknowledged_ > *held_back_at_) held_back_at_.reset();
}

void Direction::check_at_rest() const {
  if (expected_ == line_.size() && acknowledged_ == line_.size()) return;
  failures_.add("on the wire: to " + std::to_string(connection_.responder.value) + " at rest " +
                std::to_string(expected_) + " of " + std::to_string(line_.size()) +
                " are executed, and " + std::to_string(acknowledged_) + " acknowledged");
}

// -- all of them ----------------------------------------------------------------------------------

void WireCoverage::add(const WireCoverage& other) {
  const auto sum = [](auto& to, const auto& from) {
    for (std::size_t i = 0; i < to.size(); ++i)
      for (std::size_t j = 0; j < to[i].size(); ++j)
        to[i][j] += from[i][j];
  };
  sum(requester, other.requester);
  sum(responder, other.responder);
}

void Watcher::watch(const Connection& connection) {
  directions_.push_back(std::make_unique<Direction>(connection, failures_, coverage_));
  ends_[connection.responder].requests = directions_.back().get();
  ends_[connection.responder].has_agreed = false;
  ends_[connection.requester].responses = directions_.back().get();
}

void Watcher::trace(const char* what, const Packet& packet) const {
  std::printf("%10" PRId64 " %s %06x %-36s PSN %u", failures_.now().nanoseconds() - 1'000'000'000,
              what, packet.dest_qp.value, wire::name_of(packet.opcode), packet.psn.value());
  if (packet.shape->aeth)
    std::printf(" syndrome %02x MSN %u", packet.syndrome.value(), packet.msn.value());
  if (packet.mark != 0) std::printf(" mark %02x", packet.mark);
  std::printf("\n");
}

void Watcher::sent(const Packet& packet) {
  if (is_tracing) trace("sent to", packet);
  const auto found = ends_.find(packet.dest_qp);
  if (found == ends_.end()) return failures_.add("on the wire: a packet for no queue pair");
  if (takes_along(packet)) {
    const bool fits = found->second.requests->has_room_for(packet.payload.size());
    if (!fits || !has_acknowledge(packet))
      return failures_.add("on the wire: a SEND that takes no ACK along, and says so");
    const Apart both = apart(packet);
    sent(both.request);
    return sent(both.acknowledge);
  }
  if (packet.shape->deth) return;
  const bool is_answer =
      packet.shape->is_response || packet.shape->kind == Kind::kCongestionNotification;
  if (is_answer)
    found->second.responses->response_sent(packet);
  else
    found->second.requests->request_sent(packet);
}

void Watcher::delivered(const Packet& packet, bool is_marked) {
  if (is_tracing) trace("taken by", packet);
  const auto found = ends_.find(packet.dest_qp);
  if (found == ends_.end() || packet.shape->deth) return;
  Ends& end = found->second;
  const bool is_its_turn = packet.shape->is_response ? end.responses->is_in_line(packet.psn)
                                                     : end.requests->is_next(packet.psn);
  end.has_agreed |= is_its_turn && packet.mark != 0;
  if (takes_along(packet) && has_acknowledge(packet)) {
    const Apart both = apart(packet);
    delivered(both.request, is_marked);
    if (is_tracing) trace("taken by", both.acknowledge);
    // Somebody whose first packets were lost has not agreed: to him the bits behind mean nothing.
    return end.responses->response_delivered(both.acknowledge, end.has_agreed);
  }
  if (packet.shape->is_response || packet.shape->kind == Kind::kCongestionNotification) {
    // A mark on an answer counts for whoever gets it, as one on a request.
    found->second.requests->marked(is_marked);
    return found->second.responses->response_delivered(packet);
  }
  found->second.requests->request_delivered(packet, is_marked);
}

}  // namespace verbena::fabric
