// SPDX-License-Identifier: MIT
// How fast one queue pair may send: hears what becomes of its packets, and says how many bytes may
// be on their way and when the next packet may leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.h"

namespace verbena::roce {

class Congestion {
 public:
  virtual ~Congestion() = default;
  virtual void sent(std::size_t bytes, Instant now) = 0;
  // `round_trip` where it could be measured.
  virtual void acknowledged(std::size_t bytes, std::optional<Duration> round_trip, Instant now) = 0;
  // A CNP came (A17.9.3).
  virtual void notified(Instant now) = 0;
  // A gap showed.
  virtual void lost(Instant now) = 0;
  // Nothing was answered for the local ACK timeout.
  virtual void timed_out(Instant now) { lost(now); }
  // Bytes that may be on their way and not acknowledged.
  virtual std::size_t window() const = 0;
  // The next packet does not leave before this; in the past: at once.
  virtual Instant next_departure(Instant now) = 0;
};

}  // namespace verbena::roce
