// SPDX-License-Identifier: MIT
// What members of a socket group say to each other (socket_group.h). Every message is one struct of
// fixed size; some bring a socket along. Both ends are on one host, so numbers are in its order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/types.h"
#include "port/steering.h"

namespace verbena::port {

enum class GroupSays : std::uint8_t {
  kAsk = 1,     // a newcomer: what do you hold?
  kHolding,     // answer: the digest of all positions, and how many there are
  kFetch,       // a newcomer: give me the sockets, and the services
  kSocket,      // answer, one a position, socket attached
  kService,     // answer, one a service
  kAll,         // answer: that was all
  kHold,        // a newcomer: this position is my slot's; a new position's socket is attached
  kHeld,        // answer; `count` 0: it could not be kept
  kServing,     // the slot answers for the service
  kNotServing,  // no longer; service id ~0: none at all
};

struct GroupMessage {
  static constexpr std::uint32_t kMagic = 0x56'47'52'01;  // the last byte is the version

  std::uint32_t magic = kMagic;
  GroupSays says{};
  std::uint8_t reserved = 0;
  std::uint16_t position = 0;
  std::uint16_t slot = 0;
  std::uint16_t count = 0;
  std::uint32_t round = 0;  // the newcomer's number for its attempt, repeated in answers
  std::uint64_t value = 0;  // digest, or service id, or the turn of a position
};
static_assert(sizeof(GroupMessage) == 24);

enum class GroupMalformed : std::uint8_t { kLength, kMagic, kVersion, kContent };

// Checks every field by itself; whether the message makes sense now is for the group to say.
Result<GroupMessage, GroupMalformed> parse_group_message(std::span<const std::byte> bytes);
inline std::span<const std::byte> bytes_of(const GroupMessage& message) {
  return std::as_bytes(std::span(&message, 1));
}

}  // namespace verbena::port
