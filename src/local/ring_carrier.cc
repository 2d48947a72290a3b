// SPDX-License-Identifier: MIT
#include "local/ring_carrier.h"

#include <utility>

#include "local/ring_tiny.h"

namespace verbena::local {
namespace {

// From a peer's death until work for it fails.
constexpr Duration kLastWords = Duration::milliseconds(50);

}  // namespace

Conduit RingCarrier::offer(Conduit conduit, PeerBell bell, PeerMemory* peer) {
  Conduit before = responder_.give_up_conduit();
  responder_ = RingResponder(type_);
  responder_.borrow_from(peer);
  responder_.offer(std::move(conduit));
  set_bell(bell);
  show();
  return before;
}

void RingCarrier::attach(Conduit conduit, const DirectPeer& peer) {
  requester_.attach(std::move(conduit));
  if (peer.memory) {
    const Conduit& taken = requester_.conduit();
    requester_.lend(peer.own);
    direct_.attach(*peer.memory, peer.self, peer.other, taken.header(), taken.id());
  }
  outbound_ = Outbound::kAttached;
  deadline_.reset();
  show();
}

void RingCarrier::show() const {
  if (!glance_) return;
  Glance::View view;
  requester_.show(view);
  responder_.show(view);
  if (outbound_ == Outbound::kAttached) {
    view.farewell = &requester_.farewell();
  } else if (outbound_ == Outbound::kUnknown && responder_.is_offered()) {
    view.farewell = &responder_.farewell();
  }
  glance_->show(view);
}

void RingCarrier::peer_absent() {
  if (outbound_ == Outbound::kUnknown) outbound_ = Outbound::kAbsent;
}

void RingCarrier::close() {
  requester_.close();
  responder_.close();
}

void RingCarrier::give_up() {
  close();
  outbound_ = Outbound::kClosed;
}

void RingCarrier::issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  if (lost_) {
    // What is posted after the death ends as what was posted before.
    if (type_ != qp::QpType::kUc) return has_failed_ ? fail_lost(window, now) : void();
    outbound_ = Outbound::kClosed;
  }
  switch (outbound_) {
    case Outbound::kUnknown:
      // The peer has not answered yet; its process lives, so this is not silence.
      return window.run_local(now);
    case Outbound::kAttached: return issue_attached(window, budget, now);
    case Outbound::kAbsent:
    case Outbound::kClosed: break;
  }
  if (type_ != qp::QpType::kUc) {
    window.run_local(now);
    return count_silence(window, now);
  }
  // Unreliable: into the void.
  while (!budget.spent()) {
    const qp::Operation* op = window.next(now);
    if (!op) return;
    const qp::OpIndex index = op->index;
    window.issued(now);
    window.answered(index, qp::Answer::kDone, now);
    budget.take(0);
  }
}

void RingCarrier::issue_attached(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  while (!budget.spent()) {
    const qp::Operation* op = window.next(now);
    if (!op) return;
    switch (direct_.is_attached() ? issue_directly(window, *op, budget, now) : Directly::kNo) {
      case Directly::kDone: continue;
      case Directly::kLater: return;
      case Directly::kNo: break;
    }
    if (!requester_.issue(window, *op, budget, now)) return;
  }
}

// Not before the ring is empty. What is better executed by ourselves waits for that: else a stream
// that began in the ring, while the peer's memory was not mapped yet, would stay there.
RingCarrier::Directly RingCarrier::issue_directly(qp::SendWindow& window, const qp::Operation& op,
                                                  qp::Budget& budget, const Now& now) {
  // A smaller one goes behind the SENDs that are on their way faster than it waits for them.
  constexpr std::uint64_t kWaitsForSends = 8192;
  const qp::OpIndex index = op.index;
  if (!requester_.is_idle(window)) {
    const bool waits = type_ == qp::QpType::kRc && !requester_.has_begun(op) &&
                       direct_.is_mapped(op) &&
                       (op.length >= kWaitsForSends || !requester_.has_sends(window));
    return waits ? Directly::kLater : Directly::kNo;
  }
  switch (direct_.execute(window, op, budget)) {
    case Direct::Outcome::kPartly: return Directly::kLater;
    case Direct::Outcome::kCannot: return Directly::kNo;
    case Direct::Outcome::kEnded: return Directly::kDone;
    case Direct::Outcome::kDone: break;
  }
  window.issued(now);
  window.answered(index, qp::Answer::kDone, now);
  return Directly::kDone;
}

void RingCarrier::collect(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  if (is_quiet()) return;
  requester_.collect(window, budget, now);
  if (has_farewell())
    outbound_ = outbound_ == Outbound::kAttached ? Outbound::kClosed : Outbound::kAbsent;
  // A peer that breaks the rules of the ring cannot be talked to: as if it had died.
  if (requester_.is_broken() || responder_.is_broken()) lost_ = true;
  if (!lost_) return count_silence(window, now);
  // On a network a peer's death takes some timeouts to be noticed, and programs that have had all
  // they want from some queue pairs end meanwhile: ibv_srq_pingpong sends more than it counts.
  if (!fails_at_) fails_at_ = now + kLastWords;
  if (now >= *fails_at_) return fail_lost(window, now);
  deadline_ = fails_at_;
}

// Not before the peer's last answers are taken.
void RingCarrier::fail_lost(qp::SendWindow& window, const Now& now) {
  has_failed_ = true;
  if (!requester_.has_answers()) window.peer_lost(now);
  deadline_.reset();
}

// Nobody answers: each timeout is one try of the oldest operation.
void RingCarrier::count_silence(qp::SendWindow& window, const Now& now) {
  const bool is_silent = outbound_ == Outbound::kAbsent || outbound_ == Outbound::kClosed;
  if (!is_silent || timeout_ == Duration() || !window.has_work()) {
    deadline_.reset();
    return;
  }
  if (!deadline_) {
    deadline_ = now + timeout_;
    return;
  }
  if (now < *deadline_) return;
  deadline_ = now + timeout_;
  // Into the void, so that there is something to be silent about.
  if (window.next(now)) window.issued(now);
  if (!window.has_outstanding()) return;
  requester_.go_back(window.oldest());
  window.answered(window.oldest(), qp::Answer::kSilence, now);
}

bool RingCarrier::serve(qp::Responder& responder, qp::Budget& budget, const Now&) {
  return responder_.serve(responder, budget);
}

std::uint32_t RingCarrier::take_small(qp::Responder& responder, qp::SendWindow& window,
                                      std::uint32_t most, const Now& now) {
  std::uint32_t taken = 0;
  std::size_t bytes = 0;
  std::size_t last = 0;
  bool is_said = false;
  while (taken != most && !responder_.must_tell(bytes, last)) {
    const std::byte* const small = responder_.next_small();
    if (!small) break;
    const Acknowledged said = RingResponder::said_with(small);
    if (!requester_.take_acknowledgement(said, window, now)) break;
    is_said = said.conduit != 0;
    const auto some = responder_.take_small(small, most - taken, responder);
    if (!some) break;
    taken += some->messages;
    last = some->bytes;
    bytes += last;
  }
  if (taken == 0) return 0;
  responder_.small_were_taken();
  show_taken(is_said);
  return taken;
}

void RingCarrier::ring_if_needed() { ring_now_if_needed(); }

}  // namespace verbena::local
