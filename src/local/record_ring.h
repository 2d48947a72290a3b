// SPDX-License-Identifier: MIT
// A ring of records between two processes: one writes, one reads.
//
// The ring is an array of 64-byte units. A record is one or more whole units that never wrap around
// the end; a filler takes the rest of a lap. Its first word is a tag made from its position, stored
// last (release): the reader looks for the tag that belongs to its own position, so a message costs
// one line to transfer, and nothing else is shared but the count of units that the reader has given
// back. Before a record is published, the first word of the unit behind it is cleared, so that old
// payload there cannot be taken for a record.
//
// Everything in the ring is hostile to both sides. The writer believes a returned count only if it
// lies between what it knew and what it wrote; the reader copies a record's first unit out before
// it looks at it, and bounds its length.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/assert.h"
#include "base/prefetch.h"
#include "base/serial_number.h"

namespace verbena::local {

inline constexpr std::size_t kUnit = 64;

// So many units behind a record can be told of in its head.
inline constexpr std::uint32_t kFollowersMost = 63;

// What begins every record.
struct RecordHead {
  std::atomic<std::uint32_t> tag;
  std::uint16_t extent;  // in the lower bits the units of this record, the first one included; in
                         // the upper ones how many units behind these were shown with it
  std::uint8_t kind;     // 0 is the filler; the rest belongs to the user of the ring
  std::uint8_t flags;
};
static_assert(sizeof(RecordHead) == 8);
inline constexpr std::uint8_t kFiller = 0;
inline constexpr unsigned kUnitsBits = 10;
constexpr std::uint32_t units_of(std::uint32_t extent) { return extent & ((1u << kUnitsBits) - 1); }
constexpr std::uint32_t followers_of(std::uint16_t extent) { return extent >> kUnitsBits; }
static_assert(kFollowersMost <= 0xffff >> kUnitsBits);
// A quarter of it is what a record has at most.
inline constexpr std::uint32_t kRingUnitsMost = 2048;
static_assert(units_of(kRingUnitsMost / 4) == kRingUnitsMost / 4);
// So many units behind the last record have a cleared tag, as far as the writer can help it.
inline constexpr std::uint32_t kClearAhead = 8;

// The reader's processor has the units that come next; fetching one takes as long as several
// records. The very next one it may be looking at: not that one.
inline constexpr std::uint32_t kUnitsAhead = 8;

// So many lines of a record of that many units are worth fetching before it is there.
constexpr std::uint32_t lines_ahead(std::uint32_t units) { return units < 8 ? units : 8; }

// A private copy of a record's first unit, for the reader.
struct alignas(kUnit) Unit {
  std::byte bytes[kUnit];
};

// The two words of a ring that both sides use, each on a line of the side that writes it.
struct RingWords {
  std::atomic<std::uint32_t>* consumed = nullptr;  // units given back; written by the reader
  std::atomic<std::uint32_t>* writer_waits =
      nullptr;  // 1: ring the writer's bell when units come back
};

// What the process at the other end should hear. A message is found by whoever looks at the ring;
// room that a writer waits for is not, so it is told in any case.
enum class Signal : std::uint8_t { kNone, kMessage, kRoom };
constexpr void raise(Signal& signal, Signal to) {
  if (to > signal) signal = to;
}

constexpr std::uint32_t tag_of(std::uint32_t position) { return position << 1 | 1; }

// A word of a record that lies in the ring. Whoever wrote it may write on: it is read once.
inline std::uint32_t read_once(const std::byte* record, std::size_t offset) {
  std::uint32_t word = 0;
  std::memcpy(&word, record + offset, sizeof word);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return word;
}

class RingWriter {
 public:
  RingWriter() = default;
  // `units`: a power of two, at least 64, kRingUnitsMost at most.
  RingWriter(std::byte* memory, std::uint32_t units, RingWords words)
      : memory_(memory), units_(units), words_(words) {
    VERBENA_ASSERT(units <= kRingUnitsMost);
  }

  // Room for a record of `units` units (a quarter of the ring at most), or null when the reader is
  // behind: it will see that we wait.
  std::byte* reserve(std::uint32_t units) {
    VERBENA_ASSERT(units > 0 && units <= units_ / 4);
    if (std::byte* const room = reserve_at_once(units)) [[likely]]
      return room;
    return make_room(units) ? reserve_at_once(units) : nullptr;
  }
  // The same where there is room without a look at the reader; else null.
  [[gnu::always_inline]] std::byte* reserve_at_once(std::uint32_t units) {
    const bool fits = units <= units_ - (position_ & (units_ - 1)) && !broken_ &&
                      units_ - (position_ - consumed_) >= units + kClearAhead;
    if (!fits) [[unlikely]]
      return nullptr;
    // What is written there may never be published.
    if (units > 1 && is_before(position_ + 1, cleared_)) cleared_ = position_ + 1;
    return reinterpret_cast<std::byte*>(head_at(position_));
  }
  // Makes the record at the place that reserve gave visible.
  [[gnu::always_inline]] void publish(std::uint32_t units, std::uint8_t kind, std::uint8_t flags) {
    const std::uint32_t next = position_ + units;
    // After most records this is clear already. The reader looks at that unit's line by now, and
    // getting it back would keep the tag waiting.
    if (is_before(cleared_, next + 1)) [[unlikely]]
      clear(next, next + 1);
    RecordHead* const head = head_at(position_);
    head->extent = static_cast<std::uint16_t>(units);
    head->kind = kind;
    head->flags = flags;
    if (is_holding_) [[unlikely]]
      return publish_held(units);
    show(position_);
    advance(units);
  }
  // More records follow at once: the reader sees them together, and hears how many there are. It
  // would fetch the line that is being written, again and again, and each of them only when it
  // comes to it. A long row of them is shown in parts. Ends with release().
  void hold() { is_holding_ = true; }
  bool is_holding() const { return is_holding_; }
  void release() {
    is_holding_ = false;
    show_held();
  }
  // Where the next record will lie, unless the lap ends before it.
  const std::byte* next_place() const {
    return reinterpret_cast<const std::byte*>(head_at(position_));
  }
  // A record like the last one will be written soon: takes its lines away from the reader now.
  void prepare() const {
    prefetch_for_writing(head_at(position_));
    if (last_units_ == 1) [[likely]]
      return;
    for (std::uint32_t i = 1; i < lines_ahead(last_units_); ++i)
      prefetch_for_writing(head_at(position_ + i));
  }
  // The reader has returned all that was published.
  bool is_drained() const { return words_.consumed->load(std::memory_order_acquire) == position_; }
  // The reader returned an impossible count.
  bool is_broken() const { return broken_; }

 private:
  RecordHead* head_at(std::uint32_t position) const {
    return reinterpret_cast<RecordHead*>(memory_ + std::size_t{position & (units_ - 1)} * kUnit);
  }
  bool make_room(std::uint32_t units);
  bool has_room(std::uint32_t wanted);
  [[gnu::always_inline]] void show(std::uint32_t position) {
    head_at(position)->tag.store(tag_of(position), std::memory_order_release);
  }
  void publish_held(std::uint32_t units);
  void show_held();
  [[gnu::always_inline]] void advance(std::uint32_t units) {
    position_ += units;
    last_units_ = units;
    clear(position_ + 1, position_ + kClearAhead);
    prefetch_for_writing(head_at(position_ + kUnitsAhead));
  }
  // What is clear reaches from the next record to cleared_, but for what that record fills.
  [[gnu::always_inline]] void clear(std::uint32_t from, std::uint32_t upto) {
    if (is_before(cleared_, from)) [[unlikely]]
      cleared_ = from;
    for (; is_before(cleared_, upto); ++cleared_)
      head_at(cleared_)->tag.store(0, std::memory_order_relaxed);
  }
  bool refresh(std::uint32_t wanted);

  std::byte* memory_ = nullptr;
  std::uint32_t units_ = 0;
  RingWords words_;
  std::uint32_t position_ = 0;
  std::uint32_t consumed_ = 0;  // as last seen
  std::uint32_t last_units_ = 1;
  std::uint32_t cleared_ = 1;  // units behind position_ up to here have no tag; 0 has none at first
  bool broken_ = false;
  bool is_holding_ = false;
  bool has_held_ = false;
  std::uint32_t held_ = 0;  // the first record that was not shown, when there is one
  std::uint32_t held_units_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(const std::byte* memory, std::uint32_t units, RingWords words)
      : memory_(memory), units_(units), words_(words), next_(memory) {}

  // One load: is there a record (or a filler) at our position?
  bool has_record() const { return next_tag().load(std::memory_order_acquire) == wanted_tag_; }
  // The next record: its first unit copied to `first`, its further units at `payload` (hostile, may
  // change any time), `units` in all. False when there is none or the ring is broken.
  bool peek(Unit& first, const std::byte*& payload, std::uint32_t& units);
  // Done with the record that peek gave. Its units are free for the writer after the next
  // give_back.
  void consume(std::uint32_t units) {
    go_to(position_ + units);
    last_units_ = units;
  }
  // Lines of the last record, as far as they are worth fetching together.
  std::uint32_t last_lines() const { return lines_ahead(last_units_); }
  // Of the next record, which has this extent. What was shown together with it is fetched together.
  std::uint32_t fetch_row(std::uint16_t extent) const {
    const std::uint32_t behind = position_ + units_of(extent);
    for (std::uint32_t i = 0; i < followers_of(extent); ++i)
      prefetch_for_reading(at(behind + i));
    return units_of(extent);
  }
  // Returns what was consumed; true when the writer waits for it and wants its bell rung.
  bool give_back();
  // The same, but looks at the writer only after each quarter of the ring: it can wait only while
  // more than half is taken, and then the quarter that it waits for is still to come.
  bool give_back_in_quarters();
  // What has_record() compares.
  const std::atomic<std::uint32_t>& next_tag() const {
    return reinterpret_cast<const RecordHead*>(next_)->tag;
  }
  std::uint32_t wanted_tag() const { return wanted_tag_; }
  // So many units can be a record at our position.
  bool is_within_lap(std::uint32_t units) const {
    return units != 0 && units <= units_ - (position_ & (units_ - 1));
  }
  // A record begins so many units behind the next one. The writer can make us believe it.
  bool has_record_behind(std::uint32_t units) const {
    const std::uint32_t position = position_ + units;
    const auto& tag = reinterpret_cast<const RecordHead*>(at(position))->tag;
    return tag.load(std::memory_order_acquire) == tag_of(position);
  }
  // The next record or filler as it lies there, or null.
  const std::byte* front() const { return has_record() ? next_ : nullptr; }
  // When a filler is next, and the record behind it is there: that one is next. Else nothing
  // changes, and peek() judges.
  bool pass_filler();
  // The writer published an impossible record.
  bool is_broken() const { return broken_; }

 private:
  const std::byte* at(std::uint32_t position) const {
    return memory_ + std::size_t{position & (units_ - 1)} * kUnit;
  }
  void go_to(std::uint32_t position) {
    position_ = position;
    next_ = at(position);
    wanted_tag_ = tag_of(position);
  }

  const std::byte* memory_ = nullptr;
  std::uint32_t units_ = 0;
  RingWords words_;
  std::uint32_t position_ = 0;
  // Of our position; every poll looks there.
  const std::byte* next_ = nullptr;
  std::uint32_t wanted_tag_ = tag_of(0);
  std::uint32_t last_units_ = 1;
  std::uint32_t given_back_ = 0;  // and looked whether the writer waits
  bool broken_ = false;
};

constexpr std::uint32_t units_for(std::size_t payload) {
  return 1 + static_cast<std::uint32_t>((payload + kUnit - 1) / kUnit);
}

}  // namespace verbena::local
