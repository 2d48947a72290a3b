// SPDX-License-Identifier: MIT
// Copies between regions and buffers. A lease is held for one bounded piece at a time, so that
// whoever takes a region away waits for microseconds, not for a gigabyte.
#include <algorithm>

#include "memory/region_table.h"

namespace verbena::memory {
namespace {

constexpr std::size_t kPieceBytes = 256 * 1024;

struct Range {
  MemoryKey key;
  std::uint64_t address;
  std::uint64_t length;
};

// Calls copy(memory of the region, offset in the range, length) over the whole range, in order. All
// of what is left is checked before each piece, so nothing of a range is touched that is bad
// anywhere.
template <class Copy>
Result<void, RegionRefusal> for_pieces(RegionTable& table, PdId pd, const Range& range,
                                       std::uint32_t access, Copy copy) {
  std::uint64_t done = 0;
  while (done < range.length) {
    auto lease = table.lease(range.key, pd, range.address + done, range.length - done, access);
    if (!lease) return refuse(lease.error());
    std::size_t budget = kPieceBytes;
    while (budget > 0) {
      const Extent extent = lease->next();
      if (extent.length == 0) break;
      const std::size_t length = std::min(extent.length, budget);
      if (!copy(extent.address, done, length)) return refuse(RegionRefusal::kFault);
      done += length;
      // The rest of an extent that the budget cuts comes with the next lease.
      budget = length < extent.length ? 0 : budget - length;
    }
  }
  return {};
}

// Splits bytes [offset, offset + length) of the list's concatenation into ranges and calls
// each(range, offset in them).
template <class Each>
Result<void, RegionRefusal> for_sges(std::span<const Sge> list, std::uint64_t offset,
                                     std::uint64_t length, Each each) {
  std::uint64_t done = 0;
  for (const Sge& sge : list) {
    if (done == length) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::uint64_t part = std::min(sge.length - offset, length - done);
    const Range range{.key = sge.key, .address = sge.address + offset, .length = part};
    if (const auto moved = each(range, done); !moved) return moved;
    done += part;
    offset = 0;
  }
  if (done < length) return refuse(RegionRefusal::kOutOfRange);
  return {};
}

Result<void, RegionRefusal> store(RegionTable& table, PdId pd, const Range& range,
                                  std::uint32_t access, const std::byte* from) {
  return for_pieces(table, pd, range, access,
                    [from](std::byte* memory, std::uint64_t at, std::size_t length) {
                      return guarded_copy(memory, from + at, length);
                    });
}

Result<void, RegionRefusal> load(RegionTable& table, PdId pd, const Range& range,
                                 std::uint32_t access, std::byte* to) {
  return for_pieces(table, pd, range, access,
                    [to](std::byte* memory, std::uint64_t at, std::size_t length) {
                      return guarded_copy(to + at, memory, length);
                    });
}

}  // namespace

Result<void, RegionRefusal> gather(RegionTable& table, PdId pd, std::span<const Sge> from,
                                   std::uint64_t offset, std::span<std::byte> to) {
  return for_sges(from, offset, to.size(), [&](const Range& range, std::uint64_t done) {
    return load(table, pd, range, 0, to.data() + done);
  });
}

Result<void, RegionRefusal> scatter(RegionTable& table, PdId pd, std::span<const Sge> to,
                                    std::uint64_t offset, std::span<const std::byte> from) {
  return for_sges(to, offset, from.size(), [&](const Range& range, std::uint64_t done) {
    return store(table, pd, range, kLocalWrite, from.data() + done);
  });
}

Result<std::size_t, RegionRefusal> extents_of(const RegionTable& table, PdId pd,
                                              const ListRange& range, std::uint32_t access,
                                              std::span<Extent> out) {
  std::size_t count = 0;
  const auto add = [&](const Range& part, std::uint64_t) -> Result<void, RegionRefusal> {
    auto lease = table.lease(part.key, pd, part.address, part.length, access);
    if (!lease) return refuse(lease.error());
    for (Extent extent = lease->next(); extent.length != 0; extent = lease->next()) {
      if (count == out.size()) return refuse(RegionRefusal::kOutOfRange);
      out[count++] = extent;
    }
    return {};
  };
  if (const auto all = for_sges(range.list, range.offset, range.length, add); !all)
    return refuse(all.error());
  return count;
}

Result<void, RegionRefusal> write_range(RegionTable& table, PdId pd, MemoryKey key,
                                        std::uint64_t address, std::span<const std::byte> from) {
  return store(table, pd, {.key = key, .address = address, .length = from.size()}, kRemoteWrite,
               from.data());
}

Result<void, RegionRefusal> read_range(RegionTable& table, PdId pd, MemoryKey key,
                                       std::uint64_t address, std::span<std::byte> to) {
  return load(table, pd, {.key = key, .address = address, .length = to.size()}, kRemoteRead,
              to.data());
}

namespace {

// An aligned word of one region. It may give its memory other addresses than the processor does,
// and be of several pieces.
Result<std::byte*, RegionRefusal> word_at(const RegionTable& table, PdId pd, MemoryKey key,
                                          std::uint64_t address, std::uint32_t access) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  if (address % kWord != 0) return refuse(RegionRefusal::kMisaligned);
  auto lease = table.lease(key, pd, address, kWord, access);
  if (!lease) return refuse(lease.error());
  const Extent word = lease->next();
  if (word.length < kWord || reinterpret_cast<std::uintptr_t>(word.address) % kWord != 0) {
    return refuse(RegionRefusal::kMisaligned);
  }
  return word.address;
}

}  // namespace

Result<std::uint64_t, RegionRefusal> atomic_on_range(RegionTable& table, PdId pd, MemoryKey key,
                                                     std::uint64_t address, AtomicRequest request) {
  const auto word = word_at(table, pd, key, address, kRemoteAtomic);
  if (!word) return refuse(word.error());
  std::uint64_t before = 0;
  const bool done = request.add
                        ? guarded_fetch_add(*word, request.operand, before)
                        : guarded_compare_swap(*word, request.operand, request.swap, before);
  if (!done) return refuse(RegionRefusal::kFault);
  return before;
}

// guarded_copy stores an aligned word by one instruction.
Result<void, RegionRefusal> write_word(RegionTable& table, PdId pd, MemoryKey key,
                                       std::uint64_t address, const Word& word) {
  const auto to = word_at(table, pd, key, address, kRemoteWrite);
  if (!to) return refuse(to.error());
  if (!guarded_copy(*to, word.data(), word.size())) return refuse(RegionRefusal::kFault);
  return {};
}

}  // namespace verbena::memory
