// SPDX-License-Identifier: MIT
// Receive-side scaling: which of several queues a frame goes to, by a Toeplitz hash over its
// addresses and ports, so that the frames of one connection stay together. (The hash, the order of
// its input and the vectors of its test are those of Microsoft's RSS, which adapters implement.)
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "raw/key.h"

namespace verbena::raw {

inline constexpr std::size_t kHashKeyBytes = 40;
using HashKey = std::array<std::uint8_t, kHashKeyBytes>;

// At most 36 bytes of input: the key has bits for no more.
std::uint32_t toeplitz(const HashKey& key, std::span<const std::uint8_t> input);

// As in verbs (enum ibv_rx_hash_fields).
enum HashField : std::uint64_t {
  kHashSourceIpv4 = 1 << 0,
  kHashDestinationIpv4 = 1 << 1,
  kHashSourceIpv6 = 1 << 2,
  kHashDestinationIpv6 = 1 << 3,
  kHashSourceTcp = 1 << 4,
  kHashDestinationTcp = 1 << 5,
  kHashSourceUdp = 1 << 6,
  kHashDestinationUdp = 1 << 7,
};
inline constexpr std::uint64_t kHashFields = 0xFF;

struct HashConfig {
  std::uint64_t fields = 0;  // HashField
  HashKey key{};
};

// Of those of the chosen fields that the frame has: source before destination, addresses before
// ports. 0 where it has none.
std::uint32_t hash_of(const Key& frame, const HashConfig& config);

}  // namespace verbena::raw
