// SPDX-License-Identifier: MIT
// The window's part in work requests that are executed or sent as they are posted. Little is
// written down for them: most are done before anybody asks for more.
#include "qp/opcode.h"
#include "qp/send_window.h"

namespace verbena::qp {

using queues::Completion;
using queues::SendWqe;

void SendWindow::push_at_once(std::uint32_t index, std::uint64_t wr_id, queues::CompletionKind kind,
                              std::uint32_t length) {
  const auto make = [&] {
    return Completion{.wr_id = wr_id, .kind = kind, .byte_length = length, .qp = config_.qp};
  };
  const bool is_told = config_.completions->push(make, false, &last_place_);
  note_completion(index);
  if (is_told) return;
  lost_ = true;
  settle();
}

void SendWindow::complete_description(std::uint32_t index) const {
  Entry& entry = at(index);
  if (!entry.is_brief) [[likely]]
    return;
  const SendWqe& copy = wqe(index);
  Operation op;
  op.index = OpIndex(index);
  op.is_solicited = copy.flags & queues::kSolicited;
  op.length = queues::SendQueue::payload_length(copy);
  new (&operation_at(index)) Operation(op);
  entry.is_brief = false;
}

}  // namespace verbena::qp
