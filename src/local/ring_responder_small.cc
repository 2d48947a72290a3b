// SPDX-License-Identifier: MIT
// The short way of small messages: they are taken as they lie in the ring, by whoever polls.
#include <cstring>

#include "local/ring_request.h"
#include "qp/responder_small.h"

namespace verbena::local {
namespace {

RequestKind kind_at(const std::byte* front) {
  return static_cast<RequestKind>(front[offsetof(RecordHead, kind)]);
}
bool is_of_sends(const std::byte* front) {
  const RequestKind kind = kind_at(front);
  return kind == RequestKind::kSend || kind == RequestKind::kSendRow;
}

}  // namespace

const std::byte* RingResponder::next_small() {
  const std::byte* front = is_plain_ ? requests_.front() : nullptr;
  if (front && !is_of_sends(front)) [[unlikely]] {
    front = requests_.pass_filler() ? requests_.front() : nullptr;
    if (front && !is_of_sends(front)) front = nullptr;
  }
  return front;
}

std::optional<RingResponder::SmallTaken> RingResponder::take_small(const std::byte* front,
                                                                   std::uint32_t most,
                                                                   qp::Responder& responder) {
  if (kind_at(front) == RequestKind::kSendRow) return take_small_of_row(front, most, responder);
  const auto read = [front](std::size_t offset) { return read_once(front, offset); };
  constexpr std::uint32_t kNamed = kNamesSource | kLent;
  constexpr std::uint32_t kMayHave = kWithImmediate | kSolicitedEvent | kNamed;
  constexpr auto kSend = static_cast<std::uint32_t>(RequestKind::kSend);
  constexpr std::uint32_t kWholeSend = std::uint32_t{kFirst | kLast} << 24 | kSend << 16;
  const std::uint32_t head = read(offsetof(RecordHead, extent));
  const std::uint32_t units = requests_.fetch_row(static_cast<std::uint16_t>(head));
  const std::uint32_t length = read(offsetof(RequestRecord, piece_length));
  const std::uint32_t named = head >> 24 & kNamed;
  const std::size_t room = named ? kLentMax : units == 1 ? kInlineMax : (units - 1) * kUnit;
  const bool is_small = (head & ~(kMayHave << 24) & ~0xffffu) == kWholeSend && length <= room &&
                        length == read(offsetof(RequestRecord, total_length)) &&
                        read(offsetof(RequestRecord, offset)) == 0 &&
                        requests_.is_within_lap(units);
  // What names its source and is not lent wants to be lent the next time.
  if (!is_small || (named != 0 && named != kNamed)) return std::nullopt;
  qp::Arrived arrived;
  arrived.has_immediate = head >> 24 & kWithImmediate;
  arrived.is_solicited = head >> 24 & kSolicitedEvent;
  arrived.immediate = read(offsetof(RequestRecord, immediate));
  const std::uint32_t index = read(offsetof(RequestRecord, index));
  auto done = qp::Responder::Small::kNo;
  if (named == 0) {
    const std::byte* const bytes =
        front + (length <= kInlineMax ? offsetof(RequestRecord, inline_payload) : kUnit);
    done = responder.receive_small({bytes, length}, arrived);
  } else {
    done = receive_lent(front, length, arrived, responder);
  }
  if (done == qp::Responder::Small::kNo) return std::nullopt;
  peer_measures_pace_ = read(offsetof(RequestRecord, pace)) == kMeasuresPace;
  requests_.consume(units);
  took_small({index, read(offsetof(RequestRecord, epoch))}, done, responder);
  return SmallTaken{1, length};
}

qp::Responder::Small RingResponder::receive_lent(const std::byte* front, std::uint32_t length,
                                                 const qp::Arrived& arrived,
                                                 qp::Responder& responder) const {
  Source source;
  std::memcpy(&source, front + offsetof(RequestRecord, source), sizeof source);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const auto region = peer_ && length != 0 ? peer_->find({source.key}) : std::nullopt;
  const auto lent = region ? lent_in(*region, source.address, length) : std::nullopt;
  if (!lent) return qp::Responder::Small::kNo;
  const auto receive = responder.put_small({lent->payload, length}, arrived);
  if (!receive || !is_still_lent({source.key}, lent->identity)) return qp::Responder::Small::kNo;
  return responder.finish_small(receive, length, arrived);
}

bool RingResponder::refused_small(const SmallName& name, const qp::Responder& responder) {
  is_plain_ = false;
  if (type_ == qp::QpType::kUc) return false;
  refused_ = Refused{name.index, qp::Answer::kOperation, responder.rnr_timer()};
  drop_epoch_ = name.epoch;
  return false;
}

}  // namespace verbena::local
