// SPDX-License-Identifier: MIT
// Copies between regions and buffers. A lease is held for one bounded piece at a time, so that
// whoever takes a region away waits for microseconds, not for a gigabyte.
#include <algorithm>

#include "memory/guarded_crc.h"
#include "memory/null_memory.h"
#include "memory/region_table.h"
#include "memory/window_table.h"

namespace verbena::memory {
namespace {

constexpr std::size_t kPieceBytes = 256 * 1024;

struct Range {
  MemoryKey key;
  std::uint64_t address;
  std::uint64_t length;
};

// Calls copy(memory of the region, offset in the range, length) over the whole range, in order. All
// of what is left is checked before each piece, by lease(address, length), so nothing of a range is
// touched that is bad anywhere.
template <class Lease, class Copy>
Result<void, RegionRefusal> for_pieces(const Range& range, Lease lease_of, Copy copy) {
  std::uint64_t done = 0;
  while (done < range.length) {
    auto lease = lease_of(range.address + done, range.length - done);
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

// The program's own memory: the key is a region's.
template <class Copy>
Result<void, RegionRefusal> for_own(const RegionTable& table, PdId pd, const Range& range,
                                    std::uint32_t access, Copy copy) {
  const auto lease = [&](std::uint64_t address, std::uint64_t length) {
    return table.lease(range.key, pd, address, length, access);
  };
  return for_pieces(range, lease, copy);
}

// What a peer has named: it may be a window's.
template <class Copy>
Result<void, RegionRefusal> for_peer(RegionTable& table, const RemoteUser& user, const Range& range,
                                     std::uint32_t access, Copy copy) {
  if (!WindowTable::is_key(range.key)) [[likely]]
    return for_own(table, user.pd, range, access, copy);
  const WindowTable::Use use(table.windows(), user, range.key);
  const auto lease = [&](std::uint64_t address, std::uint64_t length) {
    return use.lease(address, length, access);
  };
  return for_pieces(range, lease, copy);
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

auto store_from(const std::byte* from) {
  return [from](std::byte* memory, std::uint64_t at, std::size_t length) {
    return is_null_memory(memory) || guarded_copy(memory, from + at, length);
  };
}

auto load_to(std::byte* to) {
  return [to](std::byte* memory, std::uint64_t at, std::size_t length) {
    return guarded_copy(to + at, memory, length);
  };
}

// Calls copy(place, number of the piece, memory, length) for the `length` bytes that come at `at`
// in the concatenation of the pieces, and for the memory that they are copied from or to.
template <class AnyPieces, class Byte, class Copy>
bool for_parts(const AnyPieces& pieces, std::uint64_t at, Byte* memory, std::size_t length,
               Copy copy) {
  while (length > 0) {
    const auto inside = static_cast<std::size_t>(at % pieces.bytes);
    const std::size_t part = std::min(length, pieces.bytes - inside);
    const auto number = static_cast<std::size_t>(at / pieces.bytes);
    if (!copy(pieces.first + number * pieces.stride + inside, number, memory, part)) return false;
    at += part;
    memory += part;
    length -= part;
  }
  return true;
}

bool load_pieces(const Pieces& to, std::uint64_t at, const std::byte* memory, std::size_t length) {
  return for_parts(
      to, at, memory, length,
      [&](std::byte* place, std::size_t number, const std::byte* from, std::size_t part) {
        return to.crcs ? guarded_copy_and_crc(place, from, part, to.crcs[number])
                       : guarded_copy(place, from, part);
      });
}

bool store_pieces(const ConstPieces& from, std::uint64_t at, std::byte* memory,
                  std::size_t length) {
  return for_parts(from, at, memory, length,
                   [](const std::byte* place, std::size_t, std::byte* to, std::size_t part) {
                     return guarded_copy(to, place, part);
                   });
}

auto store_from(const ConstPieces& from, std::uint64_t before) {
  return [&from, before](std::byte* memory, std::uint64_t at, std::size_t length) {
    return is_null_memory(memory) || store_pieces(from, before + at, memory, length);
  };
}

}  // namespace

Result<void, RegionRefusal> gather(RegionTable& table, PdId pd, std::span<const Sge> from,
                                   std::uint64_t offset, std::span<std::byte> to) {
  return for_sges(from, offset, to.size(), [&](const Range& range, std::uint64_t done) {
    return for_own(table, pd, range, 0, load_to(to.data() + done));
  });
}

Result<void, RegionRefusal> gather_pieces(RegionTable& table, PdId pd, std::span<const Sge> from,
                                          std::uint64_t offset, const Pieces& to) {
  return for_sges(from, offset, to.total(), [&](const Range& range, std::uint64_t done) {
    return for_own(table, pd, range, 0,
                   [&](const std::byte* memory, std::uint64_t at, std::size_t length) {
                     return load_pieces(to, done + at, memory, length);
                   });
  });
}

Result<void, RegionRefusal> scatter(RegionTable& table, PdId pd, std::span<const Sge> to,
                                    std::uint64_t offset, std::span<const std::byte> from) {
  return for_sges(to, offset, from.size(), [&](const Range& range, std::uint64_t done) {
    return for_own(table, pd, range, kLocalWrite, store_from(from.data() + done));
  });
}

Result<void, RegionRefusal> scatter_pieces(RegionTable& table, PdId pd, std::span<const Sge> to,
                                           std::uint64_t offset, const ConstPieces& from) {
  return for_sges(to, offset, from.total(), [&](const Range& range, std::uint64_t done) {
    return for_own(table, pd, range, kLocalWrite, store_from(from, done));
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

Result<void, RegionRefusal> write_range(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                        std::uint64_t address, std::span<const std::byte> from) {
  const Range range{.key = key, .address = address, .length = from.size()};
  return for_peer(table, user, range, kRemoteWrite, store_from(from.data()));
}

Result<void, RegionRefusal> write_pieces(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                         std::uint64_t address, const ConstPieces& from) {
  const Range range{.key = key, .address = address, .length = from.total()};
  return for_peer(table, user, range, kRemoteWrite, store_from(from, 0));
}

Result<void, RegionRefusal> read_range(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                       std::uint64_t address, std::span<std::byte> to) {
  const Range range{.key = key, .address = address, .length = to.size()};
  return for_peer(table, user, range, kRemoteRead, load_to(to.data()));
}

Result<void, RegionRefusal> check_range(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                        std::uint64_t address, std::optional<std::uint64_t> length,
                                        std::uint32_t access) {
  const auto answer = [](const Result<RegionLease, RegionRefusal>& lease) {
    return lease ? Result<void, RegionRefusal>() : refuse(lease.error());
  };
  if (WindowTable::is_key(key)) {
    const WindowTable::Use use(table.windows(), user, key);
    return answer(length ? use.lease(address, *length, access) : use.lease_all(access));
  }
  if (!length) return table.check(key, user.pd, access);
  return answer(table.lease(key, user.pd, address, *length, access));
}

namespace {

// Calls use(memory) for an aligned word. It may have other addresses for peers than for the
// processor, and be of several pieces.
template <class Do>
Result<void, RegionRefusal> with_word(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                      std::uint64_t address, std::uint32_t access, Do use) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  if (address % kWord != 0) return refuse(RegionRefusal::kMisaligned);
  const Range range{.key = key, .address = address, .length = kWord};
  auto refusal = RegionRefusal::kFault;
  const auto done = for_peer(
      table, user, range, access, [&](std::byte* memory, std::uint64_t, std::size_t length) {
        const bool is_word =
            length == kWord && reinterpret_cast<std::uintptr_t>(memory) % kWord == 0;
        if (!is_word) refusal = RegionRefusal::kMisaligned;
        return is_word && use(memory);
      });
  // What was not done with memory that there is.
  if (!done && done.error() == RegionRefusal::kFault) return refuse(refusal);
  return done;
}

}  // namespace

Result<std::uint64_t, RegionRefusal> atomic_on_range(RegionTable& table, const RemoteUser& user,
                                                     MemoryKey key, std::uint64_t address,
                                                     AtomicRequest request) {
  std::uint64_t before = 0;
  const auto done = with_word(table, user, key, address, kRemoteAtomic, [&](std::byte* word) {
    return request.add ? guarded_fetch_add(word, request.operand, before)
                       : guarded_compare_swap(word, request.operand, request.swap, before);
  });
  if (!done) return refuse(done.error());
  return before;
}

// guarded_copy stores an aligned word by one instruction.
Result<void, RegionRefusal> write_word(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                       std::uint64_t address, const Word& word) {
  return with_word(table, user, key, address, kRemoteWrite,
                   [&](std::byte* to) { return guarded_copy(to, word.data(), word.size()); });
}

}  // namespace verbena::memory
