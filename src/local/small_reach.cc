// SPDX-License-Identifier: MIT
#include "local/small_reach.h"

#include "base/ticks.h"

namespace verbena::local {

void SmallReach::attach(PeerMemory& peer, ConduitHeader& header) {
  peer_ = &peer;
  header_ = &header;
  piece_ = RevocablePiece();
  can_write_ = true;
  wants_piece_ = wants_look_ = false;
  pause_ = {};
  last_ = 0;
}

bool SmallReach::is_ready() {
  const std::uint64_t now = ticks();
  const bool is_soon = now - last_ < kSoon;
  last_ = now;
  wants_look_ = is_soon && peer_->file().is_due(now);
  return peer_->file().may_use(now);
}

bool SmallReach::write(const std::byte* from, std::uint64_t length, std::uint64_t to) {
  if (length > kMost || !can_write_ || !pause_.is_over() || !is_ready()) return false;
  wants_piece_ = !piece_;
  if (!piece_) return false;
  const iovec* const piece = piece_.fill(from, length);
  if (piece && peer_->file().write(piece, length, to)) {
    pause_.worked();
    return true;
  }
  pause_.failed();
  return false;
}

void SmallReach::prepare() {
  if (wants_look_) peer_->look_at_file();
  wants_look_ = false;
  if (!wants_piece_) return;
  wants_piece_ = false;
  piece_ = RevocablePiece(*header_);
  can_write_ = static_cast<bool>(piece_);
}

}  // namespace verbena::local
