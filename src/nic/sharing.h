// SPDX-License-Identifier: MIT
// What this process shares with its peers on this host so that they can execute one-sided
// operations by themselves: its published tables (local/published.h), its regions in them, adopted
// memory (memory/adoption.h); and taking all that back.
//
// Taking back is one protocol for regions and queue pairs: clear what is published, fence, wait
// until each peer that was in an access section has left it. A peer that does not leave for 10 ms
// is stopped, or hostile: then its iovecs are emptied, so that a call it was about to make moves
// nothing, and the pages it may have mapped become private memory elsewhere.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/section_lock.h"
#include "base/types.h"
#include "host/control.h"
#include "local/published.h"
#include "memory/adoption.h"
#include "nic/error.h"
#include "nic/links.h"
#include "nic/policy.h"
#include "nic/qp_table.h"
#include "nic/undo_requests.h"

namespace verbena::nic {

class Nic;
class Qp;
struct Mr;

// The lock under which the peer of one of our queue pairs may be touching our memory.
struct PeerSection {
  LinkRef link;  // keeps the lock mapped
  const SectionLock* lock = nullptr;
  QpNum ours;
};

class Sharing final : memory::AdoptionEvents {
 public:
  explicit Sharing(Nic& nic);
  ~Sharing();
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  const Policy& policy() const { return policy_; }

  // -- the control thread ----------------------------------------------------------------------
  void start(host::Control& control, Links& links);
  // There will be no control thread after all; on the thread that started it. Nobody has asked it
  // for anything.
  void stop();
  // Passes to a new peer what it needs.
  void introduce(host::PeerId peer);
  // Of make_private().
  void serve_undo_requests();

  // -- any thread, without a queue pair's lock -------------------------------------------------
  // A region was entered into the table of regions under its key, and may be used as soon as this
  // returns.
  void add(const Mr& mr);
  // Nobody finds it any more. Then the table of regions removes it, then settle() follows.
  void hide(const Mr& mr);
  // After the return no peer touches its memory any more, and it is the program's own again.
  void settle(const Mr& mr);
  // Lives from before a key is good, or stays so, of which settle() forgets the region until add()
  // has it again: who uses the key meanwhile is kept out of pages that move.
  class Change {
   public:
    explicit Change(Sharing& sharing);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    Sharing& sharing_;
  };
  // How peers reach a region: the part of it that they map, or none; false: by the ring only,
  // also once we have peers.
  std::optional<local::MappedPart> mapped_part(MemoryKey key);
  bool can_be_reached(MemoryKey key);
  // After the return nobody touches memory by a grant that was revoked before.
  void wait_until_left(const PeerSection& section);

  // Memory that is shared from the start; kInvalid: not such memory.
  Result<std::byte*, Error> allocate(std::size_t length);
  Result<void, Error> free(std::byte* address);

  // -- any thread, any time: inside an allocator, in a forked child -------------------------------
  // What the preload asks (base/contracts.h). No heap, and no lock that anybody holds while using
  // it.
  static bool overlaps(const void* address, std::size_t length) noexcept;
  static bool give_back(void* address, std::size_t length) noexcept;
  static bool make_private(const void* address, std::size_t length) noexcept;

  // -- with the queue pair's lock --------------------------------------------------------------
  // Null: it takes its own.
  SectionLock* lock_of(QpNum number) const { return published_.lock_of(number); }
  const local::Published& published() const { return published_; }

 private:
  struct Record {
    local::Published::Region region;
    MemoryKey key;
    std::byte* address = nullptr;
    std::size_t length = 0;
    bool is_shown = false;
    bool is_moving = false;  // hidden until its pages are where they shall be
    bool is_going = false;   // hidden for good
    // Memory moves only while somebody waits for it (memory/adoption.h).
    enum class Placing : std::uint8_t { kNo, kAsked, kRunning } placing = Placing::kNo;
    std::optional<memory::Adopted> adopted;
    bool is_mapped = false;  // what was adopted has not become private again
  };
  using Places = std::multimap<const std::byte*, Record*>;
  struct Bytes {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
  };

  // -- the control thread
  bool moving(const std::byte* begin, std::size_t length, bool is_held) override;
  void moved(const std::byte* begin, std::size_t length) override;
  bool hold_own_sections();
  bool try_own_sections();
  void let_own_sections_go();
  // `stack`: an address on the stack of the thread that asks.
  void place(MemoryKey key, const void* stack);
  void stop_placing(MemoryKey key);  // any thread
  void release(std::optional<memory::Adopted> adopted, bool is_stuck);
  memory::Adoption& adoption();
  struct Allocation;
  static void allocate_for(Sharing& sharing, Allocation& asked, std::size_t length);
  void announce();
  std::uint32_t& announced(memory::ArenaKind kind) {
    return announced_[static_cast<std::size_t>(kind)];
  }
  void pass(host::PeerId peer, memory::ArenaKind kind);

  // -- with the lock
  void show(Record& record);
  // `each` of the records that have a byte of these.
  template <class Each>
  void each_with(const Bytes& bytes, const Each& each);
  Places::iterator place_of(const Record& record);

  // The lock of a queue pair: whoever holds it may be waiting for an allocator, and a thread inside
  // that for the control thread, which therefore does not wait long.
  enum class Locking : std::uint8_t { kWaits, kSoonOrNot };
  // kUnknown: that lock was not to be had.
  enum class Left : std::uint8_t { kAll, kNotAll, kUnknown };
  // A thread of ours leaves its section within microseconds, unless the processor is taken from it.
  static constexpr Duration kThreadPatience = Duration::milliseconds(10);
  static bool take_soon(SectionLock& lock);
  Left wait_for_everybody(Locking locking);
  // Calls it with the queue pair's lock; false: that was not to be had.
  template <class Body>
  static bool with_lock(Qp& qp, Locking locking, const Body& body);
  Left wait(const PeerSection& section, Instant begin, Locking locking);
  bool is_given_up(const PeerSection& section, Locking locking);
  // False: that lock was not to be had.
  bool give_up(const PeerSection& section, const SectionLock::Watch& watch, bool is_for_good,
               Locking locking);
  bool ask_for_undo(const std::byte* address, std::size_t length);
  void widen(const std::byte* address, std::size_t length);

  Nic& nic_;
  const Policy policy_;
  host::Control* control_ = nullptr;
  Links* links_ = nullptr;
  host::PrivateFd tables_;                      // the control thread's
  std::unique_ptr<memory::Adoption> adoption_;  // the control thread's
  pid_t control_thread_ = 0;
  // The control thread's: of which generation peers have which file.
  std::array<std::uint32_t, 2> announced_{};

  // For everybody: adoption_, once it is there, and the addresses between which its ranges lie.
  std::atomic<memory::Adoption*> shared_{nullptr};
  std::atomic<std::uintptr_t> lowest_{~std::uintptr_t{0}};
  std::atomic<std::uintptr_t> highest_{0};
  UndoRequests undo_requests_;

  Mutex lock_;  // never with a queue pair's, nor while the heap is used
  local::Published published_;
  bool is_started_ = false;
  bool has_nothing_to_show_ = false;  // no memory for the tables
  std::map<MemoryKey, Record> records_;
  Places places_;                   // of the records, by their first byte
  std::size_t longest_ = 0;         // of the records there were since there was none
  std::size_t whole_memories_ = 0;  // regions of all addresses, which are no records
  std::size_t changing_ = 0;        // regions whose keys are good while they are no records
  Bytes moving_;                    // between moving() and moved()

  std::optional<QpTable::Frozen> frozen_;  // the control thread's, with the locks of all in held_
  Qp* held_ = nullptr;
};

}  // namespace verbena::nic
