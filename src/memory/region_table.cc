// SPDX-License-Identifier: MIT
#include "memory/region_table.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>

#include "base/assert.h"
#include "memory/fault_guard.h"
#include "memory/null_memory.h"
#include "memory/page_check.h"
#include "memory/window_table.h"

namespace verbena::memory {
namespace {

constexpr std::uint32_t kRegionsMost = 1u << 24;  // leaves 7 bits of a key to chance alone
constexpr std::uint32_t kKeyMask = 0x7fffffff;
static_assert(!WindowTable::is_key({kKeyMask}));

std::size_t table_bytes(std::uint32_t places) {
  return std::size_t{places} * (sizeof(RegionEntry) + sizeof(std::uint32_t));
}

// Raw, since libraries of the program may hook libc's. Null when there is no room.
std::byte* map_memory(std::size_t bytes) {
  const long address = syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == -1 ? nullptr : reinterpret_cast<std::byte*>(address);
}

// What a table without memory shows to all look-ups.
constinit RegionEntry no_entry{};

bool writes(std::uint32_t access) {
  return (access & (kLocalWrite | kRemoteWrite | kRemoteAtomic)) != 0;
}

// The memory of a region as a list: empty extents dropped, neighbours joined. None when it is no
// region.
std::optional<std::vector<RegionPiece>> pieces_of(const RegionConfig& config) {
  std::vector<RegionPiece> pieces;
  std::uint64_t total = 0;
  for (const Extent& extent : config.extents) {
    if (extent.length == 0) continue;
    const std::uint64_t begin = total;
    if (__builtin_add_overflow(total, extent.length, &total)) return std::nullopt;
    const auto address = reinterpret_cast<std::uintptr_t>(extent.address);
    if (address + (extent.length - 1) < address) return std::nullopt;
    if (!pieces.empty() &&
        pieces.back().address + (begin - pieces.back().begin) == extent.address) {
      pieces.back().end = total;
    } else {
      pieces.push_back({.address = extent.address, .begin = begin, .end = total});
    }
  }
  if (pieces.empty() && config.may_be_empty) return std::vector<RegionPiece>(1);
  // The last byte must have an address of its own.
  if (total == 0 || config.iova + (total - 1) < config.iova) return std::nullopt;
  return pieces;
}

bool all_there(const std::vector<RegionPiece>& pieces, bool is_written) {
  return std::all_of(pieces.begin(), pieces.end(), [&](const RegionPiece& piece) {
    return piece.begin == piece.end ||
           memory_is_there(piece.address, piece.end - piece.begin, is_written);
  });
}

Result<std::unique_ptr<std::vector<RegionPiece>>, RegisterError> checked(
    const RegionConfig& config) {
  if (!is_valid_access(config.access)) return refuse(RegisterError::kBadAccess);
  if (config.is_null) {
    if (!map_null_memory()) return refuse(RegisterError::kTooMany);
    return std::make_unique<std::vector<RegionPiece>>(
        1, RegionPiece{.address = null_memory.load(), .begin = 0, .end = ~std::uint64_t{0}});
  }
  std::optional<std::vector<RegionPiece>> pieces = pieces_of(config);
  const bool is_checked_later = config.access & kOnDemand;
  if (!pieces || (!is_checked_later && !all_there(*pieces, writes(config.access)))) {
    return refuse(RegisterError::kBadRange);
  }
  return std::make_unique<std::vector<RegionPiece>>(*std::move(pieces));
}

}  // namespace

bool is_valid_access(std::uint32_t access) {
  constexpr std::uint32_t kKnown = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic |
                                   kWindowBind | kZeroBased | kOnDemand | kHugePages | kFlushGlobal;
  constexpr std::uint32_t kOptional = 0x3ff00000;
  if (access & ~(kKnown | kOptional)) return false;
  return !(access & (kRemoteWrite | kRemoteAtomic)) || (access & kLocalWrite);
}

Extent RegionLease::next_piece() const {
  const auto piece =
      std::upper_bound(entry_->pieces->begin(), entry_->pieces->end(), offset_,
                       [](std::uint64_t at, const RegionPiece& p) { return at < p.end; });
  // Never all at once: so whoever has a short way for memory in one piece, and would write here,
  // takes the other.
  if (is_null_memory(piece->address))
    return {.address = piece->address, .length = std::min(left_ > 1 ? left_ - 1 : 1, kNullBytes)};
  // A number: a region of all memory begins at no object.
  const auto begin = reinterpret_cast<std::uintptr_t>(piece->address);
  return {.address = reinterpret_cast<std::byte*>(begin + (offset_ - piece->begin)),
          .length = std::min(left_, piece->end - offset_)};
}

std::byte* RegionLease::one_piece_of(RegionLease list) {
  const Extent first = list.next_piece();
  return first.length == list.left_ ? first.address : nullptr;
}

RegionTable::RegionTable(std::uint32_t regions_max, RandomSource& random, AccessSections& sections)
    : random_(random),
      sections_(sections),
      memory_(map_memory(table_bytes(std::bit_ceil(std::max(regions_max, 1u))))),
      regions_max_(memory_ ? regions_max : 0),
      place_mask_(memory_ ? std::bit_ceil(std::max(regions_max, 1u)) - 1 : 0),
      entries_(memory_ ? reinterpret_cast<RegionEntry*>(memory_) : &no_entry),
      free_places_(reinterpret_cast<std::uint32_t*>(entries_ + place_mask_ + 1)),
      windows_(std::make_unique<WindowTable>(*this, random)) {
  VERBENA_ASSERT(regions_max <= kRegionsMost);
}

RegionTable::~RegionTable() {
  for (std::uint32_t i = 0; lists_ > 0 && i <= place_mask_; ++i) {
    if (!entries_[i].pieces) continue;
    delete entries_[i].pieces;
    --lists_;
  }
  if (memory_) syscall(SYS_munmap, memory_, table_bytes(place_mask_ + 1));
}

std::uint32_t RegionTable::take_place() {
  const std::uint32_t free_count = regions_max_ - count_.load(std::memory_order_relaxed);
  const auto chosen = static_cast<std::uint32_t>(random_.next() % free_count);
  const auto value = [&](std::uint32_t i) { return free_places_[i] ? free_places_[i] - 1 : i; };
  const std::uint32_t place = value(chosen);
  free_places_[chosen] = value(free_count - 1) + 1;
  count_.fetch_add(1, std::memory_order_relaxed);
  return place;
}

void RegionTable::give_back_place(std::uint32_t place) {
  const std::uint32_t count = count_.fetch_sub(1, std::memory_order_relaxed);
  free_places_[regions_max_ - count] = place + 1;
}

MemoryKey RegionTable::new_key(std::uint32_t place) {
  auto& past = entries_[place].past_keys;
  std::uint32_t key = (static_cast<std::uint32_t>(random_.next() >> 33) & ~place_mask_) | place;
  const auto is_used_up = [&] {
    // 0 is what programs put where they have none.
    return key == 0 || std::find(std::begin(past), std::end(past), key) != std::end(past);
  };
  while (is_used_up())
    key = (key + place_mask_ + 1) & kKeyMask;
  std::copy_backward(std::begin(past), std::end(past) - 1, std::end(past));
  past[0] = key;
  return {key};
}

void RegionTable::fill(RegionEntry& entry, const RegionConfig& config,
                       std::unique_ptr<std::vector<RegionPiece>> pieces) {
  if (entry.pieces) --lists_;
  delete entry.pieces;
  entry.pd = config.pd.value;
  entry.access = config.access;
  entry.iova = config.iova;
  entry.length = pieces->back().end;
  const bool is_list = pieces->size() > 1 || !pieces->front().address || config.is_null;
  entry.address = is_list ? nullptr : pieces->front().address;
  entry.pieces = is_list ? pieces.release() : nullptr;
  if (is_list) ++lists_;
}

Result<MemoryKey, RegisterError> RegionTable::add(const RegionConfig& config) {
  auto pieces = checked(config);
  if (!pieces) return refuse(pieces.error());
  install_fault_guard();
  std::lock_guard guard(lock_);
  if (count() >= regions_max_) return refuse(RegisterError::kTooMany);
  const std::uint32_t place = take_place();
  const MemoryKey key = new_key(place);
  RegionEntry& entry = entries_[place];
  fill(entry, config, *std::move(pieces));
  entry.own_key = key.value;
  entry.key.store(key.value, std::memory_order_release);
  return key;
}

Result<MemoryKey, RegisterError> RegionTable::change(MemoryKey key, const RegionConfig& config) {
  auto pieces = checked(config);
  if (!pieces) return refuse(pieces.error());
  RegionEntry& entry = place_of(key);
  if (const auto refusal = close(key)) return refuse(*refusal);
  if (reopened_for_windows(key)) return refuse(RegisterError::kBusy);
  std::lock_guard guard(lock_);
  fill(entry, config, *std::move(pieces));
  entry.key.store(key.value, std::memory_order_release);
  return key;
}

std::optional<RegisterError> RegionTable::close(MemoryKey key) {
  RegionEntry& entry = place_of(key);
  {
    std::lock_guard guard(lock_);
    if (key.value == 0 || entry.own_key != key.value) return RegisterError::kNoSuchKey;
    // Whoever closed it owns the place until it is open or free again.
    if (entry.key.exchange(0, std::memory_order_seq_cst) == 0) return RegisterError::kBusy;
  }
  sections_.wait_until_left();
  return std::nullopt;
}

// Windows are bound in access sections: what saw the key before it was hidden has counted itself.
bool RegionTable::reopened_for_windows(MemoryKey key) {
  if (!has_windows(key)) return false;
  place_of(key).key.store(key.value, std::memory_order_release);
  return true;
}

bool RegionTable::remove(MemoryKey key) {
  std::optional<RegisterError> refusal = close(key);
  while (refusal == RegisterError::kBusy) {
    sched_yield();
    refusal = close(key);
  }
  if (refusal || reopened_for_windows(key)) return false;
  RegionEntry& entry = place_of(key);
  std::lock_guard guard(lock_);
  if (entry.pieces) --lists_;
  delete std::exchange(entry.pieces, nullptr);
  entry.own_key = 0;
  give_back_place(key.value & place_mask_);
  return true;
}

// Places are filled and emptied with the lock held.
Result<std::vector<Extent>, RegionRefusal> RegionTable::look_up(MemoryKey key, PdId pd,
                                                                std::uint64_t address,
                                                                std::uint64_t length,
                                                                std::uint32_t access) {
  const std::lock_guard guard(lock_);
  auto found = lease(key, pd, address, length, access);
  if (!found) return refuse(found.error());
  std::vector<Extent> extents;
  for (Extent next = found->next(); next.length != 0; next = found->next())
    extents.push_back(next);
  return extents;
}

}  // namespace verbena::memory
