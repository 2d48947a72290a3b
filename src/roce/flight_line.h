// SPDX-License-Identifier: MIT
// The requester's operations laid out on the line of packet sequence numbers. A SEND or a WRITE
// takes one PSN a packet, a READ one for each packet of its answer, an atomic one (IBTA vol 1,
// 9.7.2, 9.7.3).
#pragma once

#include <cstdint>
#include <memory>

#include "qp/operation.h"
#include "wire/sequence.h"

namespace verbena::roce {

using wire::Psn;

// One operation on its way.
struct Flight {
  qp::OpIndex index;
  Psn first;
  std::uint32_t packets = 1;
  std::uint32_t part = 1;      // of a READ: packets that one request asks for
  bool brings_back = false;    // READ or atomic: done when its answer is there
  bool begins_longer = false;  // its first packet is longer than those that follow
  std::uint64_t length = 0;    // bytes that its packets carry, one way or the other
  std::uint64_t before = 0;    // bytes of all operations before it, since the beginning

  Psn end() const { return first + packets; }
  // Where the part of a READ ends that `psn` belongs to.
  Psn part_end(Psn psn) const {
    const std::uint32_t upto = (static_cast<std::uint32_t>(psn - first) / part + 1) * part;
    return first + (upto < packets ? upto : packets);
  }
  bool contains(Psn psn) const { return psn - first >= 0 && psn - end() < 0; }
};

// Those that are on their way, oldest first. Fixed room.
class FlightLine {
 public:
  // Rounded up to a power of two.
  explicit FlightLine(std::uint32_t most);

  bool is_empty() const { return head_ == tail_; }
  bool is_full() const { return tail_ - head_ > mask_; }
  const Flight& oldest() const { return at(head_); }
  const Flight& newest() const { return at(tail_ - 1); }
  const Flight& newest_but_one() const { return at(tail_ - 2); }
  std::uint32_t size() const { return tail_ - head_; }
  void push(const Flight& flight) { flights_[tail_++ & mask_] = flight; }
  void pop() { ++head_; }
  void clear() { head_ = tail_; }
  // Null: the PSN belongs to none of them.
  const Flight* find(Psn psn) const;

 private:
  const Flight& at(std::uint32_t place) const { return flights_[place & mask_]; }

  std::uint32_t mask_;
  std::unique_ptr<Flight[]> flights_;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
};

}  // namespace verbena::roce
