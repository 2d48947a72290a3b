// SPDX-License-Identifier: MIT
// WRITEs of up to eight bytes into memory of the peer that we do not map, by its memory as a file
// (host/memory_file.h). One of each queue pair; all calls in its access section.
//
// Of a longer one the last eight bytes have to go by themselves, and the iovec of a second piece
// cannot be taken back (revocable_piece.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/memory_file.h"
#include "local/conduit.h"
#include "local/peer_memory.h"
#include "local/revocable_piece.h"

namespace verbena::local {

// After a failure one goes another way, and twice as many after each that follows: what always
// fails costs nothing, and what works again is soon found out about.
class RetryPause {
 public:
  static constexpr std::uint32_t kMost = 4096;

  bool is_over() {
    if (left_ == 0) return true;
    --left_;
    return false;
  }
  void failed() {
    left_ = next_;
    next_ = std::min(next_ * 2, kMost);
  }
  void worked() { next_ = 1; }

 private:
  std::uint32_t left_ = 0;
  std::uint32_t next_ = 1;
};

class SmallReach {
 public:
  static constexpr std::uint64_t kMost = RevocablePiece::kMost;

  void attach(PeerMemory& peer, ConduitHeader& header);

  // How much is about to be written; before the right to it is looked at.
  void show(std::uint64_t length) {
    header_->small_length.store(length <= kMost ? length : 0, std::memory_order_relaxed);
  }
  // False: it has to go another way, as if nothing had happened.
  bool write(const std::byte* from, std::uint64_t length, std::uint64_t to);
  // After an operation, whichever way it took: gets ready for one that follows soon.
  void prepare();

 private:
  // Soon: operations that follow each other so close, in ticks, are worth a look after each moment.
  static constexpr std::uint64_t kSoon = host::MemoryFile::kMoment / 2;

  bool is_ready();

  PeerMemory* peer_ = nullptr;
  ConduitHeader* header_ = nullptr;
  RevocablePiece piece_;
  bool can_write_ = true;  // a piece is there, or was not tried
  RetryPause pause_;
  bool wants_piece_ = false;
  bool wants_look_ = false;
  std::uint64_t last_ = 0;  // in ticks
};

}  // namespace verbena::local
