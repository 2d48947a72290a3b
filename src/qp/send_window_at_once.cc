// SPDX-License-Identifier: MIT
// The window's part in work requests that are executed or sent as they are posted. Little is
// written down for them: most are done before anybody asks for more.
#include "qp/opcode.h"
#include "qp/send_window.h"

namespace verbena::qp {

using queues::Completion;
using queues::SendWqe;
using queues::Status;

void SendWindow::done_at_once(std::uint64_t wr_id, queues::CompletionKind kind, bool is_signaled,
                              std::uint32_t length) {
  config_.queue->post_done();
  done_ = cursor_ = issued_ = offered_ = fetched_ = config_.queue->posted();
  if (!is_signaled && !config_.signal_all) return;
  const auto make = [&] {
    return Completion{.wr_id = wr_id, .kind = kind, .byte_length = length, .qp = config_.qp};
  };
  if (config_.completions->push(make, false)) return;
  lost_ = true;
  settle();
}

void SendWindow::complete_description(std::uint32_t index) const {
  Entry& entry = entries_[index & mask_];
  if (!entry.is_brief) [[likely]]
    return;
  const SendWqe& copy = wqe(index);
  describe(entry, copy, index);
  entry.op.length = queues::SendQueue::payload_length(copy);
}

}  // namespace verbena::qp
