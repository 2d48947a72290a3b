// SPDX-License-Identifier: MIT
// What each opcode of a work request is: facts in a table (IBTA vol 1, table 37 for what each type
// of queue pair has). Used inside qp only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "qp/operation.h"
#include "queues/completion_queue.h"
#include "queues/work_queue.h"

namespace verbena::qp {

struct OpcodeShape {
  queues::SendOpcode opcode;
  OpKind kind;
  queues::CompletionKind completion;
  bool has_immediate = false;
  bool invalidates = false;
  bool reads = false;    // has an answer of its own: counts against max_rd_atomic
  bool returns = false;  // and that brings bytes, which go to its SGEs
  bool reports = false;  // its completion says more than that it is done, or is not a program's
  bool atomic = false;
  bool is_internal = false;
  bool is_local = false;  // executed by the window itself: no carrier sees it
  bool on_uc = false;
  bool on_ud = false;
  bool on_raw_packet = false;

  constexpr bool is_on(QpType type) const {
    switch (type) {
      case QpType::kRc: return true;
      case QpType::kUc: return on_uc;
      case QpType::kUd: return on_ud;
      case QpType::kRawPacket: return on_raw_packet;
    }
    return false;
  }
  constexpr bool may_be_inline() const {
    return kind == OpKind::kSend || kind == OpKind::kWrite || kind == OpKind::kAtomicWrite;
  }
};

inline constexpr std::array<OpcodeShape, 12> kOpcodes = {{
    {.opcode = queues::SendOpcode::kSend,
     .kind = OpKind::kSend,
     .completion = queues::CompletionKind::kSend,
     .on_uc = true,
     .on_ud = true,
     .on_raw_packet = true},
    {.opcode = queues::SendOpcode::kSendWithImmediate,
     .kind = OpKind::kSend,
     .completion = queues::CompletionKind::kSend,
     .has_immediate = true,
     .on_uc = true,
     .on_ud = true},
    {.opcode = queues::SendOpcode::kSendWithInvalidate,
     .kind = OpKind::kSend,
     .completion = queues::CompletionKind::kSend,
     .invalidates = true},
    {.opcode = queues::SendOpcode::kWrite,
     .kind = OpKind::kWrite,
     .completion = queues::CompletionKind::kWrite,
     .on_uc = true},
    {.opcode = queues::SendOpcode::kWriteWithImmediate,
     .kind = OpKind::kWrite,
     .completion = queues::CompletionKind::kWrite,
     .has_immediate = true,
     .on_uc = true},
    {.opcode = queues::SendOpcode::kRead,
     .kind = OpKind::kRead,
     .completion = queues::CompletionKind::kRead,
     .reads = true,
     .returns = true,
     .reports = true},
    {.opcode = queues::SendOpcode::kCompareSwap,
     .kind = OpKind::kCompareSwap,
     .completion = queues::CompletionKind::kCompareSwap,
     .reads = true,
     .returns = true,
     .reports = true,
     .atomic = true},
    {.opcode = queues::SendOpcode::kFetchAdd,
     .kind = OpKind::kFetchAdd,
     .completion = queues::CompletionKind::kFetchAdd,
     .reads = true,
     .returns = true,
     .reports = true,
     .atomic = true},
    {.opcode = queues::SendOpcode::kLocalInvalidate,
     .kind = OpKind::kLocalInvalidate,
     .completion = queues::CompletionKind::kLocalInvalidate,
     .is_local = true,
     .on_uc = true},
    {.opcode = queues::SendOpcode::kFlush,
     .kind = OpKind::kFlush,
     .completion = queues::CompletionKind::kFlush,
     .reads = true},
    {.opcode = queues::SendOpcode::kAtomicWrite,
     .kind = OpKind::kAtomicWrite,
     .completion = queues::CompletionKind::kAtomicWrite,
     .reads = true},
    {.opcode = queues::SendOpcode::kBindWindow,
     .kind = OpKind::kBindWindow,
     .completion = queues::CompletionKind::kBindWindow,
     .is_local = true,
     .on_uc = true},
}};

// The queue pair's own work requests (rendezvous.h): whoever posted them hears of them.
constexpr OpcodeShape internal(OpcodeShape shape) {
  shape.reports = shape.is_internal = true;
  return shape;
}
inline constexpr OpcodeShape kInternalRead =
    internal(kOpcodes[static_cast<std::size_t>(queues::SendOpcode::kRead)]);
inline constexpr OpcodeShape kInternalSend =
    internal(kOpcodes[static_cast<std::size_t>(queues::SendOpcode::kSend)]);

constexpr bool opcodes_are_in_order() {
  for (std::size_t i = 0; i < kOpcodes.size(); ++i)
    if (static_cast<std::size_t>(kOpcodes[i].opcode) != i) return false;
  return true;
}
static_assert(opcodes_are_in_order());

// Null for a number that is no opcode: work requests may be written by anybody.
constexpr const OpcodeShape* shape_of(std::uint8_t opcode) {
  return opcode < kOpcodes.size() ? &kOpcodes[opcode] : nullptr;
}

constexpr std::uint32_t kFlushGlobally = 1;
constexpr std::uint32_t kFlushPersistently = 2;
constexpr std::uint32_t kFlushRegion = 4;
inline Flush unpack_flush(const queues::SendWqe& wqe) {
  return {.length = wqe.flush.length,
          .global_visibility = (wqe.flush.what & kFlushGlobally) != 0,
          .persistence = (wqe.flush.what & kFlushPersistently) != 0,
          .whole_region = (wqe.flush.what & kFlushRegion) != 0};
}
inline void pack_flush(const Flush& flush, queues::SendWqe& wqe) {
  wqe.flush = {flush.length,
               (flush.global_visibility ? kFlushGlobally : 0) |
                   (flush.persistence ? kFlushPersistently : 0) |
                   (flush.whole_region ? kFlushRegion : 0),
               0};
}

// XRC. What has no immediate and needs all of the union names the queue where an immediate lies.
inline bool names_queue_as_immediate(const queues::SendWqe& wqe) {
  const OpcodeShape* const shape = shape_of(wqe.opcode);
  return shape && (shape->atomic || shape->kind == OpKind::kFlush);
}
inline bool names_queue(const queues::SendWqe& wqe) {
  const OpcodeShape* const shape = shape_of(wqe.opcode);
  return shape && !shape->is_local;
}
inline void name_shared_queue(queues::SendWqe& wqe, std::uint32_t number) {
  if (names_queue_as_immediate(wqe))
    wqe.immediate = number;
  else if (names_queue(wqe))
    wqe.xrc = {number, {}};
}
inline std::uint32_t named_shared_queue(const queues::SendWqe& wqe) {
  if (names_queue_as_immediate(wqe)) return wqe.immediate;
  return names_queue(wqe) ? wqe.xrc.number : 0;
}

// The longest message (11.2.1.2; told to programs as max_msg_sz).
inline constexpr std::uint64_t kMessageMax = std::uint64_t{1} << 30;

}  // namespace verbena::qp
