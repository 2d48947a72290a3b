// SPDX-License-Identifier: MIT
// What the program does with shared memory: allocates it, and calls the kernel about it.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "memory/fault_guard.h"
#include "memory/raw_calls.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/sharing.h"

namespace verbena::nic {
namespace {

// The control thread, the NIC thread and whoever waits for the registration.
constexpr std::uint32_t kQuietThreads = 3;
// How long a thread waits for the control thread to begin, which comes at once unless it needs a
// lock that this thread holds.
constexpr Duration kUndoPatience = Duration::seconds(1);

// The one whose memory the preload asks about: that of the process's current NIC.
constinit std::atomic<Sharing*> guarded{nullptr};

std::size_t half_of_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long size = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || size <= 0) return 0;
  return static_cast<std::size_t>(pages) / 2 * static_cast<std::size_t>(size);
}

Error error_of(memory::AdoptRefusal refusal) {
  switch (refusal) {
    case memory::AdoptRefusal::kNoWholePage: return Error::kInvalid;
    case memory::AdoptRefusal::kTooLarge:
    case memory::AdoptRefusal::kTooMuch:
    case memory::AdoptRefusal::kTooMany:
    case memory::AdoptRefusal::kAddressSpace:
    case memory::AdoptRefusal::kNoMemory: return Error::kNoRoom;
    case memory::AdoptRefusal::kNoDescriptor: return Error::kNoDescriptors;
    case memory::AdoptRefusal::kShutDown: return Error::kGone;
    case memory::AdoptRefusal::kFileSizeLimit:
    case memory::AdoptRefusal::kDenied:
    case memory::AdoptRefusal::kOverlap:
    case memory::AdoptRefusal::kOtherRights:
    case memory::AdoptRefusal::kNotPlain:
    case memory::AdoptRefusal::kLocked:
    case memory::AdoptRefusal::kPinned:
    case memory::AdoptRefusal::kTrackedElsewhere:
    case memory::AdoptRefusal::kOtherThreads:
    case memory::AdoptRefusal::kAsynchronousIo:
    case memory::AdoptRefusal::kSleepers: return Error::kNotSupported;
  }
  return Error::kNotSupported;
}

// errno as before, and no handler that could write to what is on the move.
class Undisturbed {
 public:
  Undisturbed() : errno_(errno) {
    const sigset_t all = memory::signals_but_faults();
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~Undisturbed() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = errno_;
  }
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  const int errno_;
  sigset_t before_;
};

}  // namespace

// The control thread's; made when it is needed.
memory::Adoption& Sharing::adoption() {
  if (!adoption_) {
    memory::AdoptionOptions options{.events = this, .quiet_threads = kQuietThreads};
    options.limits.allocated_bytes_max = half_of_memory();
    adoption_ = std::make_unique<memory::Adoption>(options);
    shared_.store(adoption_.get(), std::memory_order_release);
    guarded.store(this, std::memory_order_release);
  }
  return *adoption_;
}

// Before a range is entered there.
void Sharing::widen(const std::byte* address, std::size_t length) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = begin + length;
  lowest_.store(std::min(lowest_.load(std::memory_order_relaxed), begin));
  highest_.store(std::max(highest_.load(std::memory_order_relaxed), end));
}

// -- memory that is shared from the start ---------------------------------------------------------

// Of two threads, of which either may be the last to look: the one that asks does not wait forever.
struct Sharing::Allocation {
  std::atomic<bool> has_other_left{false};
  Result<std::byte*, memory::AdoptRefusal> memory = refuse(memory::AdoptRefusal::kShutDown);
};

void Sharing::allocate_for(Sharing& sharing, Allocation& asked, std::size_t length) {
  memory::Adoption& adoption = sharing.adoption();
  asked.memory = adoption.allocate(length);
  if (asked.memory) {
    sharing.widen(*asked.memory, length);
    sharing.announce();
  }
  if (!asked.has_other_left.exchange(true)) return;
  if (asked.memory) adoption.free(*asked.memory);
  delete &asked;
}

Result<std::byte*, Error> Sharing::allocate(std::size_t length) {
  if (length == 0) return refuse(Error::kInvalid);
  if (!policy_.is_direct()) return refuse(Error::kNotSupported);
  if (const auto engine = nic_.start_engine(); !engine) return refuse(engine.error());
  {
    const std::lock_guard guard(lock_);
    if (!is_started_) return refuse(Error::kNotSupported);
  }
  auto* const asked = new Allocation;
  static_cast<void>(control_->call([this, asked, length] { allocate_for(*this, *asked, length); }));
  if (!asked->has_other_left.exchange(true)) return refuse(Error::kAgain);
  const auto made = asked->memory;
  delete asked;
  if (!made) return refuse(error_of(made.error()));
  // Here, and not on the control thread: it takes a while. Running out of memory is an error now,
  // not a signal later. EINVAL: a kernel before 5.14.
  if (memory::raw::advise(*made, length, memory::raw::kPopulateWrite) != 0 && errno != EINVAL) {
    static_cast<void>(free(*made));
    return refuse(Error::kNoRoom);
  }
  return *made;
}

Result<void, Error> Sharing::free(std::byte* address) {
  if (!shared_.load(std::memory_order_acquire)) return refuse(Error::kInvalid);
  struct Answer {
    std::atomic<bool> has_other_left{false};
    bool was_there = false;
  };
  auto* const asked = new Answer;
  static_cast<void>(control_->call([this, asked, address] {
    asked->was_there = adoption_->free(address);
    if (asked->has_other_left.exchange(true)) delete asked;
  }));
  if (!asked->has_other_left.exchange(true)) return refuse(Error::kAgain);
  const bool was_there = asked->was_there;
  delete asked;
  if (!was_there) return refuse(Error::kInvalid);
  return {};
}

// -- what the preload asks ------------------------------------------------------------------------

bool Sharing::overlaps(const void* address, std::size_t length) noexcept {
  const Sharing* const sharing = guarded.load(std::memory_order_acquire);
  if (!sharing) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  if (begin >= sharing->highest_.load(std::memory_order_relaxed)) return false;
  const std::uintptr_t lowest = sharing->lowest_.load(std::memory_order_relaxed);
  if (begin < lowest && length <= lowest - begin) return false;
  return sharing->shared_.load(std::memory_order_acquire)
      ->overlaps(static_cast<const std::byte*>(address), length);
}

bool Sharing::give_back(void* address, std::size_t length) noexcept {
  Sharing* const sharing = guarded.load(std::memory_order_acquire);
  if (!sharing || !sharing->nic_.in_owner()) return false;
  const Undisturbed undisturbed;
  return sharing->shared_.load(std::memory_order_acquire)
      ->give_back(static_cast<std::byte*>(address), length);
}

bool Sharing::make_private(const void* address, std::size_t length) noexcept {
  Sharing* const sharing = guarded.load(std::memory_order_acquire);
  if (!sharing || !sharing->nic_.in_owner()) return false;
  const Undisturbed undisturbed;
  return sharing->ask_for_undo(static_cast<const std::byte*>(address), length);
}

// The control thread itself may be in the middle of anything.
bool Sharing::ask_for_undo(const std::byte* address, std::size_t length) {
  if (gettid() == control_thread_) return false;
  return undo_requests_.ask(address, length, kUndoPatience, [this] { return control_->nudge(); });
}

void Sharing::serve_undo_requests() {
  if (!adoption_) return;
  undo_requests_.serve([this](const std::byte* address, std::size_t length) {
    return adoption_->undo_range(address, length);
  });
}

}  // namespace verbena::nic
