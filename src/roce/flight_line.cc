// SPDX-License-Identifier: MIT
#include "roce/flight_line.h"

#include <algorithm>
#include <bit>

namespace verbena::roce {

FlightLine::FlightLine(std::uint32_t most)
    : mask_(std::bit_ceil(std::max(1u, most)) - 1),
      flights_(std::make_unique<Flight[]>(mask_ + std::size_t{1})) {}

const Flight* FlightLine::find(Psn psn) const {
  std::uint32_t from = head_;
  std::uint32_t upto = tail_;
  while (from != upto) {
    const std::uint32_t middle = from + (upto - from) / 2;
    if (at(middle).contains(psn)) return &at(middle);
    if (psn - at(middle).first < 0)
      upto = middle;
    else
      from = middle + 1;
  }
  return nullptr;
}

}  // namespace verbena::roce
