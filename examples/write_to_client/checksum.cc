// SPDX-License-Identifier: MIT
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, section "XXH64", seed 0.
#include "write_to_client/checksum.h"

#include <bit>
#include <cstring>

namespace write_to_client {
namespace {

static_assert(std::endian::native == std::endian::little, "the words are little-endian");

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5u;
constexpr std::size_t kLanes = 4;
constexpr std::size_t kStripe = kLanes * 8;

template <class Word>
Word load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

std::uint64_t merge(std::uint64_t hash, std::uint64_t lane) {
  return (hash ^ round(0, lane)) * kPrime1 + kPrime4;
}

std::uint64_t hash_of_stripes(const std::byte*& at, const std::byte* end) {
  std::uint64_t lanes[kLanes] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  while (static_cast<std::size_t>(end - at) >= kStripe) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes[i] = round(lanes[i], load<std::uint64_t>(at + 8 * i));
    }
    at += kStripe;
  }
  std::uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
                       std::rotl(lanes[3], 18);
  for (const std::uint64_t lane : lanes)
    hash = merge(hash, lane);
  return hash;
}

}  // namespace

std::uint64_t xxh64(const void* data, std::size_t size) {
  const auto* at = static_cast<const std::byte*>(data);
  const std::byte* const end = at + size;
  std::uint64_t hash = size >= kStripe ? hash_of_stripes(at, end) : kPrime5;
  hash += size;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at != end; ++at) {
    hash = std::rotl(hash ^ static_cast<std::uint64_t>(*at) * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace write_to_client
