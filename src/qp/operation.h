// SPDX-License-Identifier: MIT
// What queue pairs and carriers say to each other: an operation on its way out, the answer to it, a
// message that comes in, and the reasons to refuse one (IBTA vol 1, 9.9).
#pragma once

#include <cstdint>
#include <span>

#include "base/time.h"
#include "base/types.h"

namespace verbena::qp {

// Numbered as in verbs (enum ibv_qp_type).
enum class QpType : std::uint8_t { kRc = 2, kUc = 3, kUd = 4, kRawPacket = 8 };

// What an Extended Reliable Connection makes of kRc (annex A14): its initiator has no receives, its
// target no sends, and each request names the shared receive queue that it is for.
enum class Xrc : std::uint8_t { kNo, kInitiator, kTarget };

// Counts the operations of a send queue since it left RESET; wraps.
class OpIndex {
 public:
  constexpr OpIndex() = default;
  constexpr explicit OpIndex(std::uint32_t value) : value_(value) {}
  constexpr std::uint32_t value() const { return value_; }
  constexpr OpIndex next() const { return OpIndex(value_ + 1); }
  // Operations from `b` to `a`: negative when `a` is the earlier one.
  friend constexpr std::int32_t operator-(OpIndex a, OpIndex b) {
    return static_cast<std::int32_t>(a.value_ - b.value_);
  }
  friend constexpr bool operator==(OpIndex, OpIndex) = default;

 private:
  std::uint32_t value_ = 0;
};

enum class OpKind : std::uint8_t {
  kSend,
  kWrite,
  kRead,
  kCompareSwap,
  kFetchAdd,
  kLocalInvalidate,
  kFlush,
  kAtomicWrite,
  kBindWindow,
};
constexpr bool is_atomic(OpKind kind) {
  return kind == OpKind::kCompareSwap || kind == OpKind::kFetchAdd;
}

// What a FLUSH waits for (annex A19): that bytes written before are where it says. A range, or all
// of the region.
struct Flush {
  std::uint32_t length = 0;
  bool global_visibility = false;
  bool persistence = false;
  bool whole_region = false;
};

// One work request, as it was when the NIC fetched it. Good until the window was told its answer.
struct Operation {
  OpIndex index{};
  OpKind kind = OpKind::kSend;
  bool has_immediate = false;
  bool invalidates = false;
  bool is_solicited = false;
  std::uint32_t immediate = 0;  // network order, or the key that the peer shall invalidate
  std::uint64_t length = 0;  // bytes of payload (of the answer, for READ and atomics; 0 for FLUSH)
  std::uint64_t remote_address = 0;
  MemoryKey remote_key{};
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
  Flush flush{};
  std::uint32_t shared_queue = 0;  // XRC: the number of the peer's shared receive queue
  // Datagrams: who it is for.
  std::uint32_t address_handle = 0;
  QpNum remote_qp{};
  std::uint32_t remote_qkey = 0;
};

// How an operation ended, as the carrier learnt it. kNotReady comes with the peer's RNR timer
// (9.7.5.2.8). The last two no peer says: what it answered is none to this operation, or has
// another length than the READ asked for.
enum class Answer : std::uint8_t {
  kDone,
  kNotReady,
  kInvalidRequest,
  kAccess,
  kOperation,
  kSilence,
  kBadResponse,
  kBadLength,
};

// Why a responder does not do what was asked. The carrier tells the peer (RC) or drops the message
// (UC, UD).
enum class Refusal : std::uint8_t { kNotReady, kInvalidRequest, kAccess, kOperation };
constexpr Answer answer_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNotReady: return Answer::kNotReady;
    case Refusal::kInvalidRequest: return Answer::kInvalidRequest;
    case Refusal::kAccess: return Answer::kAccess;
    case Refusal::kOperation: return Answer::kOperation;
  }
  return Answer::kOperation;
}

// What a receive completion tells about a message that has arrived as a whole.
struct Arrived {
  bool has_immediate = false;
  bool invalidates = false;
  bool is_solicited = false;
  std::uint32_t immediate = 0;  // network order, or the key to invalidate
  QpNum source_qp{};            // datagrams
  bool has_grh =
      false;  // datagrams: the first 40 bytes of the receive hold it (or are left as they were)
};

// The 5-bit RNR timer code and the 5-bit local ACK timeout as durations (9.7.5.2.8, 11.2.4.2).
// A timeout of 0 means: never.
Duration rnr_delay(std::uint8_t code);
Duration ack_timeout(std::uint8_t code);

}  // namespace verbena::qp
