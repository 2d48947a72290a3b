// SPDX-License-Identifier: MIT
// Bytes on the wire: numbers in network order with alignment 1, and a view that takes headers off
// the front of a packet without ever leaving it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace verbena::wire {

// A number in network order. bit_cast and a byte swap: gcc 12 leaves the obvious loop a loop.
template <class T>
class BigEndian {
 public:
  constexpr BigEndian() = default;
  constexpr explicit BigEndian(T value) : bytes_(std::bit_cast<Bytes>(swapped(value))) {}
  constexpr T value() const { return swapped(std::bit_cast<T>(bytes_)); }
  friend constexpr bool operator==(const BigEndian&, const BigEndian&) = default;

 private:
  using Bytes = std::array<std::uint8_t, sizeof(T)>;
  static constexpr T swapped(T value) {
    if constexpr (std::endian::native == std::endian::big) return value;
    if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
    if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
    if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
  }
  Bytes bytes_{};
};
using be16 = BigEndian<std::uint16_t>;
using be32 = BigEndian<std::uint32_t>;
using be64 = BigEndian<std::uint64_t>;

// The 24-bit numbers of the field: queue pairs, PSNs, MSNs.
class be24 {  // NOLINT(readability-identifier-naming): beside be16, be32 and be64
 public:
  constexpr be24() = default;
  constexpr explicit be24(std::uint32_t value)
      : bytes_{static_cast<std::uint8_t>(value >> 16), static_cast<std::uint8_t>(value >> 8),
               static_cast<std::uint8_t>(value)} {}
  constexpr std::uint32_t value() const {
    return std::uint32_t{bytes_[0]} << 16 | std::uint32_t{bytes_[1]} << 8 | bytes_[2];
  }
  friend constexpr bool operator==(const be24&, const be24&) = default;

 private:
  std::array<std::uint8_t, 3> bytes_{};
};

template <class Header>
concept WireHeader = std::is_trivially_copyable_v<Header> && alignof(Header) == 1;

// Takes headers off the front of received bytes; past the end there is a null.
class View {
 public:
  constexpr explicit View(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <WireHeader Header>
  const Header* take() {
    if (rest_.size() < sizeof(Header)) return nullptr;
    const auto* const header = reinterpret_cast<const Header*>(rest_.data());
    rest_ = rest_.subspan(sizeof(Header));
    return header;
  }
  constexpr std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

// Puts headers one behind the other. The caller has seen to it that there is room.
class Put {
 public:
  constexpr explicit Put(std::byte* to) : to_(to) {}

  template <WireHeader Header>
  void operator()(const Header& header) {
    __builtin_memcpy(to_, &header, sizeof header);
    to_ += sizeof header;
  }
  constexpr std::byte* end() const { return to_; }

 private:
  std::byte* to_;
};

}  // namespace verbena::wire
