// SPDX-License-Identifier: MIT
// The names in what getdents64(2) gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena::memory {

enum class NamesEnd : std::uint8_t { kAll, kEnough, kBroken };

// Calls see(name) for each, until it says false, which is enough.
template <class See>
NamesEnd each_name(std::span<const char> entries, See see) {
  // As the kernel writes an entry: inode, next, length, type, name with its zero.
  constexpr std::size_t kLengthOffset = 16;
  constexpr std::size_t kNameOffset = 19;
  while (!entries.empty()) {
    if (entries.size() <= kNameOffset) return NamesEnd::kBroken;
    std::uint16_t length = 0;
    std::memcpy(&length, entries.data() + kLengthOffset, sizeof length);
    if (length <= kNameOffset || length > entries.size()) return NamesEnd::kBroken;
    const char* const name = entries.data() + kNameOffset;
    if (!std::memchr(name, 0, length - kNameOffset)) return NamesEnd::kBroken;
    if (!see(name)) return NamesEnd::kEnough;
    entries = entries.subspan(length);
  }
  return NamesEnd::kAll;
}

}  // namespace verbena::memory
