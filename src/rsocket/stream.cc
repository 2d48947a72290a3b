// SPDX-License-Identifier: MIT
#include "rsocket/stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/assert.h"

namespace verbena::rsocket {
namespace {

template <class Entry>
void put(ControlWrite& write, const Entry& entry) {
  std::memcpy(write.body.data(), &entry, sizeof entry);
  write.length = sizeof entry;
}

// The peer may write while we read. It writes upwards, so whoever sees the length, which is last,
// sees the rest.
Place copied(const Place& theirs) {
  Place place;
  place.length = __atomic_load_n(&theirs.length, __ATOMIC_ACQUIRE);
  place.address = __atomic_load_n(&theirs.address, __ATOMIC_RELAXED);
  place.key = __atomic_load_n(&theirs.key, __ATOMIC_RELAXED);
  return place;
}

}  // namespace

Stream::Stream(const Setup& setup)
    : setup_(setup),
      given_(setup.receive_bytes / 2),
      free_(setup.receive_bytes / 2),
      give_offset_(setup.receive_bytes / 2) {
  VERBENA_ASSERT(setup.receive_bytes >= 2 && setup.receive_bytes % 2 == 0);
}

Hello Stream::hello() const {
  Hello hello;
  hello.version = kProtocolVersion;
  hello.flags = kFlagMaps | (kIsBigEndian ? kFlagBigEndian : 0);
  hello.credits = be16(setup_.credits);
  hello.map_slots = scale_of(static_cast<std::uint32_t>(setup_.maps.size()));
  hello.targets = {be64(setup_.notes_address), be32(setup_.notes_key), be32(kTargets)};
  hello.data = {be64(setup_.buffer_address), be32(setup_.buffer_key),
                be32(setup_.receive_bytes / 2)};
  return hello;
}

Result<void, Broken> Stream::begin(std::span<const std::byte> private_data) {
  Hello hello;
  if (private_data.size() < sizeof hello) return refuse(Broken::kHello);
  std::memcpy(&hello, private_data.data(), sizeof hello);
  if (hello.version != kProtocolVersion) return refuse(Broken::kVersion);
  peer_targets_ = {hello.targets.address.value(), hello.targets.key.value(),
                   hello.targets.length.value()};
  // Two turns at least: one to fill while the other is given again.
  if (peer_targets_.length < 2 || peer_targets_.length > kMapsMax) return refuse(Broken::kHello);
  current_ = {hello.data.address.value(), hello.data.key.value(), hello.data.length.value()};
  room_ = current_.length;
  next_target_ = 1;
  is_swapped_ = kIsBigEndian != ((hello.flags & kFlagBigEndian) != 0);
  peer_maps_ = peer_targets_.address + std::uint64_t{peer_targets_.length} * sizeof(Place);
  if ((hello.flags & kFlagMaps) != 0) told_.assign(unscaled(hello.map_slots), false);
  may_send_up_to_ = hello.credits.value();
  is_connected_ = is_readable_ = is_writable_ = true;
  return {};
}

std::optional<Write> Stream::send(std::uint32_t wanted) {
  if (!may_send() || wanted == 0) return std::nullopt;
  Write write;
  write.address = current_.address;
  write.key = current_.key;
  write.length = static_cast<std::uint32_t>(std::min<std::uint64_t>({wanted, room_, kValueMask}));
  write.immediate = immediate_of(Op::kData, write.length);
  current_.address += write.length;
  room_ -= write.length;
  ++sent_;
  if (room_ == 0) take_targets();
  return write;
}

// The next place, once the peer has filled it in. Its length says whether it did; we put that back.
void Stream::take_targets() {
  Place& theirs = setup_.notes->targets[next_target_];
  Place place = copied(theirs);
  if (is_swapped_) place = place.swapped();
  if (place.length == 0) return;
  __atomic_store_n(&theirs.length, 0U, __ATOMIC_RELAXED);
  current_ = place;
  room_ = place.length;
  next_target_ = (next_target_ + 1) % kTargets;
}

std::optional<Write> Stream::send_mapped(std::uint64_t offset, std::uint32_t wanted) {
  for (const MappedPlace& theirs : setup_.maps) {
    MappedPlace mapped{__atomic_load_n(&theirs.offset, __ATOMIC_RELAXED), copied(theirs.place)};
    if (is_swapped_) mapped = mapped.swapped();
    if (offset < mapped.offset || offset - mapped.offset >= mapped.place.length) continue;
    const auto at = static_cast<std::uint32_t>(offset - mapped.offset);
    Write write;
    write.address = mapped.place.address + at;
    write.key = mapped.place.key;
    write.length = std::min(wanted, mapped.place.length - at);
    return write;
  }
  return std::nullopt;
}

Result<void, Broken> Stream::received(std::uint32_t immediate) {
  const std::uint32_t value = immediate & kValueMask;
  switch (immediate >> 29) {
    case static_cast<std::uint32_t>(Op::kData):
      if (value > given_) return refuse(Broken::kTooMuch);
      ++received_;
      given_ -= value;
      readable_ += value;
      received_bytes_ += value;
      return {};
    case static_cast<std::uint32_t>(Op::kCredit):
      may_send_up_to_ = static_cast<std::uint16_t>(value);
      if (room_ == 0) take_targets();
      return {};
    case static_cast<std::uint32_t>(Op::kMap): return {};  // it is read when it is used
    case static_cast<std::uint32_t>(Op::kControl): return control(value);
    default: return refuse(Broken::kOperation);
  }
}

Result<void, Broken> Stream::control(std::uint32_t value) {
  switch (value) {
    case static_cast<std::uint32_t>(Control::kDisconnect):
      peer_said_goodbye_ = true;
      lost();
      return {};
    case static_cast<std::uint32_t>(Control::kKeepalive): return {};
    case static_cast<std::uint32_t>(Control::kShutdown):
      peer_said_goodbye_ = true;
      is_readable_ = false;
      if (!is_writable_) lost();
      return {};
    default: return refuse(Broken::kOperation);
  }
}

void Stream::consumed(std::uint32_t bytes) {
  VERBENA_ASSERT(bytes <= readable_);
  readable_ -= bytes;
  free_ += bytes;
  read_offset_ += bytes;
  if (read_offset_ >= setup_.receive_bytes) read_offset_ -= setup_.receive_bytes;
}

bool Stream::must_tell_credit() const {
  const auto since = static_cast<std::uint16_t>(received_ - told_credit_at_);
  return free_ >= setup_.receive_bytes / 2 || since >= std::max(setup_.credits / 2, 1);
}

ControlWrite Stream::tell_credit() {
  ControlWrite write;
  told_credit_at_ = received_;
  write.immediate =
      immediate_of(Op::kCredit, static_cast<std::uint16_t>(received_ + setup_.credits));
  const std::uint32_t half = setup_.receive_bytes / 2;
  if (free_ < half) return write;
  const Place place{setup_.buffer_address + give_offset_, setup_.buffer_key, half};
  put(write, is_swapped_ ? place.swapped() : place);
  write.address = peer_targets_.address + std::uint64_t{give_target_} * sizeof place;
  write.key = peer_targets_.key;
  give_target_ = (give_target_ + 1) % peer_targets_.length;
  give_offset_ = (give_offset_ + half) % setup_.receive_bytes;
  free_ -= half;
  given_ += half;
  return write;
}

ControlWrite Stream::tell_map() {
  const MapToTell next = maps_to_tell_.front();
  maps_to_tell_.erase(maps_to_tell_.begin());
  ControlWrite write;
  put(write, is_swapped_ ? next.mapped.swapped() : next.mapped);
  write.address = peer_maps_ + std::uint64_t{next.index} * sizeof(MappedPlace);
  write.key = peer_targets_.key;
  write.immediate = immediate_of(Op::kMap, next.index);
  return write;
}

std::optional<ControlWrite> Stream::next_control() {
  if (is_connected_ && must_tell_credit()) return tell_credit();
  if (is_connected_ && has_map_to_tell()) return tell_map();
  if (!goodbye_) return std::nullopt;
  ControlWrite write;
  write.immediate = immediate_of(*goodbye_);
  goodbye_.reset();
  return write;
}

std::optional<std::uint32_t> Stream::map(const MappedPlace& mapped) {
  const auto free = std::find(told_.begin(), told_.end(), false);
  if (free == told_.end()) return std::nullopt;
  *free = true;
  const auto index = static_cast<std::uint32_t>(free - told_.begin());
  maps_to_tell_.push_back({index, mapped});
  return index;
}

void Stream::unmap(std::uint32_t index) {
  VERBENA_ASSERT(index < told_.size() && told_[index]);
  told_[index] = false;
  maps_to_tell_.push_back({index, {}});
}

void Stream::shut_down(Half half) {
  if (half != Half::kReading) is_writable_ = false;
  if (half != Half::kWriting) is_readable_ = false;
  if (!is_connected_) return;
  if (!is_readable_ && !is_writable_) {
    goodbye_ = Control::kDisconnect;
    is_connected_ = false;
  } else if (half == Half::kWriting) {
    goodbye_ = Control::kShutdown;
  }
}

void Stream::lost() {
  is_connected_ = is_readable_ = is_writable_ = false;
  room_ = 0;
}

}  // namespace verbena::rsocket
