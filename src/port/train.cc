// SPDX-License-Identifier: MIT
#include "port/train.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace verbena::port {

TrainBuilder::TrainBuilder(const Limits& limits, std::size_t bytes_max, std::size_t trains_max)
    : limits_(limits),
      trains_max_(trains_max),
      bytes_max_(bytes_max),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(bytes_max)) {
  trains_.reserve(trains_max);
}

// Whether a packet may go behind the last one of the last train.
bool TrainBuilder::continues(const Route& route, std::uint32_t size) const {
  if (trains_.empty() || closed_) return false;
  const Train& last = trains_.back();
  return size <= last.segment_size && in_last_ < limits_.segments_max && route == last.route &&
         last.bytes.size() + size <= limits_.train_bytes_max;
}

// Where one fits. A shorter one ends its train.
std::uint32_t TrainBuilder::fitting(std::uint32_t size, std::uint32_t most) const {
  std::size_t segments = limits_.segments_max;
  std::size_t bytes = limits_.train_bytes_max;
  if (!starts_train_) {
    const Train& last = trains_.back();
    if (size != last.segment_size) return 1;
    segments -= in_last_;
    bytes -= last.bytes.size();
  }
  bytes = std::min(bytes, room_.size());
  return static_cast<std::uint32_t>(std::min({std::size_t{most}, segments, bytes / size}));
}

auto TrainBuilder::place(const Route& route, std::uint32_t size, std::uint32_t most)
    -> std::optional<Place> {
  VERBENA_ASSERT(size > 0);
  starts_train_ = !continues(route, size);
  lane_ = nullptr;
  route_ = route;
  return place_in(
      starts_train_ ? std::span(buffer_.get(), bytes_max_).subspan(used_) : behind_last_, size,
      most);
}

auto TrainBuilder::place_kept(const Route& route, std::uint32_t size, std::uint32_t most,
                              std::span<std::byte> berth, Lane& lane) -> std::optional<Place> {
  VERBENA_ASSERT(size > 0 && begins_train(route, size));
  starts_train_ = true;
  lane_ = &lane;
  route_ = route;
  return place_in(berth, size, most);
}

auto TrainBuilder::place_in(std::span<std::byte> room, std::uint32_t size, std::uint32_t most)
    -> std::optional<Place> {
  placed_ = 0;
  if (size > limits_.train_bytes_max || size > room.size()) return std::nullopt;
  if (starts_train_ && trains_.size() == trains_max_) return std::nullopt;
  room_ = room;
  placed_ = size;
  packets_ = most == 1 ? 1 : fitting(size, most);
  first_id_ = starts_train_ ? id_of_next() : trains_.back().first_id;
  const std::size_t index = starts_train_ ? 0 : in_last_;
  return Place{room.first(std::size_t{size} * packets_),
               static_cast<std::uint16_t>(first_id_ + index), packets_};
}

std::uint16_t TrainBuilder::id_of_next() const {
  if (!lane_) return 0;
  const auto waiting = std::ranges::count(trains_, lane_, &Train::lane);
  return static_cast<std::uint16_t>(lane_->next_id() + waiting);
}

void TrainBuilder::commit() {
  VERBENA_ASSERT(placed_ > 0);
  const std::size_t bytes = std::size_t{placed_} * packets_;
  if (starts_train_) {
    trains_.push_back({route_, room_.first(bytes), placed_, first_id_, lane_});
    in_last_ = packets_;
    closed_ = false;
  } else {
    Train& last = trains_.back();
    last.bytes = std::span(last.bytes.data(), last.bytes.size() + bytes);
    in_last_ += packets_;
    closed_ = placed_ < last.segment_size;
  }
  if (is_own(room_.data())) used_ += bytes;
  behind_last_ = room_.subspan(bytes);
  placed_ = 0;
}

bool TrainBuilder::flush(Port& port, Instant now) {
  placed_ = 0;
  if (!trains_.empty()) {
    const std::size_t sent = port.send(trains_, now);
    VERBENA_ASSERT(sent <= trains_.size());
    keep_from(sent);
  }
  limits_.segments_max = std::min(limits_.segments_max, port.limits().segments_max);
  return trains_.empty();
}

// Moves what was not taken to the front of the buffer.
void TrainBuilder::keep_from(std::size_t first) {
  trains_.erase(trains_.begin(), trains_.begin() + static_cast<std::ptrdiff_t>(first));
  if (trains_.empty()) return clear();
  if (first == 0) return;
  used_ = 0;
  for (Train& train : trains_) {
    if (!is_own(train.bytes.data())) continue;
    std::byte* const to = buffer_.get() + used_;
    std::memmove(to, train.bytes.data(), train.bytes.size());
    train.bytes = std::span(to, train.bytes.size());
    used_ += train.bytes.size();
  }
  if (is_own(trains_.back().bytes.data()))
    behind_last_ = std::span(buffer_.get(), bytes_max_).subspan(used_);
}

void TrainBuilder::clear() {
  trains_.clear();
  used_ = 0;
  placed_ = 0;
  closed_ = false;
}

}  // namespace verbena::port
