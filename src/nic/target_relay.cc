// SPDX-License-Identifier: MIT
#include "nic/target_relay.h"

#include <utility>

namespace verbena::nic {

// -- a way --------------------------------------------------------------------------------------

void TargetRelay::Way::ring_bell() {
  switch (ring->take_signal()) {
    case local::Signal::kNone: return;
    case local::Signal::kMessage: return link->doorbell().notify(bell);
    case local::Signal::kRoom: return link->doorbell().ring_and_wake(bell);
  }
}

void TargetRelay::Way::leave() {
  ring->close();
  ring_bell();
}

// Null: it is asked for. One that has not answered everything stays, even if it is over by now:
// whether it is, the other process writes, at any time.
TargetRelay::Way* TargetRelay::way_to(const qp::RelayPiece& piece) {
  const SlotNumber slot = QpNum{piece.shared_queue}.slot();
  if (const auto found = ways_.find(slot); found != ways_.end()) {
    Way& way = found->second;
    if (&way == busy_ || way.state != Way::State::kOpen || !way.is_over()) return &way;
    way.leave();
    ways_.erase(found);
  }
  Way& way = ways_[slot];
  if (links_.find_relay(target_, QpNum{piece.shared_queue})) return nullptr;
  way.state = Way::State::kNowhere;
  return &way;
}

// -- pieces -------------------------------------------------------------------------------------

qp::Relay::Sent TargetRelay::send(const qp::RelayPiece& piece) {
  if (!piece.is_first && piece.shared_queue != message_queue_) return Sent::kNowhere;
  if (busy_ && busy_->is_over()) return Sent::kLater;
  Way* const way = way_to(piece);
  if (!way || way->state == Way::State::kAskedFor) return Sent::kLater;
  if (busy_ && busy_ != way) return Sent::kLater;
  if (way->state == Way::State::kNowhere) {
    // There may be such a queue when it is asked for again.
    ways_.erase(QpNum{piece.shared_queue}.slot());
    return Sent::kNowhere;
  }
  if (!way->ring->send(piece)) return Sent::kLater;
  if (piece.kind != qp::OpKind::kRead) message_queue_ = piece.shared_queue;
  busy_ = way;
  return Sent::kSent;
}

bool TargetRelay::knows_way_to(std::uint32_t shared_queue) const {
  const auto found = ways_.find(QpNum{shared_queue}.slot());
  return found == ways_.end() || found->second.state != Way::State::kAskedFor;
}

std::uint32_t TargetRelay::outstanding() const { return busy_ ? busy_->ring->outstanding() : 0; }

std::optional<qp::RelayReply> TargetRelay::reply() {
  if (!busy_) return std::nullopt;
  if (!is_ending_) {
    if (auto reply = busy_->ring->reply()) return reply;
    if (!busy_->is_over()) return std::nullopt;
    is_ending_ = true;
  }
  return qp::RelayReply{.kind = qp::RelayReply::Kind::kRefused, .answer = qp::Answer::kOperation};
}

void TargetRelay::take_reply() {
  if (!std::exchange(is_ending_, false)) {
    busy_->ring->take_reply();
    if (busy_->ring->outstanding() == 0) busy_ = nullptr;
    return;
  }
  busy_->leave();
  std::erase_if(ways_, [this](const auto& each) { return &each.second == busy_; });
  busy_ = nullptr;
}

// -- for the links ------------------------------------------------------------------------------

void TargetRelay::asked(SlotNumber slot, const LinkRef& link) {
  const auto found = ways_.find(slot);
  if (found != ways_.end() && found->second.state == Way::State::kAskedFor)
    found->second.link = link;
}

// A process may have several slots: whichever it was asked for, it is the same.
bool TargetRelay::open(const LinkRef& link, local::Conduit conduit, std::uint32_t bell) {
  for (auto& [slot, way] : ways_) {
    if (way.state != Way::State::kAskedFor || way.link.get() != link.get()) continue;
    way.state = conduit ? Way::State::kOpen : Way::State::kNowhere;
    if (conduit) way.ring.emplace(std::move(conduit));
    way.bell = bell;
    return true;
  }
  return false;
}

void TargetRelay::has_nobody(SlotNumber slot) {
  const auto found = ways_.find(slot);
  if (found != ways_.end() && found->second.state == Way::State::kAskedFor)
    found->second.state = Way::State::kNowhere;
}

bool TargetRelay::lost(const Link& link) {
  bool found = false;
  for (auto& [slot, way] : ways_) {
    if (way.link.get() != &link) continue;
    if (way.state == Way::State::kAskedFor) way.state = Way::State::kNowhere;
    way.is_lost = found = true;
  }
  return found;
}

void TargetRelay::ring_if_needed() {
  for (auto& [slot, way] : ways_)
    if (way.ring) way.ring_bell();
}

void TargetRelay::close() {
  for (auto& [slot, way] : ways_)
    if (way.ring) way.leave();
  ways_.clear();
  busy_ = nullptr;
  is_ending_ = false;
}

}  // namespace verbena::nic
