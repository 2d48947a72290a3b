// SPDX-License-Identifier: MIT
// The window's own operations: binding a memory window and invalidating one (IBTA vol 1, 10.6.6.2,
// 10.8.3.3). They are executed once, when everything before them was issued, and complete in order
// as the others do. When the window goes back over one, it stays executed.
#include "memory/window_table.h"
#include "qp/opcode.h"
#include "qp/send_window.h"

namespace verbena::qp {

using queues::SendWqe;
using queues::Status;

namespace {

// Until those that use a window have ended what they copy.
constexpr Duration kAskAgainAfter = Duration::microseconds(20);

}  // namespace

void SendWindow::run_local(const Now& now) {
  if (!is_active() || (resume_at_ && now < *resume_at_)) return;
  if (cursor_ == fetched_ && !fetch()) return;
  settle();
  if (is_active() && is_local(at(cursor_))) pass_local(now);
}

bool SendWindow::pass_local(const Now& now) {
  while (is_local(at(cursor_))) {
    if (!execute_local(now) || !is_active()) return false;
    if (cursor_ == fetched_ && !fetch()) return false;
    settle();
    if (!is_active()) return false;
  }
  return true;
}

bool SendWindow::execute_local(const Now& now) {
  Entry& entry = at(cursor_);
  if (entry.status != Status::kSuccess) return false;
  if (entry.is_executed) {
    ++cursor_;
    return true;
  }
  if (mode_ == Mode::kDraining && cursor_ == offered_) return false;
  if (entry.is_fenced && reads_out_ > 0) return false;
  const auto refusal = change_window(cursor_);
  if (refusal == memory::WindowRefusal::kBusy) {
    resume_at_ = now + kAskAgainAfter;
    return false;
  }
  if (cursor_ == offered_) ++offered_;
  if (refusal) {
    const bool is_window = memory::WindowTable::is_key({operation_at(cursor_).immediate});
    const Reason reason = is_window ? window_reason(*refusal) : Reason::kInvalidateRefused;
    fail_locally(entry, Status::kWindowBind, reason);
    return false;
  }
  entry.is_executed = true;
  if (cursor_ == issued_) ++issued_;
  ++cursor_;
  if (cursor_ - done_ == 1) complete_upto(cursor_);
  return true;
}

std::optional<memory::WindowRefusal> SendWindow::change_window(std::uint32_t index) {
  memory::WindowTable& windows = config_.regions->windows();
  const memory::RemoteUser user(config_.pd, config_.qp);
  const SendWqe& request = wqe(index);
  const MemoryKey key{request.immediate};
  if (at(index).shape->kind == OpKind::kLocalInvalidate) return windows.invalidate(user, key);
  return windows.bind(user, {.key = key,
                             .region = {request.remote_key},
                             .address = request.remote_address,
                             .length = request.bind.length,
                             .access = static_cast<std::uint32_t>(request.bind.access)});
}

}  // namespace verbena::qp
