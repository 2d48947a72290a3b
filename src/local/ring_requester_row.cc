// SPDX-License-Identifier: MIT
// Small SENDs of a list, many in one record: they share what is said of each, and a line of the
// cache is moved for several of them.
#include <cstring>
#include <utility>

#include "local/ring_requester.h"
#include "memory/guarded_copy.h"

namespace verbena::local {
namespace {

std::byte* payload_of(RequestRecord* record) {
  return reinterpret_cast<std::byte*>(record) + kUnit;
}

}  // namespace

bool RingRequester::add_to_row(const AtOnce& message, Acknowledged acknowledged) {
  const std::uint32_t length = message.source.length;
  const bool follows = row_.record && row_.length == length && row_.count < kRowMost &&
                       message.index - row_.first == static_cast<std::int32_t>(row_.count);
  if (!follows) return begin_row(message, acknowledged);
  std::byte* const to = payload_of(row_.record) + std::size_t{row_.count} * length;
  if (!memory::guarded_copy(to, message.from, length)) return false;
  ++row_.count;
  last_send_ = sending_ = message.index;
  return true;
}

bool RingRequester::begin_row(const AtOnce& message, Acknowledged acknowledged) {
  end_row();
  const std::uint32_t length = message.source.length;
  const std::uint32_t units = units_for(std::size_t{kRowMost} * length);
  RequestRecord* const record = reserve(units, message, acknowledged);
  if (!record || !memory::guarded_copy(payload_of(record), message.from, length)) return false;
  row_ = {.record = record, .first = message.index, .length = length, .count = 1};
  last_send_ = sending_ = message.index;
  return true;
}

RowRoom RingRequester::row_room() const {
  if (!row_.record) return {};
  return {.at = payload_of(row_.record) + std::size_t{row_.count} * row_.length,
          .length = row_.length,
          .count = kRowMost - row_.count};
}

// A single one is like any other.
void RingRequester::end_row() {
  if (!row_.record) return;
  RequestRecord* const record = std::exchange(row_.record, nullptr);
  const bool is_single = row_.count == 1;
  const bool is_inline = is_single && row_.length <= kInlineMax;
  if (is_inline) std::memcpy(record->inline_payload, payload_of(record), row_.length);
  if (!is_single) record->row = row_.count;
  const auto kind = is_single ? RequestKind::kSend : RequestKind::kSendRow;
  requests_.publish(is_inline ? 1 : units_for(std::size_t{row_.count} * row_.length),
                    static_cast<std::uint8_t>(kind), kFirst | kLast);
  raise(signal_, Signal::kMessage);
}

}  // namespace verbena::local
