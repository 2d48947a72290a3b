// SPDX-License-Identifier: MIT
// Touching memory that a program registered and may have unmapped, protected or truncated since: a
// fault is an answer, never the end of the program. Costs nothing when there is no fault
// (docs/decisions/0006-faults-in-registered-memory.md). The sanitizers do not see these accesses:
// that a program reads its memory while a peer writes it is RDMA's nature.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::memory {

// Copies `length` bytes in ascending order, each byte written once. Of every copy the last bytes
// become visible last, after all others (very long ones have no order before that): programs spin
// on the last byte of a WRITE. 1, 2, 4 or 8 bytes that lie in one aligned word are stored by one
// instruction, for those who spin on a word. False when one side's memory is not there: whatever
// was copied stays copied. The ranges may overlap; then the bytes are undefined, as in RDMA.
bool guarded_copy(std::byte* to, const std::byte* from, std::size_t length);

// CPU atomics on an aligned word; `before` gets the value before. False when the memory is not
// there.
bool guarded_fetch_add(std::byte* word, std::uint64_t operand, std::uint64_t& before);
bool guarded_compare_swap(std::byte* word, std::uint64_t expected, std::uint64_t wanted,
                          std::uint64_t& before);

// The same in portable C++, which other processors use; tested everywhere.
namespace portable {
bool guarded_copy(std::byte* to, const std::byte* from, std::size_t length);
bool guarded_fetch_add(std::byte* word, std::uint64_t operand, std::uint64_t& before);
bool guarded_compare_swap(std::byte* word, std::uint64_t expected, std::uint64_t wanted,
                          std::uint64_t& before);
}  // namespace portable

}  // namespace verbena::memory
