// SPDX-License-Identifier: MIT
#include "roce/data_head.h"

namespace verbena::roce {

using qp::Operation;
using qp::OpKind;
using wire::Code;
using wire::Opcode;

namespace {

// First, Middle, and what ends a message with nothing, an immediate, a key to invalidate.
struct Codes {
  Code first, middle, last, last_immediate, last_invalidate;
  Code only, only_immediate, only_invalidate;
};
constexpr Codes kSendCodes = {Code::kSendFirst,         Code::kSendMiddle,         Code::kSendLast,
                              Code::kSendLastImmediate, Code::kSendLastInvalidate, Code::kSendOnly,
                              Code::kSendOnlyImmediate, Code::kSendOnlyInvalidate};
constexpr Codes kWriteCodes = {Code::kWriteFirst,         Code::kWriteMiddle, Code::kWriteLast,
                               Code::kWriteLastImmediate, Code::kWriteLast,   Code::kWriteOnly,
                               Code::kWriteOnlyImmediate, Code::kWriteOnly};

Code code_of(const Operation& op, bool is_first, bool is_last) {
  const Codes& codes = op.kind == OpKind::kSend ? kSendCodes : kWriteCodes;
  if (!is_last) return is_first ? codes.first : codes.middle;
  if (op.has_immediate) return is_first ? codes.only_immediate : codes.last_immediate;
  if (op.invalidates) return is_first ? codes.only_invalidate : codes.last_invalidate;
  return is_first ? codes.only : codes.last;
}

}  // namespace

void describe_data(const Operation& op, bool is_first, bool is_last, wire::Head& head) {
  head.opcode = Opcode::of(head.opcode.service(), code_of(op, is_first, is_last));
  if (is_first && op.kind == OpKind::kWrite) {
    head.remote_address = op.remote_address;
    head.remote_key = op.remote_key;
    head.dma_length = static_cast<std::uint32_t>(op.length);
  }
  if (!is_last) return;
  head.is_solicited = op.is_solicited;
  if (op.invalidates)
    head.invalidate_key = {op.immediate};
  else
    head.immediate = op.immediate;
}

}  // namespace verbena::roce
