// SPDX-License-Identifier: MIT
// The Invariant CRC of RoCEv2 (annex A17.3.3; IBTA vol 1, 7.8.1): CRC-32 over eight bytes of ones
// (in place of the LRH), the IP and UDP heads and the packet to the end of its pad, where what
// routers may change counts as ones: IPv4's TOS, TTL and checksum; IPv6's traffic class, flow label
// and hop limit; the UDP checksum; the BTH's byte with FECN and BECN. It is sent least significant
// byte first.
//
// IPv4's identification and flags do count, but a UDP socket does not show them. CRC is linear: two
// packets that differ only in the four bytes of identification, flags and offset have ICRCs that
// differ by  e x^(32 + 8 k)  modulo the generator, where e is the difference as a polynomial and k
// the bytes behind it. x has an inverse, so  e = (received - computed) x^(-32 - 8 k)  is the one
// difference of these four bytes that explains the ICRC. If it leaves flags and offset alone, the
// packet is good and e tells the identification; if not, the packet is corrupt. Of random damage
// one packet in 2^16 passes, while the guess at the identification, which comes first, lets pass
// one in 2^32: hence guess well. For peers of ours the guess is the index in the GSO batch, which
// starts at 0; for a kernel's rxe it is the last one plus 1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/crc32.h"
#include "base/result.h"
#include "wire/ip.h"
#include "wire/malformed.h"
#include "wire/opcode.h"

namespace verbena::wire {

// What a verified packet had in IPv4's identification; for IPv6 what was guessed.
struct Verified {
  std::uint16_t id = 0;
  bool is_guess = true;  // false: solved for, so one corrupt packet in 2^16 looks like this
};

// Computes the ICRCs of one flow. Keeps the CRC of the heads, because the packets of a message are
// mostly of one length, and identifications count, so that few bits of them change: belongs to one
// thread.
class FlowIcrc {
 public:
  explicit FlowIcrc(const Flow& flow);

  // Of a datagram as it will be sent: BTH to the end of the pad, without the four bytes of the
  // ICRC, which the length of course counts. `id` is ignored for IPv6.
  std::uint32_t compute(std::span<const std::byte> covered, std::uint16_t id = 0);

  // Of a datagram as it was received: BTH to ICRC.
  Result<Verified, Malformed> verify(std::span<const std::byte> datagram, std::uint16_t id_guess);

  // For those who fold the CRC as they copy: all that stands before the extension headers.
  // `datagram_bytes` counts the ICRC.
  CrcBlock begin(std::span<const std::byte, kBthBytes> bth, std::size_t datagram_bytes,
                 std::uint16_t id = 0);

 private:
  static constexpr std::size_t kOnesBytes = 8;
  static constexpr std::size_t kPrefixMax = kOnesBytes + kIpv6Bytes + kUdpBytes;

  std::uint32_t crc_of_heads(std::size_t datagram_bytes, std::uint16_t id);
  void fold_heads(std::uint32_t length);

  std::array<std::byte, kPrefixMax> prefix_{};
  std::uint8_t prefix_bytes_ = 0;
  bool is_ipv4_ = false;
  // Of heads that say this length (0: nothing yet) and identification.
  std::uint16_t known_id_ = 0;
  std::uint32_t known_length_ = 0;
  std::uint32_t known_crc_ = 0;
};

// Datagrams of one length that lie behind each other as they were received, and whose
// identifications count, to be verified one by one.
class Unverified {
 public:
  Unverified(FlowIcrc& icrc, std::span<const std::byte> datagrams, std::size_t bytes_of_each,
             std::uint16_t id_guess)
      : icrc_(icrc), datagrams_(datagrams), bytes_(bytes_of_each), id_guess_(id_guess) {}

  std::span<const std::byte> all() const { return datagrams_; }
  std::size_t bytes_of_each() const { return bytes_; }
  std::span<const std::byte> datagram(std::size_t i) const {
    return datagrams_.subspan(i * bytes_, bytes_);
  }
  // False: it is corrupt.
  bool verify(std::size_t i);
  // What was verified last.
  const Verified& verified() const { return verified_; }

 private:
  FlowIcrc& icrc_;
  std::span<const std::byte> datagrams_;
  std::size_t bytes_;
  std::uint16_t id_guess_;
  Verified verified_;
};

// The last four bytes of a datagram.
std::uint32_t received_icrc(std::span<const std::byte> datagram);
void store_icrc(std::uint32_t icrc, std::span<std::byte, kIcrcBytes> to);

}  // namespace verbena::wire
