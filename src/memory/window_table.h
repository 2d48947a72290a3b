// SPDX-License-Identifier: MIT
// Memory windows: keys for a part of a region, given out and taken back by work requests instead of
// calls (IBTA vol 1, 10.6.6.2, 10.6.7.2).
//
// A key is 1:1 | random:6 | place:17 | tag:8. The first bit tells it from a region's key; the tag
// is the program's to choose (type 2), or counts the binds (type 1).
//
// A window is good for peers only, who come through the responder: windows are not published, so
// nobody on this host executes through one by himself. Binding happens inside an access section
// (10.8.3.2 puts it in the order of the send queue), so it cannot wait for other sections, as
// taking away a region does. Instead whoever touches memory through a window counts itself while it
// does (WindowTable::Use). A window that is to change gives nothing from then on, and changes when
// nobody is left; kBusy says: not yet, ask again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "base/short_lock.h"
#include "base/types.h"
#include "memory/region_table.h"

namespace verbena::memory {

// Numbered as in verbs (enum ibv_mw_type).
enum class WindowType : std::uint8_t { kOne = 1, kTwo = 2 };

struct WindowBinding {
  MemoryKey key;  // from now on; its upper 24 bits say which window
  MemoryKey region;
  std::uint64_t address = 0;  // of the first byte, as the region counts
  std::uint64_t length = 0;
  std::uint32_t access = 0;  // what peers may do, and kZeroBased: they count from 0
};

enum class WindowRefusal : std::uint8_t {
  kBusy,          // somebody is using what it was bound to: once more, a little later
  kNoSuchWindow,  // or it was deallocated, or has another key now
  kOtherDomain,   // window, region and queue pair are not of one domain (C10-72)
  kOtherQueuePair,
  kStillBound,  // type 2: it is invalidated before it is bound again (o10-37.2.30)
  kWrongType,   // type 1 counting from 0 (o10-36.2.2), to be invalidated, or type 2 of no length
  kBadRights,   // none that a window can give
  kRegion,  // no such region, it does not hold the range, or may not be bound (C10-73 to C10-75)
};

class WindowTable {
 public:
  static constexpr std::uint32_t kTagMask = 0xff;
  static constexpr std::uint32_t kWindowsMax = 65'536;

  static constexpr bool is_key(MemoryKey key) { return key.value >> 31 != 0; }

  WindowTable(RegionTable& regions, RandomSource& random) : regions_(regions), random_(random) {}
  ~WindowTable();
  WindowTable(const WindowTable&) = delete;
  WindowTable& operator=(const WindowTable&) = delete;

  // Its first key, which is good for nothing until it is bound. kTooMany.
  Result<MemoryKey, RegisterError> add(PdId pd, WindowType type);
  // Of any key it had. After the return nobody touches memory through it. Not in an access section.
  void remove(MemoryKey key);

  // -- in an access section
  // Type 1 of no length: bound to nothing.
  std::optional<WindowRefusal> bind(const RemoteUser& user, const WindowBinding& wanted);
  // Local or remote, of a type 2 window that is bound to this queue pair (o10-37.2.26).
  std::optional<WindowRefusal> invalidate(const RemoteUser& user, MemoryKey key);
  // A queue pair goes to RESET, or goes: what was bound to it is bound to nothing.
  void release(QpNum qp);

  std::uint32_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  // All zero is a free place.
  struct alignas(64) Window {
    std::atomic<std::uint32_t> key;  // 0: gives nothing
    std::atomic<std::uint32_t> users;
    ShortLock lock;      // of whoever changes it
    std::uint32_t name;  // the upper 24 bits of all of its keys; 0: a free place
    PdId pd;
    QpNum qp;  // type 2, bound
    WindowType type;
    std::uint32_t access;
    const RegionEntry* region;  // null: bound to nothing
    std::uint64_t iova;
    std::uint64_t length;
    std::uint64_t offset;  // of its first byte in the region
  };

 public:
  // The use of a window by one request of a peer.
  class Use {
   public:
    Use(const WindowTable& table, const RemoteUser& user, MemoryKey key);
    ~Use() {
      if (window_) window_->users.fetch_sub(1, std::memory_order_release);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    Result<RegionLease, RegionRefusal> lease(std::uint64_t address, std::uint64_t length,
                                             std::uint32_t access) const;
    // The same of the window as a whole.
    Result<RegionLease, RegionRefusal> lease_all(std::uint32_t access) const;

   private:
    Window* window_ = nullptr;
    RemoteUser user_;
  };

 private:
  static constexpr std::uint32_t kPlaceShift = 8;
  static constexpr std::uint32_t kPlaces = 1u << 17;
  static constexpr std::uint32_t kWords = kPlaces / 64;

  Window* find(MemoryKey key) const;
  std::uint32_t free_place();  // with the lock
  std::uint32_t new_name(std::uint32_t place, std::uint32_t before);
  // With the window's lock. False: it is in use; it gives nothing any more.
  static bool let_go(Window& window);
  std::optional<WindowRefusal> check(const Window& window, const RemoteUser& user,
                                     const WindowBinding& wanted) const;

  RegionTable& regions_;
  RandomSource& random_;
  Mutex lock_;
  std::atomic<Window*> places_{nullptr};
  std::unique_ptr<std::uint64_t[]> taken_;  // a bit for each place
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> bound_to_queue_pairs_{0};  // ever; a hint
};

}  // namespace verbena::memory
