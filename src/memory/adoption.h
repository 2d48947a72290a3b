// SPDX-License-Identifier: MIT
// Adoption: moving private pages of the program, in place, into a file that peers map, and back.
//
// It changes what memory means (MADV_DONTNEED does not zero a shared mapping, a forked child shares
// it, pinned pages stay behind), so it is licensed narrowly: only whole pages strictly inside a
// region, in one plain private anonymous mapping, small, few; and undone when the last registration
// goes. No byte that anybody writes meanwhile is lost; where that cannot be promised, the answer is
// a refusal and the memory is as before.
//
// How pages move (page_mover.h): the mapping's pages are taken to a *park*, an address range of
// ours, while userfaultfd holds whoever touches the old place. They go through UFFDIO_MOVE, which
// refuses pinned pages, into the file; the file is mapped over the old place; the waiters go on.
// The empty park stays as long as the pages are adopted: it is the program's own mapping with its
// flags, so that the way back ends in the very mapping that there was, which merges with its
// neighbours. It also takes the copy that a forked child gets.
//
// Two users hold memory without touching it, and are looked for (other_threads.h): who sleeps on a
// process-shared futex, or in pthread_join, would never be woken; and a direct read that is under
// way brings its bytes to the old page. Then nothing is adopted, or the range is kept shared after
// its last release and tried again by later calls. The reads of io_uring and aio show nowhere: with
// those nothing is adopted, and what is adopted already is kept as long as they are there.
//
// No child gets adopted memory (MADV_DONTFORK, as ibv_fork_init asks for memory that a device
// uses): one made by fork(3) has copies in its place, one by _Fork or a bare clone(2) nothing.
//
// What it cannot see: a pin of a few microseconds on the way back by another process
// (process_vm_writev into memory whose last registration is just ending). And where the kernel
// gives only a userfaultfd for accesses by programs (an ordinary user, vm.unprivileged_userfaultfd
// 0, /dev/userfaultfd closed), such a process_vm_writev fails with EFAULT during the move; the
// process's own threads do not suffer, since it moves only where none runs.
//
// One object a process. All calls but `overlaps` and `give_back` come from one thread, whose
// descriptor table holds the descriptors: the control thread. Nothing is allocated on the heap
// while memory is on the move, and no lock of others is taken: a thread that holds the heap's lock
// may be waiting for us. Nor is anything read that lies there: it may be what moves.
//
// The thread that asks for a registration waits for the answer with its signals blocked: where the
// kernel cannot hold others (needs_single_thread), a handler would be the one writer that we cannot
// see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "memory/arena.h"

namespace verbena::memory {

// Why memory is not adopted, or not given. Its peers use the ring or process_vm_writev instead.
enum class AdoptRefusal : std::uint8_t {
  kNoWholePage,       // the region has none
  kTooLarge,          // this region is
  kTooMuch,           // all adopted memory together is
  kTooMany,           // ranges
  kOverlap,           // a part of it is adopted already, the rest is not
  kOtherRights,       // it is adopted for peers that may write, and these may not, or the reverse
  kNotPlain,          // not one private anonymous read-write mapping: stack, file, shared, huge ...
  kLocked,            // the process has locked memory
  kPinned,            // somebody holds pages: io_uring, direct I/O, a GPU
  kTrackedElsewhere,  // the program has a userfaultfd on it
  kOtherThreads,      // this process can only do it where nobody else runs, or there are many
  kAsynchronousIo,    // the process has an io_uring or aio: reads in flight could not be seen
  kSleepers,          // a thread sleeps on a futex in it, which is not private to the process
  kAddressSpace,      // RLIMIT_AS or RLIMIT_DATA leaves too little room, or too many mappings
  kFileSizeLimit,     // RLIMIT_FSIZE
  kNoMemory,
  kNoDescriptor,
  kDenied,    // the kernel is too old, or a filter refuses what we need
  kShutDown,  // after close(), or in a forked child
};
const char* to_string(AdoptRefusal refusal);

// Names one adopted range; never used twice. A range that several registrations share has one id,
// and each registration releases it once.
struct AdoptedId {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(AdoptedId, AdoptedId) = default;
};

// Where peers find the memory: the file of this kind and generation, from `offset` on.
struct Adopted {
  AdoptedId id;
  std::byte* begin = nullptr;  // whole pages inside what was asked for
  std::size_t length = 0;
  ArenaKind kind = ArenaKind::kPeersWrite;
  std::uint32_t generation = 0;
  std::uint64_t offset = 0;  // of `begin` in the file
};

struct AdoptionLimits {
  std::size_t region_bytes_max = std::size_t{32} << 20;  // larger transfers do well without
  std::size_t total_bytes_max = std::size_t{256} << 20;  // a fork copies as much
  std::uint32_t ranges_max = 4096;  // each costs up to four of the process's 65530 mappings
  // Ranges up to here get all their pages at once, as pinning would do. Of larger ones the pages
  // that the program has touched are there; the others stay what they are, nothing, and are charged
  // to who touches them first, be it a peer. (Populating them could exceed a memory limit that the
  // program keeps.)
  std::size_t populate_bytes_max = std::size_t{64} << 10;
  std::size_t allocated_bytes_max = std::size_t{256} << 20;  // counts apart from what is adopted
  std::uint64_t places_max = Arena::kPlacesMax;              // of a file
};

// What the owner of the regions is told, on the thread of the calls, with no lock held.
class AdoptionEvents {
 public:
  // The pages of the range are about to move: to a file that peers map, or back though
  // registrations may hold them (expel, undo_range). After the return nobody touches them, because
  // what is written into a page that is copied would be lost: no peer that obeys, by whichever way,
  // and none of our own threads, unless the kernel holds those (`is_held`). False: that cannot be
  // had now, and the range stays where it is; then moved() does not follow.
  virtual bool moving(const std::byte* begin, std::size_t length, bool is_held) = 0;
  // They are where they shall be, or could not be moved. Registrations that held the range as
  // shared memory go on as private memory; their ids are released as always.
  virtual void moved(const std::byte* begin, std::size_t length) = 0;

 protected:
  ~AdoptionEvents() = default;
};

struct AdoptionOptions {
  AdoptionLimits limits = {};
  AdoptionEvents* events = nullptr;
  // Threads that never touch program memory while adopt() or release() runs: the control thread,
  // our NIC threads, and the one that waits for the call.
  std::uint32_t quiet_threads = 1;
  bool use_userfault = true;  // false, for tests: as where the kernel denies it
  bool use_move = true;       // false, for tests: as on a kernel before 6.8
  // For tests: even where this process could hold the kernel's own accesses, too.
  bool for_programs_only = false;
  bool minds_rings = true;  // false, for tests: of asynchronous I/O only pins count
};

struct AdoptionCounters {
  std::uint64_t adopted = 0;  // ranges, ever
  std::uint64_t undone = 0;   // and taken back
  std::uint64_t refused = 0;
  std::uint32_t ranges = 0;         // now
  std::uint32_t kept = 0;           // of these: released, but could not be taken back so far
  std::size_t bytes = 0;            // now
  std::size_t allocated_bytes = 0;  // now
};

class AdoptionTable;
struct AdoptionTableEnd {
  void operator()(AdoptionTable* table) const;
};

class Adoption {
 public:
  // Opens what it needs early, before a program installs its filters. Never fails: what cannot be
  // done is refused call by call.
  explicit Adoption(AdoptionOptions options = {});
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;
  // As close(), if on the right thread; else the memory stays as it is, for good.
  ~Adoption();

  // The pages inside [address, address + length). A range that lies inside an adopted one shares
  // it; otherwise nothing of it may be adopted. `peers_may_write`: which file. `stack`: an address
  // of a local variable of the thread that asks; the mapping that holds it is left alone.
  Result<Adopted, AdoptRefusal> adopt(std::byte* address, std::size_t length, bool peers_may_write,
                                      const void* stack = nullptr);
  // Undone with the last one. Peers no longer touch it (those that obey).
  void release(AdoptedId id);

  // Zeroed memory that is shared from the start (whole pages), in the file that peers may write,
  // whatever the registrations in it allow them; adopt() inside it shares it. Its pages come when
  // they are touched. A forked child does not have it.
  Result<std::byte*, AdoptRefusal> allocate(std::size_t length);
  // Its address as allocate() gave it; false: it is not one. It goes when the last registration
  // in it has been released, too.
  bool free(std::byte* address);

  // A peer cannot be trusted any more: everything becomes private memory at the same address, and
  // later adoptions use new files. The number of bytes that could not be moved (0, but for memory
  // that somebody pinned or a system out of memory).
  std::size_t expel();

  // The program is about to do something to these pages that shared memory would answer otherwise
  // (madvise, mremap, munmap). Makes private what overlaps; true when nothing overlaps any more.
  bool undo_range(const std::byte* address, std::size_t length);
  // Whether undo_range has something to do. Any thread, any time, without a lock.
  bool overlaps(const std::byte* address, std::size_t length) const;
  // The program no longer needs what is there, and reads zero from now on (MADV_DONTNEED): what of
  // it is shared loses its pages and stays shared, for peers as well. Any thread, without the heap.
  // False: not all of it, and undo_range helps; what is not shared is the kernel's to do.
  bool give_back(std::byte* address, std::size_t length);

  // What a peer is to be given to map memory of this kind; -1: nothing is adopted so far. Belongs
  // to the generation that adopt() told last.
  int descriptor(ArenaKind kind) const;
  // Counts up with each expel().
  std::uint32_t generation() const;

  // True where memory is adopted only while no thread but the quiet ones runs.
  bool needs_single_thread() const;
  AdoptionCounters counters() const;

  // Undoes everything and closes the descriptors. Later calls are refused.
  void close();

 private:
  std::unique_ptr<AdoptionTable, AdoptionTableEnd> table_;  // null: there was no memory for it
};

}  // namespace verbena::memory
