// SPDX-License-Identifier: MIT
#include "local/record_ring.h"

#include <cstring>

#include "base/fence.h"

namespace verbena::local {
bool RingWriter::refresh(std::uint32_t wanted) {
  const std::uint32_t seen = words_.consumed->load(std::memory_order_acquire);
  if (position_ - seen > position_ - consumed_) {
    // Behind what it was, or ahead of what was written.
    broken_ = true;
    return false;
  }
  consumed_ = seen;
  return units_ - (position_ - consumed_) >= wanted;
}

bool RingWriter::has_room(std::uint32_t wanted) {
  if (units_ - (position_ - consumed_) >= wanted) return true;
  if (refresh(wanted) || broken_) return !broken_;
  // Say that we wait, then look once more: the reader returns units first and looks at the word
  // after.
  words_.writer_waits->exchange(1, std::memory_order_seq_cst);
  full_fence();
  return refresh(wanted);
}

// And for what is cleared behind the record.
bool RingWriter::make_room(std::uint32_t units) {
  if (broken_) return false;
  const std::uint32_t to_end = units_ - (position_ & (units_ - 1));
  const std::uint32_t filler = to_end < units ? to_end : 0;
  if (!has_room(filler + units + kClearAhead)) return false;
  if (filler != 0) publish(filler, kFiller, 0);
  return true;
}

// The first of a row is shown last.
void RingWriter::publish_held(std::uint32_t units) {
  if (has_held_) {
    show(position_);
  } else {
    has_held_ = true;
    held_ = position_;
    held_units_ = units;
  }
  advance(units);
  if (position_ - held_ > kFollowersMost) show_held();
}

void RingWriter::show_held() {
  if (!has_held_) return;
  has_held_ = false;
  const std::uint32_t behind = position_ - held_ - held_units_;
  const std::uint32_t told = behind < kFollowersMost ? behind : kFollowersMost;
  head_at(held_)->extent = static_cast<std::uint16_t>(held_units_ | told << kUnitsBits);
  show(held_);
}

// A writer that fills on and on would keep us here: one filler, to the end of the lap, then a
// record.
bool RingReader::peek(Unit& first, const std::byte*& payload, std::uint32_t& units) {
  bool is_new_lap = false;
  while (!broken_ && has_record()) {
    const std::byte* record = next_;
    // The tag is an atomic of ours and stays out of the copy.
    std::memcpy(first.bytes + sizeof(std::uint32_t), record + sizeof(std::uint32_t),
                kUnit - sizeof(std::uint32_t));
    std::uint16_t extent = 0;
    std::memcpy(&extent, first.bytes + offsetof(RecordHead, extent), sizeof extent);
    const std::uint32_t claimed = units_of(extent);
    const std::uint32_t to_end = units_ - (position_ & (units_ - 1));
    if (claimed == 0 || claimed > to_end || claimed > units_ / 4) {
      broken_ = true;
      return false;
    }
    units = claimed;
    payload = record + kUnit;
    if (std::to_integer<std::uint8_t>(first.bytes[offsetof(RecordHead, kind)]) != kFiller)
      return true;
    broken_ = is_new_lap || claimed != to_end;
    is_new_lap = true;
    if (!broken_) consume(units);
  }
  return false;
}

bool RingReader::pass_filler() {
  const std::byte* const filler = front();
  if (!filler) return false;
  std::uint16_t extent = 0;
  std::memcpy(&extent, filler + offsetof(RecordHead, extent), sizeof extent);
  const std::uint32_t to_end = units_ - (position_ & (units_ - 1));
  const std::uint32_t behind = position_ + to_end;
  const auto& tag = reinterpret_cast<const RecordHead*>(at(behind))->tag;
  const bool is_sound =
      std::to_integer<std::uint8_t>(filler[offsetof(RecordHead, kind)]) == kFiller &&
      units_of(extent) == to_end && tag.load(std::memory_order_acquire) == tag_of(behind);
  if (is_sound) go_to(behind);
  return is_sound;
}

bool RingReader::give_back() {
  if (position_ == given_back_) return false;
  given_back_ = position_;
  words_.consumed->store(position_, std::memory_order_release);
  full_fence();
  if (words_.writer_waits->load(std::memory_order_seq_cst) == 0) return false;
  return words_.writer_waits->exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingReader::give_back_in_quarters() {
  if (position_ - given_back_ >= units_ / 4) [[unlikely]]
    return give_back();
  words_.consumed->store(position_, std::memory_order_release);
  return false;
}

}  // namespace verbena::local
