// SPDX-License-Identifier: MIT
// SENDs that lie together in one record (ring_requester_row.cc), taken one by one: any of them may
// find no receive, and waits at the front with those behind it.
#include <algorithm>
#include <cstring>

#include "local/ring_request.h"
#include "qp/responder_small.h"

namespace verbena::local {

bool RingResponder::is_row(const RowView& row) const {
  return row.length != 0 && row.length <= kRowBytesMost && row.count <= kRowMost &&
         row_taken_ < row.count && requests_.is_within_lap(row.units) &&
         units_for(std::size_t{row.count} * row.length) == row.units;
}

void RingResponder::consume_of_row(const RowView& row, std::uint32_t messages) {
  row_taken_ += messages;
  if (row_taken_ < row.count) return;
  row_taken_ = 0;
  requests_.consume(row.units);
}

// What serve() executes next: the next message of the row, as if it had come by itself. False: it
// is none.
bool RingResponder::take_apart(Request& request, const RowView& row) const {
  RequestRecord& record = request.record;
  if (!is_row(row) || record.head.flags != (kFirst | kLast)) return false;
  request.payload += std::size_t{row_taken_} * row.length;
  if (row.length <= kInlineMax) std::memcpy(record.inline_payload, request.payload, row.length);
  record.head.kind = static_cast<std::uint8_t>(RequestKind::kSend);
  record.index += row_taken_;
  record.immediate = 0;
  return true;
}

std::optional<RingResponder::SmallTaken> RingResponder::take_small_of_row(
    const std::byte* front, std::uint32_t most, qp::Responder& responder) {
  // Whoever wrote this may write on: it is read once.
  RequestRecord record;
  std::memcpy(static_cast<void*>(&record), front, offsetof(RequestRecord, inline_payload));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const RowView row{units_of(record.head.extent), record.piece_length, record.row};
  const bool is_whole = record.head.flags == (kFirst | kLast) && record.offset == 0 &&
                        record.total_length == row.length;
  if (!is_row(row) || !is_whole) return std::nullopt;
  if (row_taken_ == 0) requests_.fetch_row(record.head.extent);
  SmallTaken taken;
  const std::uint32_t wanted = std::min(most, row.count - row_taken_);
  while (taken.messages != wanted) {
    const std::uint32_t at = row_taken_ + taken.messages;
    const std::byte* const bytes = front + kUnit + std::size_t{at} * row.length;
    const std::uint32_t alike = responder.receive_alike(bytes, row.length, wanted - taken.messages);
    if (alike != 0) [[likely]] {
      taken.messages += alike;
      executed_ = record.index + at + alike;
      continue;
    }
    const auto receive = responder.put_small({bytes, row.length}, {});
    if (!receive) break;
    const auto done = responder.finish_small(receive, row.length, {});
    ++taken.messages;
    if (!took_small({record.index + at, record.epoch}, done, responder)) break;
  }
  if (taken.messages == 0) return std::nullopt;
  taken.bytes = taken.messages * row.length;
  peer_measures_pace_ = record.pace == kMeasuresPace;
  consume_of_row(row, taken.messages);
  return taken;
}

}  // namespace verbena::local
