// SPDX-License-Identifier: MIT
// The shortest way of what most messages are: SENDs of up to kTinyMax bytes, which lie in a few
// lines of the ring, between queue pairs that do nothing else at this moment. Whoever waits for a
// message waits for these instructions, too: so they are all in one place, without calls. What is
// unusual takes the short way, or the general one, which know of everything; these know when not to
// look.
#pragma once

#include "local/ring_carrier.h"
#include "memory/guarded_word.h"
#include "qp/responder_small.h"

namespace verbena::local {

inline constexpr std::uint8_t kTinyFlags = kFirst | kLast;
// The second word of such a record, but for how many units it has. Nothing was shown behind it.
inline constexpr std::uint32_t kTinyHead =
    std::uint32_t{kTinyFlags} << 24 | static_cast<std::uint32_t>(RequestKind::kSend) << 16;
inline constexpr std::uint32_t kTinyMax = 256;
static_assert(units_for(kTinyMax) <= kRequestUnits / 4);
constexpr std::uint32_t tiny_units(std::uint32_t length) {
  return length <= kInlineMax ? 1 : units_for(length);
}
constexpr std::size_t tiny_payload(std::uint32_t length) {
  return length <= kInlineMax ? offsetof(RequestRecord, inline_payload) : kUnit;
}

[[gnu::always_inline]] inline bool RingRequester::send_tiny(const Tiny& message,
                                                            Acknowledged acknowledged) {
  if (sent_ != 0 || broken_ || requests_.is_holding()) [[unlikely]]
    return false;
  const std::uint32_t units = tiny_units(message.length);
  std::byte* const room = requests_.reserve_at_once(units);
  if (!room) [[unlikely]]
    return false;
  if (!memory::guarded_copy_inline(room + tiny_payload(message.length), message.from,
                                   message.length)) [[unlikely]]
    return false;
  auto* const record = reinterpret_cast<RequestRecord*>(room);
  // As begin_at(), but for marks that are older than what is outstanding anyway.
  if (message.is_first_out) {
    skipped_ += message.index.value() - (sending_.value() + 1);
    acknowledged_ = number_of(message.index);
  }
  record->index = number_of(message.index);
  record->epoch = epoch_;
  record->total_length = message.length;
  record->piece_length = message.length;
  record->acknowledged = acknowledged;
  record->pace = message.measures_pace ? kMeasuresPace : kNoPace;
  record->immediate = 0;
  record->offset = 0;
  record->shared_queue = 0;
  requests_.publish(units, static_cast<std::uint8_t>(RequestKind::kSend), kTinyFlags);
  last_send_ = sending_ = message.index;
  raise(signal_, Signal::kMessage);
  return true;
}

[[gnu::always_inline]] inline bool RingRequester::take_tiny_acknowledgement(
    const Acknowledged& said, qp::SendWindow& window) {
  if (!conduit_ || broken_ || said.conduit != static_cast<std::uint32_t>(conduit_.id()))
      [[unlikely]]
    return false;
  if (responses_.has_record()) [[unlikely]]
    return false;
  if (said.executed == acknowledged_) return true;
  if (said.executed != acknowledged_ + 1 || last_fetch_) [[unlikely]]
    return false;
  if (!window.complete_only(index_of(acknowledged_))) [[unlikely]]
    return false;
  acknowledged_ = said.executed;
  ++done_;
  return true;
}

[[gnu::always_inline]] inline const std::byte* RingResponder::next_tiny() const {
  return is_plain_ ? requests_.front() : nullptr;
}

[[gnu::always_inline]] inline bool RingResponder::take_tiny(const std::byte* tiny,
                                                            qp::Responder& responder) {
  const std::uint32_t head = read_once(tiny, offsetof(RecordHead, extent));
  const std::uint32_t length = read_once(tiny, offsetof(RequestRecord, piece_length));
  const bool is_whole = length == read_once(tiny, offsetof(RequestRecord, total_length)) &&
                        read_once(tiny, offsetof(RequestRecord, offset)) == 0;
  if (length - 1 >= kTinyMax || !is_whole) [[unlikely]]
    return false;
  const std::uint32_t units = tiny_units(length);
  if (head != (kTinyHead | units) || !requests_.is_within_lap(units)) [[unlikely]]
    return false;
  const SmallName name{read_once(tiny, offsetof(RequestRecord, index)),
                       read_once(tiny, offsetof(RequestRecord, epoch))};
  const auto receive = responder.put_small({tiny + tiny_payload(length), length}, {});
  if (!receive) [[unlikely]]
    return false;
  const qp::Responder::Small done = responder.finish_small(receive, length, {});
  peer_measures_pace_ = read_once(tiny, offsetof(RequestRecord, pace)) == kMeasuresPace;
  requests_.consume(units);
  took_small(name, done, responder);
  return true;
}

[[gnu::always_inline]] inline bool RingCarrier::send_tiny(const RingRequester::Tiny& message) {
  if (outbound_ != Outbound::kAttached || lost_ || requester_.is_closed()) [[unlikely]]
    return false;
  return requester_.send_tiny(message, responder_.acknowledged());
}

[[gnu::always_inline]] inline bool RingCarrier::take_tiny(qp::Responder& responder,
                                                          qp::SendWindow& window) {
  const std::byte* const tiny = responder_.next_tiny();
  if (!tiny) [[unlikely]]
    return false;
  const bool is_taken =
      requester_.take_tiny_acknowledgement(RingResponder::said_with(tiny), window) &&
      responder_.take_tiny(tiny, responder);
  if (!is_taken) [[unlikely]]
    return false;
  responder_.small_were_taken();
  show_taken(true);
  return true;
}

[[gnu::always_inline]] inline void RingCarrier::show_taken(bool has_acknowledged) {
  if (!glance_) [[unlikely]]
    return;
  if (responder_.is_plain()) [[likely]] {
    glance_->show_request(responder_.next_tag(), responder_.wanted_tag(), responder_.last_lines());
  } else {
    show();
  }
  if (has_acknowledged) glance_->show_acknowledged(requester_.acknowledged());
}

}  // namespace verbena::local
