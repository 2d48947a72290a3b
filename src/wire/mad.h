// SPDX-License-Identifier: MIT
// Management datagrams: the common head, and how fields of any width are read and written (IBTA
// vol 1, 13.4). Over RoCEv2 they are the payload of UD SENDs between the queue pairs 1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/types.h"
#include "wire/bytes.h"

namespace verbena::wire {

inline constexpr std::size_t kMadBytes = 256;  // always
inline constexpr std::size_t kMadHeadBytes = 24;
inline constexpr std::size_t kMadDataBytes = kMadBytes - kMadHeadBytes;
inline constexpr std::uint32_t kGsiQkey = 0x80010000;  // of queue pair 1 (10.2.5)

using MadData = std::array<std::byte, kMadDataBytes>;

// 13.4.3.
struct MadHeader {
  static constexpr std::uint8_t kBaseVersion = 1;

  std::uint8_t base_version = kBaseVersion;
  std::uint8_t management_class = 0;
  std::uint8_t class_version = 0;
  std::uint8_t method = 0;  // R:1 method:7
  be16 status;
  be16 class_specific;
  be64 transaction_id;
  be16 attribute_id;
  be16 reserved;
  be32 attribute_modifier;
};
static_assert(sizeof(MadHeader) == kMadHeadBytes);

// A field of the data behind the head, as the tables of the specification give it: byte, bit from
// the most significant one on, and width. It lies within eight bytes.
struct MadField {
  std::uint8_t byte = 0;
  std::uint8_t bit = 0;
  std::uint8_t width = 0;
};

constexpr std::uint64_t get(const MadData& data, MadField field) {
  const unsigned end = (field.bit + field.width + 7u) / 8;
  std::uint64_t value = 0;
  for (unsigned i = 0; i < end; ++i) {
    value = value << 8 | static_cast<std::uint8_t>(data[field.byte + i]);
  }
  value >>= 8 * end - field.bit - field.width;
  return field.width == 64 ? value : value & ((std::uint64_t{1} << field.width) - 1);
}

constexpr void set(MadData& data, MadField field, std::uint64_t value) {
  for (unsigned i = 0; i < field.width; ++i) {
    const unsigned at = field.bit + field.width - 1u - i;
    const auto mask = static_cast<std::byte>(0x80u >> at % 8);
    std::byte& byte = data[field.byte + at / 8];
    byte = (value >> i & 1) != 0 ? byte | mask : byte & ~mask;
  }
}

// The visitors that read or write all fields of a message, which declares each of them once:
//   visit(member, MadField{byte, bit, width})      a number, a flag, an enumeration
//   visit(member, byte)                            bytes: GIDs and private data
class MadReader {
 public:
  explicit MadReader(const MadData& data) : data_(data) {}

  template <class Value>
  void operator()(Value& value, MadField field) const {
    value = static_cast<Value>(get(data_, field));
  }
  void operator()(QpNum& value, MadField field) const {
    value = {static_cast<std::uint32_t>(get(data_, field))};
  }
  void operator()(Gid& gid, unsigned byte) const {
    __builtin_memcpy(gid.bytes, data_.data() + byte, sizeof gid.bytes);
  }
  template <std::size_t kBytes>
  void operator()(std::array<std::byte, kBytes>& bytes, unsigned byte) const {
    __builtin_memcpy(bytes.data(), data_.data() + byte, kBytes);
  }

 private:
  const MadData& data_;
};

class MadWriter {
 public:
  explicit MadWriter(MadData& data) : data_(data) {}

  template <class Value>
  void operator()(const Value& value, MadField field) const {
    set(data_, field, static_cast<std::uint64_t>(value));
  }
  void operator()(const QpNum& value, MadField field) const { set(data_, field, value.value); }
  void operator()(const Gid& gid, unsigned byte) const {
    __builtin_memcpy(data_.data() + byte, gid.bytes, sizeof gid.bytes);
  }
  template <std::size_t kBytes>
  void operator()(const std::array<std::byte, kBytes>& bytes, unsigned byte) const {
    __builtin_memcpy(data_.data() + byte, bytes.data(), kBytes);
  }

 private:
  MadData& data_;
};

}  // namespace verbena::wire
