// SPDX-License-Identifier: MIT
// The book of adopted ranges (adoption.h): which there are, who holds them, and in which file.
//
// The book lies in memory of its own, and nothing here uses the heap: a fork copies and puts back
// under the lock, while the forking thread may hold the heap's lock; and the heap itself may be
// what moves.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/mutex.h"
#include "base/result.h"
#include "memory/adoption.h"
#include "memory/adoption_fork.h"
#include "memory/adoption_license.h"
#include "memory/arena.h"
#include "memory/page_mover.h"

namespace verbena::memory {

enum class RangeState : std::uint8_t {
  kFree,     // of the book's places
  kShared,   // in its file
  kKept,     // in its file though it should be private: taking it back failed
  kPrivate,  // taken back though registrations, or its owner, hold it
};

// All zero is a free place, so that fresh memory needs no work.
struct AdoptedRange {
  // 0 unless the memory is in a file; read by any thread.
  std::atomic<std::uintptr_t> shared_begin;
  std::atomic<std::uintptr_t> shared_end;
  std::byte* begin;
  std::size_t length;
  std::byte* park;
  std::uint64_t offset;
  std::uint64_t serial;
  std::uint32_t holders;  // registrations
  std::uint32_t arena;
  RangeState state;
  bool is_allocated;
  bool has_owner;  // allocated and not freed
  // While the program forks.
  bool has_copy;
  int rights;
};

class AdoptionTable final : private ForkParticipant {
 public:
  explicit AdoptionTable(const AdoptionOptions& options);
  AdoptionTable(const AdoptionTable&) = delete;
  AdoptionTable& operator=(const AdoptionTable&) = delete;
  ~AdoptionTable();

  // The thread that made it, in the process that did.
  bool is_ours() const;

  Result<Adopted, AdoptRefusal> adopt(const PageRun& body, ArenaKind kind, const std::byte* stack);
  void release(AdoptedId id);
  Result<std::byte*, AdoptRefusal> allocate(std::size_t length);
  bool free(std::byte* address);
  std::size_t expel();
  bool undo_range(const std::byte* address, std::size_t length);
  bool overlaps(const std::byte* address, std::size_t length) const;
  bool give_back(std::byte* address, std::size_t length);
  int descriptor(ArenaKind kind) const;
  std::uint32_t generation() const { return generation_; }
  bool needs_single_thread() const { return !mover_.can_move_under_use(); }
  AdoptionCounters counters() const;
  void close();

 private:
  static constexpr std::uint32_t kArenasMax = 16;
  static constexpr std::uint32_t kNoArena = kArenasMax;

  void before_fork() override;
  void after_fork_in_parent() override;
  void after_fork_in_child() override;
  void copy_for_child(AdoptedRange& range, const ProcessMap& map) const;
  void show_to_children(const AdoptedRange& range, const ProcessMap& map, bool shall_show) const;
  void give_to_child(AdoptedRange& range) const;

  Result<void, AdoptRefusal> check_room(std::size_t length);
  Result<void, AdoptRefusal> check_process(std::size_t length);
  Result<Adopted, AdoptRefusal> adopt_fresh(const PageRun& body, ArenaKind kind,
                                            const std::byte* stack);
  Result<void, AdoptRefusal> map_allocated(AdoptedRange& range, std::size_t length);
  Result<std::uint32_t, AdoptRefusal> current_arena(ArenaKind kind);
  Result<void, AdoptRefusal> take_place(ArenaKind kind, AdoptedRange& range);
  void begin_generation();
  void drop_arena_if_unused(std::uint32_t index);
  AdoptedRange* free_place();
  AdoptedRange* find(AdoptedId id);
  void enter(AdoptedRange& range, const PageRun& pages, std::byte* park);
  // Null: no adopted range has a part of it.
  AdoptedRange* find_overlapping(const PageRun& body) const;
  Result<void, AdoptRefusal> check_share(const AdoptedRange& range, const PageRun& body,
                                         ArenaKind kind) const;
  bool is_needed_to_move(const PageRun& body) const;
  bool is_in_place(const ProcessMap& map, const AdoptedRange& range, const PageRun& body) const;
  bool lock_patiently();
  bool lock_between_forks();
  bool is_held_up_by_fork() const;
  Adopted tell(const AdoptedRange& range, const PageRun& body) const;
  AdoptedId id_of(const AdoptedRange& range) const;
  bool is_current(const AdoptedRange& range) const;
  MovedPages pages_of(const AdoptedRange& range) const;

  bool take_back(AdoptedRange& range);
  bool begin_move(const PageRun& pages, bool is_held);
  void end_move(const PageRun& pages);
  void drop(AdoptedRange& range);
  void settle(AdoptedRange& range);
  void retry_kept();
  void forget_shared(AdoptedRange& range);
  void forget(AdoptedRange& range);
  void unmap_allocated(AdoptedRange& range);

  const AdoptionLimits limits_;
  AdoptionEvents* const events_;
  const pid_t process_;
  const pid_t thread_;
  const PageRun stack_;  // the thread's
  AdoptionLicense license_;
  PageMover mover_;
  const std::uint32_t quiet_threads_;
  std::array<std::optional<Arena>, kArenasMax> arenas_;
  std::array<std::uint32_t, kArenasMax> arena_users_{};
  std::array<std::uint32_t, 2> current_{kNoArena, kNoArena};
  std::uint32_t generation_ = 1;
  bool has_joined_forks_ = false;
  bool is_closed_ = false;
  bool is_closing_ = false;
  std::uint32_t fork_given_up_ = 0;  // the one that was waited for in vain

  Mutex lock_;  // held while memory changes its kind, and while the program forks
  // With the lock held: this process, and its ranges have been looked at.
  std::atomic<bool> is_forking_{false};
  std::atomic<std::uint32_t> forks_{0};
  AdoptedRange* ranges_ = nullptr;
  std::atomic<std::uint32_t> places_used_{0};  // the places from here on are free
  std::uint64_t next_serial_ = 1;
  AdoptionCounters counters_;
};

}  // namespace verbena::memory
