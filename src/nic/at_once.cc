// SPDX-License-Identifier: MIT
// The short way of small messages on one host, and of SENDs on the wire: what a program posts while
// nothing stands before it is done, or sent, before ibv_post_send returns, without a work request
// in the queue. Whatever is unusual takes the general way, which also finds the right error.
#include <mutex>

#include "base/ticks.h"
#include "local/ring_tiny.h"
#include "memory/guarded_copy.h"
#include "nic/engine.h"
#include "nic/nic_qp.h"
#include "nic/wire_qp.h"
#include "roce/send_at_once.h"

namespace verbena::nic {
namespace {

// So much is copied within a few microseconds.
constexpr std::uint32_t kCopyMax = 256 * 1024;
constexpr std::uint32_t kReachMax = 64 * 1024;  // by the system

// The memory of a request's only piece; null where it is not that simple.
[[gnu::always_inline]] inline const std::byte* source_of(const qp::SmallRequest& request,
                                                         const qp::QpConfig& config) {
  const Sge& sge = request.sge;
  if (sge.length == 0) [[unlikely]]
    return nullptr;
  if (request.flags & queues::kInline) {
    const bool fits = sge.length <= config.inline_max;
    return fits ? reinterpret_cast<const std::byte*>(sge.address) : nullptr;
  }
  if (config.send_sge_max == 0) [[unlikely]]
    return nullptr;
  auto lease = config.regions->lease(sge.key, config.pd, sge.address, sge.length, 0);
  if (!lease) [[unlikely]]
    return nullptr;
  return lease->in_one_piece();
}

}  // namespace

// What most messages are.
[[gnu::always_inline]] inline bool Qp::send_tiny(std::uint64_t wr_id, std::uint8_t flags,
                                                 Sge piece) {
  // By value: what is written meanwhile might change it, for all that the compiler knows.
  const qp::SmallRequest request{
      .wr_id = wr_id, .opcode = queues::SendOpcode::kSend, .flags = flags, .sge = piece};
  constexpr std::uint8_t kKnown = queues::kSignaled | queues::kInline;
  qp::SendWindow& window = pair.window();
  const bool is_tiny = ring_ && pair.may_bypass_queue() &&
                       request.sge.length - 1 < local::kTinyMax && !(request.flags & ~kKnown) &&
                       window.is_open();
  if (!is_tiny) [[unlikely]]
    return false;
  const std::byte* const from = source_of(request, pair.config());
  if (!from) [[unlikely]]
    return false;
  const bool sent = ring_->send_tiny({.index = window.open_index(),
                                      .from = from,
                                      .length = request.sge.length,
                                      .is_first_out = window.oldest() == window.open_index(),
                                      .measures_pace = answer_pace.is_measuring()});
  if (!sent) [[unlikely]]
    return false;
  window.write_down(0, request.wr_id, request.flags, request.sge);
  window.issued_at_once();
  next_place_.store(ring_->next_place(), std::memory_order_relaxed);
  awaits_answer.store(window.has_outstanding(), std::memory_order_relaxed);
  ring_->ring_now_if_needed();
  answer_pace.sent(ticks);
  return true;
}

bool Qp::post_at_once(const qp::SendRequest& request) {
  if (request.sges.size() != 1) return false;
  const qp::SmallRequest small{.wr_id = request.wr_id,
                               .opcode = request.opcode,
                               .flags = request.flags,
                               .sge = request.sges.front(),
                               .remote_address = request.remote_address,
                               .remote_key = request.remote_key};
  return (small.opcode == queues::SendOpcode::kSend &&
          send_tiny(small.wr_id, small.flags, small.sge)) ||
         post_at_once(small);
}

bool Qp::post_at_once(const qp::SmallRequest& request) {
  if (wire_) return send_on_wire_at_once(request);
  if (!ring_ || !pair.may_bypass_queue()) return false;
  if (request.opcode == queues::SendOpcode::kSend) return send_at_once(request);
  if (request.opcode == queues::SendOpcode::kWrite) return write_at_once(request);
  if (request.opcode == queues::SendOpcode::kRead) return read_at_once(request);
  return false;
}

bool Qp::receive_at_once(std::uint32_t most, const Now& now) {
  if (!ring_) [[unlikely]]
    return false;
  if (answer_pace.prepares()) [[unlikely]]
    ring_->prepare_to_send();
  const bool is_tiny = most == 1 && ring_->take_tiny(pair.responder(), pair.window());
  const std::uint32_t taken =
      is_tiny ? 1 : ring_->take_small(pair.responder(), pair.window(), most, now);
  if (taken == 0) [[unlikely]]
    return false;
  answer_pace.came(taken, ring_->peer_measures_pace());
  ring_->ring_now_if_needed();
  awaits_answer.store(pair.window().has_outstanding(), std::memory_order_relaxed);
  return true;
}

bool Qp::await_answer() {
  return answer_pace.await(
      ticks, [this] { glance.fetch_request(); }, [this] { return glance.has_request(); });
}

[[gnu::always_inline]] inline bool Qp::write_by(local::Direct& direct,
                                                const qp::SmallRequest& request) {
  const std::uint32_t length = request.sge.length;
  if (length > kCopyMax) return false;
  const std::byte* const from = source_of(request, pair.config());
  if (!from) return false;
  const MemoryKey key = request.remote_key;
  std::byte* const to = direct.target_of_write(key, request.remote_address, length);
  const bool is_done =
      to ? memory::guarded_copy(to, from, length) && direct.copy_counts()
         : length <= kReachMax && direct.write_reachable(key, request.remote_address, from, length);
  if (!is_done) return false;
  if (to)
    mapped_from_.store(reinterpret_cast<std::uint64_t>(to) - request.remote_address,
                       std::memory_order_relaxed);
  pair.window().done_at_once(request.wr_id, queues::CompletionKind::kWrite,
                             request.flags & queues::kSignaled);
  return true;
}

bool Qp::write_at_once(const qp::SmallRequest& request) {
  if (!pair.window().is_caught_up()) return false;
  local::Direct* const direct = ring_->direct_now(pair.window());
  return direct && write_by(*direct, request);
}

bool Qp::read_at_once(const qp::SmallRequest& request) {
  if (!pair.window().is_caught_up() || !pair.window().may_read()) return false;
  local::Direct* const direct = ring_->direct_now(pair.window());
  const Sge& sge = request.sge;
  const qp::QpConfig& config = pair.config();
  const bool is_usual = sge.length != 0 && sge.length <= kCopyMax && config.send_sge_max != 0 &&
                        !(request.flags & queues::kInline);
  if (!direct || !is_usual) return false;
  auto lease =
      config.regions->lease(sge.key, config.pd, sge.address, sge.length, memory::kLocalWrite);
  std::byte* const to = lease ? lease->in_one_piece() : nullptr;
  if (!to) return false;
  const MemoryKey key = request.remote_key;
  const std::byte* const from = direct->source_of_read(key, request.remote_address, sge.length);
  const bool is_done =
      from ? memory::guarded_copy(to, from, sge.length) && direct->copy_counts()
           : sge.length <= kReachMax &&
                 direct->read_reachable(key, request.remote_address, to, sge.length);
  if (!is_done) return false;
  pair.window().done_at_once(request.wr_id, queues::CompletionKind::kRead,
                             request.flags & queues::kSignaled, sge.length);
  return true;
}

bool Qp::send_at_once(const qp::SmallRequest& request) {
  if (!put_at_once(request)) return false;
  next_place_.store(ring_->next_place(), std::memory_order_relaxed);
  awaits_answer.store(pair.window().has_outstanding(), std::memory_order_relaxed);
  ring_->ring_if_needed();
  answer_pace.sent(ticks);
  return true;
}

void Qp::end_after_overrun() {
  if (send(Now(clock_now))) engine_->want_turn(number());
}

void Qp::begin_row() {
  if (ring_) ring_->hold();
  row_writes_by_ = nullptr;
}

bool Qp::post_in_row(const qp::SmallRequest& request) {
  if (!ring_ || !pair.may_bypass_queue()) return false;
  if (request.opcode == queues::SendOpcode::kWrite) return write_in_row(request);
  row_writes_by_ = nullptr;
  // Only these wait: what is written or read at once comes after all that was sent.
  if (request.opcode != queues::SendOpcode::kSend) return post_at_once(request);
  if (!put_at_once(request)) return false;
  answer_pace.sent(ticks);
  return true;
}

// Whether we may execute WRITEs at all does not change while nothing else is posted.
bool Qp::write_in_row(const qp::SmallRequest& request) {
  if (!pair.window().is_caught_up()) return false;
  if (!row_writes_by_) row_writes_by_ = ring_->direct_now(pair.window());
  return row_writes_by_ && write_by(*row_writes_by_, request);
}

void Qp::end_row() {
  if (!ring_) return;
  ring_->release();
  awaits_answer.store(pair.window().has_outstanding(), std::memory_order_relaxed);
}

bool Qp::put_at_once(const qp::SmallRequest& request) {
  qp::SendWindow& window = pair.window();
  // A fence waits for READs that are outstanding.
  if (!window.is_open() || request.flags & queues::kFence) return false;
  const std::byte* const from = source_of(request, pair.config());
  if (!from) return false;
  Sge source = request.sge;
  if (request.flags & queues::kInline) source.key = {};
  const bool sent = ring_->send_at_once({.index = window.open_index(),
                                         .from = from,
                                         .source = source,
                                         .is_solicited = (request.flags & queues::kSolicited) != 0,
                                         .is_first_out = window.oldest() == window.open_index(),
                                         .measures_pace = answer_pace.is_measuring()});
  if (!sent) [[unlikely]]
    return false;
  window.write_down(0, request.wr_id, request.flags, request.sge);
  window.issued_at_once();
  return true;
}

bool Qp::send_on_wire_at_once(const qp::SmallRequest& request) {
  if (!roce::may_be_at_once(pair, request)) return false;
  const std::byte* const from = source_of(request, pair.config());
  if (!from) return false;
  const Now now(clock_now);
  if (!roce::send_at_once(wire_->engine(), pair, request, from, now)) return false;
  depart_with_answers(now);
  engine_->note_deadline(*this, now);
  return true;
}

void expect_write(const Qp& qp, std::uint64_t address) { qp.expect_write(address); }
void expect_send(const Qp& qp) { qp.expect_send(); }

bool post_tiny(Qp& qp, std::uint64_t wr_id, std::uint8_t flags, Sge piece) {
  if (piece.length - 1 >= local::kTinyMax) return false;
  qp.engine().note_post();
  const std::lock_guard guard(qp.pair.lock());
  if (!qp.send_tiny(wr_id, flags, piece)) [[unlikely]]
    return false;
  qp.end_what_overran();
  return true;
}

bool post_small(Qp& qp, const qp::SmallRequest& request) {
  qp.engine().note_post();
  const std::lock_guard guard(qp.pair.lock());
  if (request.opcode == queues::SendOpcode::kSend) {
    qp.expect_send();
  } else if (request.opcode == queues::SendOpcode::kWrite) {
    qp.expect_write(request.remote_address);
  }
  if (!qp.post_at_once(request)) return false;
  qp.end_what_overran();
  return true;
}

}  // namespace verbena::nic
