// SPDX-License-Identifier: MIT
#include "memory/window_table.h"

#include <sched.h>

#include <bit>

#include "base/assert.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

constexpr std::uint32_t kGivesWrites = kRemoteWrite | kRemoteAtomic;
// Local write is every region's owner's, and some programs write it down.
constexpr std::uint32_t kWindowRights =
    kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic | kZeroBased | kFlushGlobal;

}  // namespace

WindowTable::~WindowTable() {
  if (Window* const places = places_.load()) {
    raw::unmap(reinterpret_cast<std::byte*>(places), kPlaces * sizeof(Window));
  }
}

WindowTable::Window* WindowTable::find(MemoryKey key) const {
  Window* const places = places_.load(std::memory_order_acquire);
  if (!places || !is_key(key)) return nullptr;
  return &places[key.value >> kPlaceShift & (kPlaces - 1)];
}

// -- allocating -----------------------------------------------------------------------------------

// At most half of them are taken.
std::uint32_t WindowTable::free_place() {
  for (;;) {
    const auto place = static_cast<std::uint32_t>(random_.next() % (kPlaces - 1));
    if (!(taken_[place / 64] >> place % 64 & 1)) return place;
  }
}

// Never that of the window that had the place before.
std::uint32_t WindowTable::new_name(std::uint32_t place, std::uint32_t before) {
  constexpr std::uint32_t kFirst = 0x80000000;
  constexpr std::uint32_t kRandomMask = 0x7e000000;
  for (;;) {
    const auto random = static_cast<std::uint32_t>(random_.next() >> 32) & kRandomMask;
    const std::uint32_t name = kFirst | random | place << kPlaceShift;
    if (name != before) return name;
  }
}

Result<MemoryKey, RegisterError> WindowTable::add(PdId pd, WindowType type) {
  const std::lock_guard guard(lock_);
  if (count() >= kWindowsMax) return refuse(RegisterError::kTooMany);
  Window* places = places_.load(std::memory_order_relaxed);
  if (!places) {
    std::byte* const memory = raw::map_private(kPlaces * sizeof(Window));
    if (memory == raw::failed()) return refuse(RegisterError::kTooMany);
    places = reinterpret_cast<Window*>(memory);
    taken_ = std::make_unique<std::uint64_t[]>(kWords);
    places_.store(places, std::memory_order_release);
  }
  const std::uint32_t place = free_place();
  Window& window = places[place];
  {
    const std::lock_guard change(window.lock);
    // access keeps the name that the place had, while it is free.
    window.name = new_name(place, window.access);
    window.pd = pd;
    window.type = type;
    window.access = 0;
  }
  taken_[place / 64] |= std::uint64_t{1} << place % 64;
  count_.fetch_add(1, std::memory_order_relaxed);
  return MemoryKey{window.name | (static_cast<std::uint32_t>(random_.next()) & kTagMask)};
}

void WindowTable::remove(MemoryKey key) {
  Window* const window = find(key);
  VERBENA_ASSERT(window && window->name == (key.value & ~kTagMask));
  for (;;) {
    {
      const std::lock_guard change(window->lock);
      if (let_go(*window)) {
        window->access = std::exchange(window->name, 0);
        break;
      }
    }
    sched_yield();
  }
  const std::lock_guard guard(lock_);
  const std::uint32_t place = key.value >> kPlaceShift & (kPlaces - 1);
  taken_[place / 64] &= ~(std::uint64_t{1} << place % 64);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

// -- binding --------------------------------------------------------------------------------------

bool WindowTable::let_go(Window& window) {
  // Who counts itself later sees the key gone.
  window.key.store(0, std::memory_order_seq_cst);
  if (window.users.load(std::memory_order_seq_cst) != 0) return false;
  if (window.region) window.region->windows.fetch_sub(1, std::memory_order_release);
  window.region = nullptr;
  window.qp = {};
  return true;
}

// What needs no look at the region.
std::optional<WindowRefusal> WindowTable::check(const Window& window, const RemoteUser& user,
                                                const WindowBinding& wanted) const {
  if (window.name == 0 || window.name != (wanted.key.value & ~kTagMask)) {
    return WindowRefusal::kNoSuchWindow;
  }
  if (window.pd != user.pd) return WindowRefusal::kOtherDomain;
  if (wanted.access & ~kWindowRights) return WindowRefusal::kBadRights;
  if (window.type == WindowType::kOne) {
    const bool is_refused = wanted.length != 0 && wanted.access & kZeroBased;
    return is_refused ? std::optional(WindowRefusal::kWrongType) : std::nullopt;
  }
  if (wanted.length == 0) return WindowRefusal::kWrongType;
  // One that is about to be let go is bound, too.
  if (window.region) return WindowRefusal::kStillBound;
  return std::nullopt;
}

std::optional<WindowRefusal> WindowTable::bind(const RemoteUser& user,
                                               const WindowBinding& wanted) {
  Window* const window = find(wanted.key);
  if (!window) return WindowRefusal::kNoSuchWindow;
  const std::lock_guard change(window->lock);
  if (const auto refusal = check(*window, user, wanted)) return refusal;
  if (wanted.length == 0) {
    return let_go(*window) ? std::nullopt : std::optional(WindowRefusal::kBusy);
  }
  const std::uint32_t needed = kWindowBind | (wanted.access & kGivesWrites ? kLocalWrite : 0u);
  const auto lease = regions_.lease(wanted.region, user.pd, wanted.address, wanted.length, needed);
  if (!lease) {
    return lease.error() == RegionRefusal::kOtherDomain ? WindowRefusal::kOtherDomain
                                                        : WindowRefusal::kRegion;
  }
  if (!let_go(*window)) return WindowRefusal::kBusy;
  window->region = lease->entry_;
  // This section keeps the region from going; from here on the count does.
  window->region->windows.fetch_add(1, std::memory_order_relaxed);
  window->offset = lease->offset_;
  window->iova = wanted.access & kZeroBased ? 0 : wanted.address;
  window->length = wanted.length;
  window->access = wanted.access;
  if (window->type == WindowType::kTwo) {
    window->qp = user.qp;
    bound_to_queue_pairs_.fetch_add(1, std::memory_order_relaxed);
  }
  window->key.store(wanted.key.value, std::memory_order_release);
  return std::nullopt;
}

std::optional<WindowRefusal> WindowTable::invalidate(const RemoteUser& user, MemoryKey key) {
  Window* const window = find(key);
  if (!window) return WindowRefusal::kNoSuchWindow;
  const std::lock_guard change(window->lock);
  if (window->name != (key.value & ~kTagMask)) return WindowRefusal::kNoSuchWindow;
  if (window->type != WindowType::kTwo) return WindowRefusal::kWrongType;
  if (window->pd != user.pd) return WindowRefusal::kOtherDomain;
  if (window->region && window->qp != user.qp) return WindowRefusal::kOtherQueuePair;
  if (window->key.load(std::memory_order_relaxed) != key.value) return WindowRefusal::kNoSuchWindow;
  // We are in this queue pair's section; others look at the window only to find it not theirs.
  while (!let_go(*window))
    sched_yield();
  return std::nullopt;
}

void WindowTable::release(QpNum qp) {
  if (bound_to_queue_pairs_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard guard(lock_);
  Window* const places = places_.load(std::memory_order_relaxed);
  for (std::uint32_t word = 0; word < kWords; ++word) {
    for (std::uint64_t bits = taken_[word]; bits != 0; bits &= bits - 1) {
      Window& window = places[word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits))];
      for (bool is_done = false; !is_done;) {
        const std::lock_guard change(window.lock);
        const bool is_bound_to_it =
            window.region && window.type == WindowType::kTwo && window.qp == qp;
        is_done = !is_bound_to_it || let_go(window);
      }
    }
  }
}

// -- using ----------------------------------------------------------------------------------------

WindowTable::Use::Use(const WindowTable& table, const RemoteUser& user, MemoryKey key)
    : user_(user) {
  Window* const window = table.find(key);
  // Not counting who comes with a key that is over, keeps it from keeping the window busy.
  if (!window || window->key.load(std::memory_order_relaxed) != key.value) return;
  window->users.fetch_add(1, std::memory_order_seq_cst);
  window_ = window;
  if (window->key.load(std::memory_order_seq_cst) == key.value) return;
  window->users.fetch_sub(1, std::memory_order_release);
  window_ = nullptr;
}

Result<RegionLease, RegionRefusal> WindowTable::Use::lease(std::uint64_t address,
                                                           std::uint64_t length,
                                                           std::uint32_t access) const {
  if (!window_) return refuse(RegionRefusal::kNoSuchKey);
  const Window& window = *window_;
  const bool is_ours =
      window.pd == user_.pd && (window.type == WindowType::kOne || window.qp == user_.qp);
  if (!is_ours) return refuse(RegionRefusal::kOtherDomain);
  const std::uint64_t offset = address - window.iova;
  if (offset > window.length || length > window.length - offset) {
    return refuse(RegionRefusal::kOutOfRange);
  }
  if ((window.access & access) != access) return refuse(RegionRefusal::kNoPermission);
  return RegionLease(window.region, window.offset + offset, length);
}

Result<RegionLease, RegionRefusal> WindowTable::Use::lease_all(std::uint32_t access) const {
  if (!window_) return refuse(RegionRefusal::kNoSuchKey);
  return lease(window_->iova, window_->length, access);
}

}  // namespace verbena::memory
