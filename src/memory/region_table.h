// SPDX-License-Identifier: MIT
// Memory regions: which memory a key names, who may touch it, and the end of that right (IBTA vol
// 1, 10.6).
//
// A key is 31 random bits of the kernel's generator (the first is a window's); the lower ones
// happen to be a free place of the table, so a look-up is one load and a compare. Whoever touches a
// region's memory is in an access section (access_sections.h). Taking a region away hides its key,
// then waits until every section that may have seen it is over: a lease costs its user nothing to
// get or to give back.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/pieces.h"
#include "base/random.h"
#include "base/result.h"
#include "base/types.h"
#include "memory/access_sections.h"
#include "memory/guarded_copy.h"

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
  kHugePages = 128,
  kFlushGlobal = 256,
  kFlushPersistent = 512,  // no region has it: nothing here outlives its memory
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
  kMisaligned,    // an atomic on an address that is no multiple of 8
};

enum class RegisterError : std::uint8_t {
  kBadRange,   // length 0, wraps, or memory that is not there with the rights asked for
  kBadAccess,  // see is_valid_access
  kTooMany,
  kBusy,  // another thread is changing or removing this region now
  kNoSuchKey,
};

// False for flags that make no sense: remote write or atomic without local write (11.2.8.2),
// unknown bits outside the optional range (bits 20 to 29, which a device may ignore).
bool is_valid_access(std::uint32_t access);

struct RegionConfig {
  PdId pd;
  std::uint64_t iova = 0;       // the address by which work requests name the region's first byte
  std::uint32_t access = 0;     // AccessFlag
  std::vector<Extent> extents;  // in order; together they are the region
  bool may_be_empty = false;    // then its key is good for nothing but zero bytes
  bool is_null = false;         // all addresses, and null_memory.h behind them; no extents
};

// A piece of a region: its memory, and which bytes of the region it holds.
struct RegionPiece {
  std::byte* address;
  std::uint64_t begin;
  std::uint64_t end;
};

// One place of the table: a cache line. All zero is a free place, so that fresh memory needs no
// work.
struct alignas(64) RegionEntry {
  static constexpr unsigned kPastKeys = 3;

  std::atomic<std::uint32_t> key;  // 0: gives no leases
  std::uint32_t own_key;           // also while it is being changed or removed; 0: a free place
  std::uint32_t pd;
  std::uint32_t access;
  std::uint64_t iova;
  std::uint64_t length;
  std::byte* address;                // where the region is one piece, not at address 0; else
  std::vector<RegionPiece>* pieces;  // in order
  std::uint32_t past_keys[kPastKeys];
  mutable std::atomic<std::uint32_t> windows;  // that are bound to it
};
static_assert(sizeof(RegionEntry) == 64);

class RegionTable;
class WindowTable;

// For whom memory is touched that a peer has named: a queue pair, and its domain.
struct RemoteUser {
  RemoteUser() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): without windows the domain is all there is.
  constexpr RemoteUser(PdId domain, QpNum number = {}) : pd(domain), qp(number) {}
  PdId pd;
  QpNum qp;
};

// The right to touch one range until the access section ends in which it was given.
class RegionLease {
 public:
  // The range in order. Most have one extent; `next` gives the following ones, empty after the
  // last.
  Extent next() {
    if (left_ == 0) return {};
    const Extent extent = entry_->address ? Extent{entry_->address + offset_, left_} : next_piece();
    offset_ += extent.length;
    left_ -= extent.length;
    return extent;
  }
  // The memory of all of the range, which is not empty; null where it is not in one piece.
  std::byte* in_one_piece() const {
    if (entry_->address) [[likely]]
      return entry_->address + offset_;
    return one_piece_of(*this);
  }
  // The region that the range is a part of, where that is in one piece: for those who touch more of
  // it in this access section, with the same rights.
  struct Whole {
    std::uint64_t iova = 0;
    Extent memory;
  };
  Whole whole() const { return {entry_->iova, {entry_->address, entry_->length}}; }

 private:
  friend class RegionTable;
  friend class WindowTable;
  RegionLease(const RegionEntry* entry, std::uint64_t offset, std::uint64_t length)
      : entry_(entry), offset_(offset), left_(length) {}
  Extent next_piece() const;
  // A copy: who never comes here keeps no lease in memory.
  [[gnu::cold]] static std::byte* one_piece_of(RegionLease list);

  const RegionEntry* entry_;
  std::uint64_t offset_;
  std::uint64_t left_;
};

class RegionTable {
 public:
  // Up to 2^24 regions. The memory is touched as it is used; when there is no room even for the
  // addresses, the table takes no region at all.
  RegionTable(std::uint32_t regions_max, RandomSource& random, AccessSections& sections);
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  // Checks that every page is there with the rights asked for (kOnDemand: when it is used), then
  // gives out a key that was not used lately: never 0 and never all ones. The range check is safe
  // against wrap-around. Length 0 is kBadRange.
  Result<MemoryKey, RegisterError> add(const RegionConfig& config);
  // New domain, rights or memory under the same key (11.2.8.5 allows it, and work requests that are
  // posted stay good). On refusal the old region stays; after the return nobody touches the old
  // memory any more. kBusy also while windows are bound to it.
  Result<MemoryKey, RegisterError> change(MemoryKey key, const RegionConfig& config);
  // False when there is no such region, or windows are bound to it (10.6.6.2.4). After the return
  // nobody touches its memory any more. Never called from an access section.
  bool remove(MemoryKey key);
  // As it is now: a queue pair may bind one, or let go of one, at any time.
  bool has_windows(MemoryKey key) const {
    const RegionEntry& entry = place_of(key);
    return entry.own_key == key.value && entry.windows.load(std::memory_order_acquire) != 0;
  }
  WindowTable& windows() { return *windows_; }

  // The one check of key, domain, range and rights. In an access section only. A length of 0 needs
  // no valid key (IBTA vol 1, 9.7.4.1.2 says that a zero-length request is not checked): callers do
  // not ask.
  [[gnu::always_inline]] Result<RegionLease, RegionRefusal> lease(MemoryKey key, PdId pd,
                                                                  std::uint64_t address,
                                                                  std::uint64_t length,
                                                                  std::uint32_t access) const {
    const RegionEntry& entry = place_of(key);
    if (entry.key.load(std::memory_order_acquire) != key.value || key.value == 0) [[unlikely]]
      return refuse(RegionRefusal::kNoSuchKey);
    if (entry.pd != pd.value) [[unlikely]]
      return refuse(RegionRefusal::kOtherDomain);
    // An address below the region wraps to an offset above its length, because iova + length does
    // not wrap.
    const std::uint64_t offset = address - entry.iova;
    if (offset > entry.length || length > entry.length - offset) [[unlikely]]
      return refuse(RegionRefusal::kOutOfRange);
    if ((entry.access & access) != access) [[unlikely]]
      return refuse(RegionRefusal::kNoPermission);
    return RegionLease(&entry, offset, length);
  }
  // The same of a region as a whole.
  Result<void, RegionRefusal> check(MemoryKey key, PdId pd, std::uint32_t access) const {
    const RegionEntry& entry = place_of(key);
    const auto lease_of_all = lease(key, pd, entry.iova, entry.length, access);
    if (!lease_of_all) return refuse(lease_of_all.error());
    return {};
  }
  // The memory of a range, for a thread in no access section: what it hears may be over already.
  Result<std::vector<Extent>, RegionRefusal> look_up(MemoryKey key, PdId pd, std::uint64_t address,
                                                     std::uint64_t length, std::uint32_t access);
  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  RegionEntry& place_of(MemoryKey key) const { return entries_[key.value & place_mask_]; }
  // After it gives nothing the caller owns the place: nobody has a lease on it, gets one, or closes
  // it.
  std::optional<RegisterError> close(MemoryKey key);
  // Of what was closed: windows are bound to it, so it is open again.
  bool reopened_for_windows(MemoryKey key);
  // With the lock held.
  std::uint32_t take_place();
  void give_back_place(std::uint32_t place);
  MemoryKey new_key(std::uint32_t place);
  void fill(RegionEntry& entry, const RegionConfig& config,
            std::unique_ptr<std::vector<RegionPiece>> pieces);

  Mutex lock_;
  RandomSource& random_;
  AccessSections& sections_;
  std::byte* const memory_;  // entries, then free places
  const std::uint32_t regions_max_;
  const std::uint32_t place_mask_;
  RegionEntry* const entries_;
  // The first regions_max_ - count_ are the free places; 0 means the place of this number, others
  // one less than they say, so that fresh memory is right.
  std::uint32_t* const free_places_;
  std::atomic<std::uint32_t> count_{0};
  std::uint32_t lists_ = 0;  // regions of several pieces
  std::unique_ptr<WindowTable> windows_;
};

// Between a list of SGEs (from byte `offset` of their concatenation) and a buffer; checks every SGE
// it touches. gather needs no right; scatter needs local write.
Result<void, RegionRefusal> gather(RegionTable& table, PdId pd, std::span<const Sge> from,
                                   std::uint64_t offset, std::span<std::byte> to);
Result<void, RegionRefusal> gather_pieces(RegionTable& table, PdId pd, std::span<const Sge> from,
                                          std::uint64_t offset, const Pieces& to);
Result<void, RegionRefusal> scatter(RegionTable& table, PdId pd, std::span<const Sge> to,
                                    std::uint64_t offset, std::span<const std::byte> from);
Result<void, RegionRefusal> scatter_pieces(RegionTable& table, PdId pd, std::span<const Sge> to,
                                           std::uint64_t offset, const ConstPieces& from);
// Bytes [offset, offset + length) of the concatenation of a list.
struct ListRange {
  std::span<const Sge> list;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};
// The memory behind them as extents; `access` as for lease. How many of `out` were filled; it must
// have room for them all. Good in this access section.
Result<std::size_t, RegionRefusal> extents_of(const RegionTable& table, PdId pd,
                                              const ListRange& range, std::uint32_t access,
                                              std::span<Extent> out);
// The same between a remote range and a buffer: its key may be a window's.
Result<void, RegionRefusal> write_range(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                        std::uint64_t address, std::span<const std::byte> from);
Result<void, RegionRefusal> write_pieces(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                         std::uint64_t address, const ConstPieces& from);
Result<void, RegionRefusal> read_range(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                       std::uint64_t address, std::span<std::byte> to);
// The check alone. Without length: of all that the key names.
Result<void, RegionRefusal> check_range(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                        std::uint64_t address, std::optional<std::uint64_t> length,
                                        std::uint32_t access);
// An 8-byte atomic on naturally aligned memory with CPU atomicity; gives the value before. Needs
// kRemoteAtomic. `add`: adds `operand`; otherwise swaps in `swap` where the value equals `operand`.
struct AtomicRequest {
  bool add = false;
  std::uint64_t operand = 0;
  std::uint64_t swap = 0;
};
Result<std::uint64_t, RegionRefusal> atomic_on_range(RegionTable& table, const RemoteUser& user,
                                                     MemoryKey key, std::uint64_t address,
                                                     AtomicRequest request);
// Eight bytes, all at once. Needs kRemoteWrite.
using Word = std::array<std::byte, sizeof(std::uint64_t)>;
Result<void, RegionRefusal> write_word(RegionTable& table, const RemoteUser& user, MemoryKey key,
                                       std::uint64_t address, const Word& word);

}  // namespace verbena::memory
