// SPDX-License-Identifier: MIT
#include "host/memory_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/log.h"
#include "base/random.h"
#include "base/short_copy.h"
#include "base/ticks.h"
#include "host/raw_calls.h"

namespace verbena::host {
namespace {

// Where in the program's table our files are. Those of peers that have gone are left to whoever can
// close them.
struct Place {
  static constexpr int kFree = -1;
  static constexpr int kTaken = -2;
  std::atomic<int> fd{kFree};
  std::atomic<std::uint64_t> position{0};
  std::atomic<bool> is_left{false};
};
constinit std::array<Place, MemoryFile::kMost> places;

// What this thread has seen, and when.
struct Seen {
  std::uint64_t position = 0;
  std::uint64_t at = 0;
};
constinit thread_local std::array<Seen, MemoryFile::kMost> seen;

class KeepsErrno {
 public:
  KeepsErrno() = default;
  ~KeepsErrno() { errno = saved_; }
  KeepsErrno(const KeepsErrno&) = delete;
  KeepsErrno& operator=(const KeepsErrno&) = delete;

 private:
  const int saved_ = errno;
};

// Whether there is room for high numbers in the program's table.
enum class Room : std::uint8_t { kNone, kWanted, kThere, kNever };
constinit std::atomic<Room> room{Room::kNone};

bool is_ours(int fd, std::uint64_t position) {
  return raw::position(fd) == static_cast<off_t>(position);
}

bool close_if_ours(int fd, std::uint64_t position) {
  return is_ours(fd, position) && raw::close(fd) == 0;
}

// In a forked child, where no other thread is. It shall not keep a way into the peers' memory.
void close_all() {
  const KeepsErrno kept;
  for (Place& place : places) {
    const int fd = place.fd.load(std::memory_order_acquire);
    if (fd >= 0) close_if_ours(fd, place.position.load(std::memory_order_relaxed));
    place.is_left.store(false, std::memory_order_relaxed);
    place.fd.store(Place::kFree, std::memory_order_release);
  }
  // The table was copied, as large as what is in it needs.
  room.store(Room::kNone, std::memory_order_relaxed);
}

void close_left() {
  for (Place& place : places) {
    if (!place.is_left.exchange(false, std::memory_order_acquire)) continue;
    // Of another file by now, or of none: then there is nothing to close.
    close_if_ours(place.fd.load(std::memory_order_relaxed),
                  place.position.load(std::memory_order_relaxed));
    place.fd.store(Place::kFree, std::memory_order_release);
  }
}

std::size_t take_place() {
  for (std::size_t i = 0; i < places.size(); ++i) {
    int expected = Place::kFree;
    if (places[i].fd.compare_exchange_strong(expected, Place::kTaken, std::memory_order_acquire))
      return i;
  }
  return places.size();
}

bool has_high_numbers() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= MemoryFile::kNumbers;
}

// A file of some process's memory with a position of its own, under a number from `lowest` on; -1
// where there is none, or the program has many files.
int open_high(pid_t process, int flags, int lowest, std::uint64_t position) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/mem", static_cast<int>(process));
  const int low = raw::open(path, flags | O_CLOEXEC);
  if (low < 0) return -1;
  const bool may_be = raw::set_position(low, position) && low < MemoryFile::kFew;
  const int high = may_be ? raw::duplicate(low, lowest) : -1;
  // Both have the position. Another thread may have closed what it does not know.
  close_if_ours(low, position);
  if (high < MemoryFile::kNumbers && is_ours(high, position)) return high;
  if (high >= 0) close_if_ours(high, position);
  return -1;
}

std::uint64_t some_position() {
  KernelRandom random;
  return random.next() >> 2 | std::uint64_t{1} << 60;
}

}  // namespace

// It does so by its memcpy. Without fast short `rep movsb` that stores some of a few bytes twice,
// and the first of two or three last; whoever spins may answer between the two stores. With it the
// file is no worse than process_vm_writev.
bool MemoryFile::is_sound_here() { return short_copy().is_by_string; }

bool MemoryFile::is_room_wanted() { return room.load(std::memory_order_acquire) == Room::kWanted; }

void MemoryFile::make_room_if_wanted() {
  if (!is_room_wanted()) return;
  const KeepsErrno kept;
  static constinit std::atomic<bool> is_registered{false};
  if (!is_registered.exchange(true) && pthread_atfork(nullptr, nullptr, close_all) != 0)
    return room.store(Room::kNever, std::memory_order_relaxed);
  const std::uint64_t position = some_position();
  const int fd = has_high_numbers() ? open_high(getpid(), O_RDONLY, kNumbers - 1, position) : -1;
  if (fd >= 0) close_if_ours(fd, position);
  room.store(fd >= 0 ? Room::kThere : Room::kNever, std::memory_order_release);
}

MemoryFile::~MemoryFile() {
  if (position_ == 0) return;
  const KeepsErrno kept;
  Place& place = places[place_];
  // In a forked child it has been closed, and the place may be another's.
  if (place.position.load(std::memory_order_relaxed) != position_) return;
  const int fd = place.fd.load(std::memory_order_relaxed);
  if (fd < 0) return;
  if (close_if_ours(fd, position_)) {
    place.fd.store(Place::kFree, std::memory_order_release);
  } else {
    place.is_left.store(true, std::memory_order_release);
  }
}

std::uint64_t MemoryFile::seen_ago(std::uint64_t now) const {
  if (fd_.load(std::memory_order_acquire) < 0) return kMoment;
  const Seen& last = seen[place_];
  return last.position == position_ ? now - last.at : kMoment;
}

bool MemoryFile::is_due(std::uint64_t now) const {
  const int fd = fd_.load(std::memory_order_acquire);
  if (fd < 0) return fd == kUntried && owner_.pid != 0 && owner_.nonce_address != 0;
  return seen_ago(now) > kMoment / 2;
}

bool MemoryFile::look() {
  const KeepsErrno kept;
  if (fd_.load(std::memory_order_acquire) == kUntried && open()) return true;
  const int fd = fd_.load(std::memory_order_acquire);
  if (fd < 0) return false;
  const std::uint64_t now = ticks();  // before: then the time that the look takes counts
  if (is_ours(fd, position_)) {
    seen[place_] = {position_, now};
  } else {
    LOG_INFO("the program has closed the memory of process %d", static_cast<int>(owner_.pid));
    fd_.store(kNone, std::memory_order_release);
  }
  return false;
}

bool MemoryFile::open() {
  Room is_there = Room::kNone;
  if (room.compare_exchange_strong(is_there, Room::kWanted, std::memory_order_acquire)) return true;
  if (is_there == Room::kWanted) return false;
  int expected = kUntried;
  if (!fd_.compare_exchange_strong(expected, kOpening, std::memory_order_acquire)) return false;
  close_left();
  // Where there is no count of time there are no moments either.
  const bool may_be =
      is_there == Room::kThere && ticks() != 0 && has_high_numbers() && is_sound_here();
  const std::size_t place = may_be ? take_place() : kMost;
  const int fd = place < kMost ? open_in_place(place) : kNone;
  fd_.store(fd, std::memory_order_release);
  if (fd < 0) LOG_DEBUG("the memory of process %d is no file", static_cast<int>(owner_.pid));
  return false;
}

int MemoryFile::open_in_place(std::size_t place) {
  const std::uint64_t position = some_position();
  // Not always the same numbers: others who put theirs high begin at round ones.
  constexpr std::uint64_t kFirsts = (kNumbers - kLowest) / 2;
  const int lowest = kLowest + static_cast<int>(position % kFirsts);
  const int fd = open_high(owner_.pid, O_RDWR, lowest, position);
  if (fd < 0 || !is_owners(fd)) {
    if (fd >= 0) close_if_ours(fd, position);
    places[place].fd.store(Place::kFree, std::memory_order_release);
    return kNone;
  }
  place_ = place;
  position_ = position;
  places[place].position.store(position, std::memory_order_relaxed);
  places[place].fd.store(fd, std::memory_order_release);
  return fd;
}

bool MemoryFile::is_owners(int fd) const {
  std::uint64_t found = 0;
  return raw::read_at(fd, &found, sizeof found, owner_.nonce_address) ==
             static_cast<ssize_t>(sizeof found) &&
         found == owner_.nonce;
}

bool MemoryFile::write(const iovec* piece, std::size_t length, std::uint64_t to) {
  const KeepsErrno kept;
  const long moved = raw::write_piece_at(fd_.load(std::memory_order_relaxed), piece, to);
  if (moved == static_cast<long>(length)) return true;
  seen[place_] = {};
  return false;
}

}  // namespace verbena::host
