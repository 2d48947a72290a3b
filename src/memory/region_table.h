// SPDX-License-Identifier: MIT
// Memory regions: which memory a key names, who may touch it, and the end of that right (IBTA vol
// 1, 10.6).
//
// A key is 32 random bits of the kernel's generator; the lower ones happen to be a free place of
// the table, so a look-up is one load and a compare. Whoever touches a region's memory holds a
// lease on it; taking the region away waits for the leases that are out, which is short, because a
// lease covers one copy of bounded length.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "base/types.h"

namespace verbena::memory {

// Numbered as in verbs (enum ibv_access_flags).
enum AccessFlag : std::uint32_t {
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  kRemoteAtomic = 8,
  kWindowBind = 16,
  kZeroBased = 32,
  kOnDemand = 64,
};

// A piece of memory that belongs together.
struct Extent {
  std::byte* address = nullptr;
  std::size_t length = 0;
};

enum class RegionRefusal : std::uint8_t {
  kNoSuchKey,     // or taken away
  kOtherDomain,   // the key belongs to another protection domain
  kOutOfRange,    // not inside the region, or the range wraps
  kNoPermission,  // the region does not allow this kind of access
  kFault,         // the memory behind it is not there (unmapped, protected)
};

enum class RegisterError : std::uint8_t { kBadRange, kBadAccess, kTooMany, kBusy };

// Flags that make no sense: remote write or atomic without local write (11.2.8.2), unknown bits
// outside the optional range.
bool is_valid_access(std::uint32_t access);

struct RegionConfig {
  PdId pd;
  std::uint64_t iova = 0;       // the address by which work requests name the region's first byte
  std::uint32_t access = 0;     // AccessFlag
  std::vector<Extent> extents;  // in order; together they are the region
};

class RegionTable;

// The right to touch one range until destroyed. Cheap to make; never kept across calls.
class RegionLease {
 public:
  RegionLease(RegionLease&& other) noexcept;
  ~RegionLease();
  // The range in order. Most have one extent; `next` gives the following ones, empty after the
  // last.
  Extent next();

 private:
  friend class RegionTable;
  // Left to the implementation.
  struct Entry;
  RegionLease(Entry* entry, std::uint64_t offset, std::uint64_t length)
      : entry_(entry), offset_(offset), left_(length) {}
  Entry* entry_;
  std::uint64_t offset_;
  std::uint64_t left_;
};

class RegionTable {
 public:
  RegionTable(std::uint32_t regions_max, RandomSource& random);
  ~RegionTable();

  // Checks that every page is there with the rights asked for (without changing it), then gives out
  // a key that was not used lately. The range check is safe against wrap-around. Length 0 is
  // kBadRange.
  Result<MemoryKey, RegisterError> add(RegionConfig config);
  // New domain, rights or memory under the same key or a new one (11.2.8.5); on refusal the old
  // region stays.
  Result<MemoryKey, RegisterError> change(MemoryKey key, RegionConfig config);
  // False when there is no such region. After the return nobody touches its memory any more.
  bool remove(MemoryKey key);

  // The one check of key, domain, range and rights. A length of 0 needs no valid key (IBTA vol
  // 1, 9.7.4.1.2 says that a zero-length request is not checked): callers do not ask.
  Result<RegionLease, RegionRefusal> lease(MemoryKey key, PdId pd, std::uint64_t address,
                                           std::uint64_t length, std::uint32_t access);
  std::uint32_t count() const;

 private:
  Mutex lock_;
  // Left to the implementation.
};

// Copies `length` bytes in ascending order as a whole: of every copy the last bytes become visible
// last, since programs spin on the last byte of a WRITE. False when one side's memory is not there:
// whatever was copied stays copied.
bool guarded_copy(std::byte* to, const std::byte* from, std::size_t length);

// Between a list of SGEs (from byte `offset` of their concatenation) and a buffer; checks every SGE
// it touches. gather needs no right; scatter needs local write.
Result<void, RegionRefusal> gather(RegionTable& table, PdId pd, std::span<const Sge> from,
                                   std::uint64_t offset, std::span<std::byte> to);
Result<void, RegionRefusal> scatter(RegionTable& table, PdId pd, std::span<const Sge> to,
                                    std::uint64_t offset, std::span<const std::byte> from);
// The same between a remote range and a buffer.
Result<void, RegionRefusal> write_range(RegionTable& table, PdId pd, MemoryKey key,
                                        std::uint64_t address, std::span<const std::byte> from);
Result<void, RegionRefusal> read_range(RegionTable& table, PdId pd, MemoryKey key,
                                       std::uint64_t address, std::span<std::byte> to);
// An 8-byte atomic on naturally aligned memory with CPU atomicity; gives the value before. Needs
// kRemoteAtomic. `add`: adds `operand`; otherwise swaps in `swap` where the value equals `operand`.
struct AtomicRequest {
  bool add = false;
  std::uint64_t operand = 0;
  std::uint64_t swap = 0;
};
Result<std::uint64_t, RegionRefusal> atomic_on_range(RegionTable& table, PdId pd, MemoryKey key,
                                                     std::uint64_t address, AtomicRequest request);

}  // namespace verbena::memory
