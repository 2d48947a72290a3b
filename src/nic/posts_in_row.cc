// SPDX-License-Identifier: MIT
// Lists of requests that take the short way (at_once.cc). Small SENDs of one length that follow
// each other lie in one record (docs/decisions/0037-small-sends-of-a-list-share-a-record.md).
// Nearly everything that is looked at for the first of them cannot change for the others, as the
// lock is held: they are only copied, and written down.
#include "nic/posts_in_row.h"

#include <algorithm>

#include "base/ticks.h"
#include "memory/guarded_word.h"
#include "nic/engine.h"
#include "nic/nic_qp.h"

namespace verbena::nic {

namespace {

// So many places are looked at together.
constexpr std::uint32_t kLookedAt = 64;

}  // namespace

PostsInRow::PostsInRow(Qp& qp) : qp_(qp) {
  qp_.engine().note_post();
  qp_.pair.lock().lock();
  qp_.begin_row();
}

PostsInRow::~PostsInRow() {
  tell_of_placed();
  qp_.end_row();
  qp_.end_what_overran();
  qp_.pair.lock().unlock();
}

bool PostsInRow::post(const qp::SmallRequest& request) {
  tell_of_placed();
  return qp_.post_in_row(request);
}

bool PostsInRow::send(std::uint64_t wr_id, std::uint8_t flags, Sge piece) {
  Alike& alike = alike_;
  const bool is_placed =
      alike.left != 0 && is_alike(flags, piece) &&
      memory::guarded_copy_inline(alike.to, alike.from.at(piece.address), piece.length);
  if (!is_placed) [[unlikely]]
    return send_first(wr_id, flags, piece);
  qp_.pair.window().write_down(alike.placed, wr_id, flags, piece);
  alike.to += piece.length;
  ++alike.placed;
  --alike.left;
  return true;
}

[[gnu::always_inline]] inline bool PostsInRow::is_alike(std::uint8_t flags, Sge piece) const {
  constexpr auto kOwn = static_cast<std::uint8_t>(~queues::kSignaled);
  return piece.length == alike_.length && (flags & kOwn) == alike_.flags &&
         alike_.from.has(piece.key, piece.address);
}

[[gnu::noinline]] bool PostsInRow::send_first(std::uint64_t wr_id, std::uint8_t flags, Sge piece) {
  tell_of_placed();
  const qp::SmallRequest request{
      .wr_id = wr_id, .opcode = queues::SendOpcode::kSend, .flags = flags, .sge = piece};
  if (!qp_.post_in_row(request)) return false;
  const local::RowRoom room = qp_.ring() ? qp_.ring()->row_room() : local::RowRoom{};
  if (room.count != 0 && room.length == piece.length && look_like(flags, piece)) {
    alike_.to = room.at;
    alike_.left = qp_.pair.window().open_room(room.count);
  }
  return true;
}

bool PostsInRow::write(std::uint64_t wr_id, std::uint8_t flags, Sge piece,
                       std::uint64_t remote_address, MemoryKey remote_key) {
  local::Direct* const direct = alike_.writes_by;
  qp::SendWindow& window = qp_.pair.window();
  std::byte* const to =
      direct && alike_.writes_end != window.posted() && is_alike(flags, piece) && window.is_idle()
          ? direct->target_of_write(remote_key, remote_address, piece.length)
          : nullptr;
  const bool is_done =
      to && memory::guarded_copy_inline(to, alike_.from.at(piece.address), piece.length) &&
      direct->copy_counts();
  if (!is_done) [[unlikely]]
    return write_first(wr_id, flags, piece, remote_address, remote_key);
  window.done_at_once(wr_id, queues::CompletionKind::kWrite, flags & queues::kSignaled);
  return true;
}

[[gnu::noinline]] bool PostsInRow::write_first(std::uint64_t wr_id, std::uint8_t flags, Sge piece,
                                               std::uint64_t remote_address, MemoryKey remote_key) {
  tell_of_placed();
  const qp::SmallRequest request{.wr_id = wr_id,
                                 .opcode = queues::SendOpcode::kWrite,
                                 .flags = flags,
                                 .sge = piece,
                                 .remote_address = remote_address,
                                 .remote_key = remote_key};
  if (!qp_.post_in_row(request)) return false;
  const qp::SendWindow& window = qp_.pair.window();
  if (qp_.row_writes_by() && window.is_caught_up() && look_like(flags, piece)) {
    alike_.writes_by = qp_.row_writes_by();
    alike_.writes_end = window.posted() + window.places(kLookedAt);
  }
  return true;
}

// What was just sent or written. False: the next one is looked at as this one was.
bool PostsInRow::look_like(std::uint8_t flags, Sge piece) {
  if (flags & queues::kInline) {
    alike_.from = memory::RegionReach::of_program();
  } else {
    const qp::QpConfig& config = qp_.pair.config();
    const auto lease = config.regions->lease(piece.key, config.pd, piece.address, piece.length, 0);
    if (!lease) return false;
    alike_.from = memory::RegionReach(piece.key, *lease, piece.length);
  }
  alike_.length = piece.length;
  alike_.flags = static_cast<std::uint8_t>(flags & ~queues::kSignaled);
  return true;
}

void PostsInRow::tell_of_placed() {
  if (alike_.placed != 0) {
    qp_.ring()->row_grew(alike_.placed);
    qp_.pair.window().issued_at_once(alike_.placed);
    qp_.answer_pace.sent(ticks);
  }
  alike_ = {};
}

ReceivesInRow::ReceivesInRow(Qp& qp) {
  if (queues::ReceiveQueue* const queue = qp.pair.own_receives())
    posts_.emplace(*queue, [&qp] { return qp.pair.may_post_receives(); });
}

ReceivesInRow::~ReceivesInRow() = default;

bool ReceivesInRow::post(std::uint64_t wr_id, Sge piece) {
  return posts_ && posts_->post(wr_id, piece);
}

}  // namespace verbena::nic
