// SPDX-License-Identifier: MIT
// A carrier takes the operations of one queue pair to its peer and brings the answers, and serves
// the peer's requests. Called with the queue pair's lock held. It never blocks and never waits for
// the peer.
#pragma once

#include <cstddef>
#include <optional>

#include "base/time.h"
#include "qp/responder.h"
#include "qp/send_window.h"

namespace verbena::qp {

// How much may be done before somebody else has a turn. Counts bytes copied and operations.
struct Budget {
  std::size_t bytes = 256 * 1024;
  unsigned operations = 64;
  bool spent() const { return bytes == 0 || operations == 0; }
  void take(std::size_t copied) {
    bytes -= copied < bytes ? copied : bytes;
    operations -= operations ? 1 : 0;
  }
};

class Carrier {
 public:
  virtual ~Carrier() = default;
  // Sends what the window offers, as far as there is room and budget. May answer at once.
  virtual void issue(SendWindow& window, Budget& budget, const Now& now) = 0;
  // Takes the answers that have come, and fires timers that are due.
  virtual void collect(SendWindow& window, Budget& budget, const Now& now) = 0;
  // Executes the peer's requests that have come. True: there is more, call again.
  virtual bool serve(Responder& responder, Budget& budget, const Now& now) = 0;
  // When collect wants to be called although nothing came.
  virtual std::optional<Instant> next_deadline() const = 0;
  // True: nothing of ours touches the peer's memory any more, nor the peer ours.
  virtual bool quiesced() = 0;
};

}  // namespace verbena::qp
