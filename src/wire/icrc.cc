// SPDX-License-Identifier: MIT
#include "wire/icrc.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "wire/headers.h"

namespace verbena::wire {
namespace {

constexpr std::byte kOnes{0xFF};
constexpr std::size_t kIpv4LengthOffset = 2;
constexpr std::size_t kIpv4TosOffset = 1;
constexpr std::size_t kIpv4TtlOffset = 8;
constexpr std::size_t kIpv4ChecksumOffset = 10;
constexpr std::size_t kIpv6LengthOffset = 4;
constexpr std::size_t kIpv6HopLimitOffset = 7;
constexpr std::size_t kUdpLengthOffset = 4;
constexpr std::size_t kUdpChecksumOffset = 6;
// Identification, flags and offset end here.
constexpr std::size_t kIpv4BehindFragment = kIpv4Bytes - 8;

// What each bit of the identification adds to the CRC of the heads (icrc.h). On the wire its upper
// byte comes first.
constexpr auto kOfIdBits = [] {
  constexpr unsigned kBytes = 4 + kIpv4BehindFragment + kUdpBytes;
  std::array<std::uint32_t, 16> crcs{};
  for (unsigned bit = 0; bit < crcs.size(); ++bit)
    crcs[bit] = crc::multiply(1U << (bit ^ 8), crc::power(8 * kBytes));
  return crcs;
}();

void store(be16 value, std::byte* to) { std::memcpy(to, &value, sizeof value); }

std::uint32_t little_endian(std::uint32_t value) {
  return std::endian::native == std::endian::big ? __builtin_bswap32(value) : value;
}

}  // namespace

FlowIcrc::FlowIcrc(const Flow& flow) : is_ipv4_(is_ipv4(flow)) {
  std::fill_n(prefix_.begin(), kOnesBytes, kOnes);
  std::byte* const ip = prefix_.data() + kOnesBytes;
  const std::size_t heads = encode_ip({.flow = flow}, 0, {ip, kPrefixMax - kOnesBytes});
  prefix_bytes_ = static_cast<std::uint8_t>(kOnesBytes + heads);
  if (is_ipv4_) {
    ip[kIpv4TosOffset] = ip[kIpv4TtlOffset] = kOnes;
    std::fill_n(ip + kIpv4ChecksumOffset, 2, kOnes);
  } else {
    ip[0] |= std::byte{0x0F};
    std::fill_n(ip + 1, 3, kOnes);
    ip[kIpv6HopLimitOffset] = kOnes;
  }
  std::fill_n(prefix_.data() + prefix_bytes_ - kUdpBytes + kUdpChecksumOffset, 2, kOnes);
}

// With IPv4's identification 0.
void FlowIcrc::fold_heads(std::uint32_t length) {
  VERBENA_ASSERT(length + kIpv4Bytes <= 0xFFFF);
  std::byte* const ip = prefix_.data() + kOnesBytes;
  const auto ip_length = static_cast<std::uint16_t>(is_ipv4_ ? length + kIpv4Bytes : length);
  store(be16(ip_length), ip + (is_ipv4_ ? kIpv4LengthOffset : kIpv6LengthOffset));
  store(be16(static_cast<std::uint16_t>(length)),
        prefix_.data() + prefix_bytes_ - kUdpBytes + kUdpLengthOffset);
  known_crc_ = crc32(0, std::span(prefix_).first(prefix_bytes_));
  known_length_ = length;
  known_id_ = 0;
}

std::uint32_t FlowIcrc::crc_of_heads(std::size_t datagram_bytes, std::uint16_t id) {
  const auto length = static_cast<std::uint32_t>(datagram_bytes + kUdpBytes);
  if (length != known_length_) fold_heads(length);
  if (!is_ipv4_) return known_crc_;
  for (unsigned changed = known_id_ ^ id; changed != 0; changed &= changed - 1)
    known_crc_ ^= kOfIdBits[static_cast<unsigned>(std::countr_zero(changed))];
  known_id_ = id;
  return known_crc_;
}

CrcBlock FlowIcrc::begin(std::span<const std::byte, kBthBytes> bth, std::size_t datagram_bytes,
                         std::uint16_t id) {
  CrcBlock block = crc_begin(crc_of_heads(datagram_bytes, id), bth);
  static_assert(Bth::kCongestionOffset >= sizeof(std::uint32_t), "else the CRC would be lost");
  block.bytes[sizeof block - kBthBytes + Bth::kCongestionOffset] = kOnes;
  return block;
}

std::uint32_t FlowIcrc::compute(std::span<const std::byte> covered, std::uint16_t id) {
  VERBENA_ASSERT(covered.size() >= kBthBytes);
  // The byte with FECN and BECN becomes ones by what is missing to them.
  static_assert(Bth::kCongestionOffset < sizeof(std::uint64_t));
  const auto missing = static_cast<std::uint64_t>(covered[Bth::kCongestionOffset] ^ kOnes);
  return crc32_of_sum(crc_of_heads(covered.size() + kIcrcBytes, id), covered,
                      missing << 8 * Bth::kCongestionOffset);
}

Result<Verified, Malformed> FlowIcrc::verify(std::span<const std::byte> datagram,
                                             std::uint16_t id_guess) {
  if (datagram.size() < kBthBytes + kIcrcBytes) return refuse(Malformed::kTruncated);
  // More than an IP packet holds; no socket has ever delivered that.
  if (datagram.size() > 0xFFFF - kIpv4Bytes - kUdpBytes) return refuse(Malformed::kIpHead);
  const std::size_t covered = datagram.size() - kIcrcBytes;
  const std::uint32_t difference =
      received_icrc(datagram) ^ compute(datagram.first(covered), id_guess);
  if (difference == 0) return Verified{.id = id_guess};
  if (!is_ipv4_) return refuse(Malformed::kIcrc);

  // e of the comment in icrc.h: the four bytes in the order of the wire, the first one lowest.
  const std::size_t behind = kIpv4BehindFragment + kUdpBytes + covered;
  const std::uint32_t e = crc::multiply(
      difference, crc::inverse_power(static_cast<std::uint32_t>(behind + sizeof difference)));
  if (e >> 16 != 0) return refuse(Malformed::kIcrc);
  const auto id_difference = static_cast<std::uint16_t>((e & 0xFF) << 8 | e >> 8);
  return Verified{.id = static_cast<std::uint16_t>(id_guess ^ id_difference), .is_guess = false};
}

bool Unverified::verify(std::size_t i) {
  const auto verified = icrc_.verify(datagram(i), static_cast<std::uint16_t>(id_guess_ + i));
  if (!verified) return false;
  verified_ = *verified;
  if (!verified_.is_guess) [[unlikely]]
    id_guess_ = static_cast<std::uint16_t>(verified_.id - i);
  return true;
}

std::uint32_t received_icrc(std::span<const std::byte> datagram) {
  VERBENA_ASSERT(datagram.size() >= kIcrcBytes);
  std::uint32_t icrc = 0;
  std::memcpy(&icrc, datagram.last<kIcrcBytes>().data(), sizeof icrc);
  return little_endian(icrc);
}

void store_icrc(std::uint32_t icrc, std::span<std::byte, kIcrcBytes> to) {
  const std::uint32_t wire = little_endian(icrc);
  std::memcpy(to.data(), &wire, sizeof wire);
}

}  // namespace verbena::wire
