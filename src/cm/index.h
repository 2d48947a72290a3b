// SPDX-License-Identifier: MIT
// Finds numbers by the hash of what they stand for: open addressing. Grows to what was needed once,
// and then never again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/assert.h"

namespace verbena::cm {

class Index {
 public:
  // The number of that hash which `is_it` accepts, or -1.
  template <class IsIt>
  std::int64_t find(std::uint32_t hash, const IsIt& is_it) const {
    const std::size_t mask = places_.size() - 1;
    for (std::size_t i = hash & mask; places_[i].used; i = (i + 1) & mask) {
      if (places_[i].hash == hash && is_it(places_[i].number)) return places_[i].number;
    }
    return -1;
  }

  void insert(std::uint32_t hash, std::uint32_t number) {
    if (2 * ++count_ > places_.size()) grow();
    put({hash, number, true});
  }

  void erase(std::uint32_t hash, std::uint32_t number) {
    const std::size_t mask = places_.size() - 1;
    std::size_t i = hash & mask;
    while (places_[i].hash != hash || places_[i].number != number || !places_[i].used) {
      VERBENA_ASSERT(places_[i].used);
      i = (i + 1) & mask;
    }
    --count_;
    // Entries behind it that came past this place move up, so that no search ends early.
    for (std::size_t next = (i + 1) & mask; places_[next].used; next = (next + 1) & mask) {
      const std::size_t home = places_[next].hash & mask;
      if (((next - home) & mask) < ((next - i) & mask)) continue;
      places_[i] = places_[next];
      i = next;
    }
    places_[i].used = false;
  }

  std::size_t size() const { return count_; }
  std::size_t room() const { return places_.size(); }

 private:
  struct Place {
    std::uint32_t hash = 0;
    std::uint32_t number = 0;
    bool used = false;
  };

  void put(Place place) {
    const std::size_t mask = places_.size() - 1;
    std::size_t i = place.hash & mask;
    while (places_[i].used)
      i = (i + 1) & mask;
    places_[i] = place;
  }
  void grow() {
    const std::vector<Place> old = std::exchange(places_, std::vector<Place>(2 * places_.size()));
    for (const Place& place : old) {
      if (place.used) put(place);
    }
  }

  std::vector<Place> places_ = std::vector<Place>(64);  // a power of two, at most half of it used
  std::size_t count_ = 0;
};

}  // namespace verbena::cm
