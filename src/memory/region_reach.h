// SPDX-License-Identifier: MIT
// The memory of many short ranges in one region: looked up for the first of them, then known for
// all others of the same access section, that ask for the same rights.
#pragma once

#include "memory/region_table.h"

namespace verbena::memory {

class RegionReach {
 public:
  // Has nothing.
  RegionReach() = default;
  // What a program names for itself, whatever its key: no region is asked for.
  static RegionReach of_program() {
    RegionReach reach;
    reach.key_ = 0;
    reach.last_ = ~std::uint64_t{0};
    return reach;
  }
  // Ranges of `length` bytes in the region of this lease, which was given for this key and for as
  // many bytes. It has nothing where the region is not in one piece.
  RegionReach(MemoryKey key, const RegionLease& lease, std::uint64_t length) {
    const RegionLease::Whole whole = lease.whole();
    if (!whole.memory.address) return;
    key_ = key.value;
    key_bits_ = ~std::uint32_t{0};
    first_ = whole.iova;
    last_ = whole.memory.length - length;
    shift_ = reinterpret_cast<std::uint64_t>(whole.memory.address) - whole.iova;
  }

  bool has(MemoryKey key, std::uint64_t address) const {
    return (key.value & key_bits_) == key_ && address - first_ <= last_;
  }
  // Of an address that it has; any other gives a pointer that is not to be used.
  std::byte* at(std::uint64_t address) const {
    return reinterpret_cast<std::byte*>(address + shift_);
  }

 private:
  std::uint32_t key_ = 1;  // in key_bits_: no key has it at first
  std::uint32_t key_bits_ = 0;
  std::uint64_t first_ = 0;  // addresses from here on,
  std::uint64_t last_ = 0;   // less first_
  std::uint64_t shift_ = 0;  // from address to memory
};

}  // namespace verbena::memory
