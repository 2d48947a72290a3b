// SPDX-License-Identifier: MIT
// The inside of crc32.h: the CRC by tables, and by carry-less multiplication where the processor
// has it. Both go on from a raw state, without the inversions at both ends. A state is what is to
// be added to the next four bytes; so it is taken as a number of eight, and whoever wants to add
// something to the next four puts it there (of fewer bytes, nothing).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/crc32.h"

namespace verbena::crc {

// Any number of bytes, anywhere.
std::uint32_t by_tables(std::uint64_t state, const std::byte* bytes, std::size_t count);

// How many bits the processor multiplies at a time. kTables until the library is initialised.
enum class Folding : std::uint8_t { kTables, k128, k256, k512 };
Folding folding();
// For tests: from now on as a processor that can do no more than this. What it is now.
Folding limit_folding(Folding most);

// What by_folding takes at least.
inline constexpr std::size_t kFoldMin = 4;

// At least kFoldMin bytes. Where the processor cannot do it, by tables.
std::uint32_t by_folding(std::uint64_t state, const std::byte* bytes, std::size_t count);

// crc_fold, of any number of bytes.
CrcBlock block_by_tables(const CrcBlock& before, const std::byte* bytes, std::size_t count);
CrcBlock block_by_folding(const CrcBlock& before, const std::byte* bytes, std::size_t count);

}  // namespace verbena::crc
