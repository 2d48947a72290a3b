// SPDX-License-Identifier: MIT
// Why work failed, in more detail than a completion's status: the vendor error of completions, and
// what the flight recorder keeps. The numbers are part of our interface: never renumber, only
// append.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "memory/region_table.h"
#include "memory/window_table.h"

namespace verbena::qp {

enum class Reason : std::uint32_t {
  kNone = 0,

  // The work request itself.
  kUnknownOpcode = 1,
  kOpcodeNotForType = 2,
  kTooManySges = 3,
  kInlineTooLong = 4,
  kMessageTooLong = 5,
  kDatagramTooLong = 6,
  kAtomicNotEightBytes = 7,
  kNoReadsAllowed = 8,
  kInvalidateRefused = 9,
  kFlushToNowhere = 10,
  kAddressHandleDomain = 11,
  kFrameTooShort = 12,

  // The program's own memory, in the order of memory::RegionRefusal.
  kLocalKey = 16,
  kLocalDomain = 17,
  kLocalRange = 18,
  kLocalPermission = 19,
  kLocalFault = 20,

  // What the peer answered, or did not.
  kPeerNotReady = 32,
  kPeerInvalidRequest = 33,
  kPeerAccess = 34,
  kPeerOperation = 35,
  kPeerSilent = 36,
  kPeerLost = 37,
  kAnswerLength = 38,
  kAnswerKind = 39,

  // Flushed.
  kFlushedAfterFailure = 48,
  kFlushedByModify = 49,
  kFlushedReceive = 50,

  // What a peer asked for and did not get.
  kNotReceiving = 64,
  kNoReceivePosted = 65,
  kReceiveTooShort = 66,
  kOperationNotEnabled = 67,
  kOperationNotForType = 68,
  kRequestTooLong = 69,
  kMisalignedAtomic = 70,
  kNoReadResources = 71,
  kRemoteInvalidateRefused = 72,
  kNoMessageInProgress = 73,
  kWrongQkey = 74,
  kBrokenRequest = 75,
  kNoSharedQueue = 76,
  kNoSuchTag = 77,
  kRendezvousTooLong = 78,
  kSharedQueueElsewhere = 79,
  kRemoteKey = 80,  // in the order of memory::RegionRefusal
  kRemoteDomain = 81,
  kRemoteRange = 82,
  kRemotePermission = 83,
  kRemoteFault = 84,

  kCompletionQueueFull = 96,

  kWindow = 104,  // the first of eight, in the order of memory::WindowRefusal
};

constexpr Reason local_reason(memory::RegionRefusal refusal) {
  return static_cast<Reason>(static_cast<std::uint32_t>(Reason::kLocalKey) +
                             static_cast<std::uint32_t>(refusal));
}
constexpr Reason remote_reason(memory::RegionRefusal refusal) {
  return static_cast<Reason>(static_cast<std::uint32_t>(Reason::kRemoteKey) +
                             static_cast<std::uint32_t>(refusal));
}
constexpr Reason window_reason(memory::WindowRefusal refusal) {
  return static_cast<Reason>(static_cast<std::uint32_t>(Reason::kWindow) +
                             static_cast<std::uint32_t>(refusal));
}
constexpr std::optional<memory::WindowRefusal> window_refusal(Reason reason) {
  if (reason < Reason::kWindow || reason > window_reason(memory::WindowRefusal::kRegion)) return {};
  return static_cast<memory::WindowRefusal>(static_cast<std::uint32_t>(reason) -
                                            static_cast<std::uint32_t>(Reason::kWindow));
}
static_assert(local_reason(memory::RegionRefusal::kFault) == Reason::kLocalFault);
static_assert(remote_reason(memory::RegionRefusal::kFault) == Reason::kRemoteFault);

// One line for a person.
std::string_view reason_text(Reason reason);

}  // namespace verbena::qp
