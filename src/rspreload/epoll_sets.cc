// SPDX-License-Identifier: MIT
#include "rspreload/epoll_sets.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "rspreload/real.h"
#include "rspreload/system_call.h"

namespace verbena::rspreload {
namespace {

constexpr std::size_t kKnownMax = 1 << 20;
std::array<std::atomic<std::uint64_t>, kKnownMax / 64> known;

void unknow(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  known[at / 64].fetch_and(~(std::uint64_t{1} << (at % 64)), std::memory_order_relaxed);
}

// Descriptors of ours are from there on.
constexpr long kHigh = 512;

}  // namespace

bool is_known(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  return fd >= 0 && at < kKnownMax &&
         (known[at / 64].load(std::memory_order_relaxed) >> (at % 64) & 1) != 0;
}

void know(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  if (fd < 0 || at >= kKnownMax) return;
  known[at / 64].fetch_or(std::uint64_t{1} << (at % 64), std::memory_order_relaxed);
}

int make_event(unsigned count) {
  const int made = eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK);
  // Programs put descriptors at low numbers, without asking who has them.
  const int high = made < 0 ? -1 : static_cast<int>(real::fcntl(made, F_DUPFD_CLOEXEC, kHigh));
  if (high < 0) return made;
  verbena_system_call(SYS_close, made);
  return high;
}

Sleeper& Sleeper::of_thread() {
  static thread_local Sleeper made;
  return made;
}

Sleeper* Sleeper::own() {
  Sleeper& mine = of_thread();
  if (mine.fd_ < 0) mine.fd_ = make_event(0);
  return mine.fd_ < 0 ? nullptr : &mine;
}

// The descriptor is the parent's.
void Sleeper::forget_own_in_child() {
  Sleeper& mine = of_thread();
  mine.set_ = 0;
  mine.is_woken_ = false;
  const int fd = std::exchange(mine.fd_, -1);
  if (fd >= 0) verbena_system_call(SYS_close, fd);
}

Sleeper::~Sleeper() {
  if (fd_ < 0) return;
  {
    const std::lock_guard guard(EpollSets::all().lock);
    end();
  }
  verbena_system_call(SYS_close, fd_);
}

void Sleeper::begin(EpollSet& set) {
  end();
  set_ = set.number;
  changes_ = set.changes;
  set.sleepers.push_back(this);
}

void Sleeper::end() {
  if (EpollSet* const set = EpollSets::all().get(std::exchange(set_, 0)))
    std::erase(set->sleepers, this);
  if (!std::exchange(is_woken_, false)) return;
  std::uint64_t count = 0;
  verbena_system_call(SYS_read, fd_, &count, sizeof count);
}

void Sleeper::wake() {
  is_woken_ = true;
  const std::uint64_t one = 1;
  verbena_system_call(SYS_write, fd_, &one, sizeof one);
}

EpollSet::~EpollSet() {
  if (alarm >= 0) verbena_system_call(SYS_close, alarm);
}

Watch* EpollSet::find(int fd) {
  const auto found = std::ranges::find(watches, fd, &Watch::fd);
  return found == watches.end() ? nullptr : &*found;
}

void EpollSet::tell() {
  ++changes;
  wake_one();
}

void EpollSet::wake_one() {
  if (std::ranges::any_of(sleepers, &Sleeper::is_woken)) return;
  const auto stale = std::ranges::find_if(
      sleepers, [this](const Sleeper* each) { return !each->has_seen(changes); });
  if (stale != sleepers.end()) (*stale)->wake();
}

void EpollSet::wake_all() {
  for (Sleeper* each : sleepers)
    each->wake();
}

EpollSets& EpollSets::all() {
  static EpollSets* const made = new EpollSets;
  return *made;
}

// Another thread may be amid a change while this one forks, and nobody waits in the child.
EpollSets::EpollSets() {
  static_cast<void>(pthread_atfork([] { all().lock.before_fork(); },
                                   [] { all().lock.after_in_parent(); },
                                   [] { all().free_in_child(); }));
}

void EpollSets::free_in_child() {
  for (const auto& [fd, set] : sets_) {
    set->sleepers.clear();
    set->outside = 0;
    if (set->alarm >= 0) verbena_system_call(SYS_close, set->alarm);  // the parent's
    set->alarm = -1;
  }
  Sleeper::forget_own_in_child();
  lock.after_in_child();
}

EpollSet* EpollSets::find(int epoll) const {
  const auto found = numbers_.find(epoll);
  return found == numbers_.end() ? nullptr : get(found->second);
}

EpollSet* EpollSets::get(SetNumber number) const {
  const auto found = sets_.find(number);
  return found == sets_.end() ? nullptr : found->second.get();
}

EpollSet& EpollSets::enter(int epoll) {
  know(epoll);
  forget(epoll);
  numbers_[epoll] = ++last_;
  return *(sets_[last_] = std::make_unique<EpollSet>(last_));
}

void EpollSets::share(int epoll, int made) {
  const EpollSet* const set = find(epoll);
  if (!set) return;
  know(made);
  forget(made);
  numbers_[made] = set->number;
}

// A descriptor of a set; with the last one it goes.
void EpollSets::forget(int epoll) {
  EpollSet* const set = find(epoll);
  if (!set) return;
  set->wake_all();
  numbers_.erase(epoll);
  const SetNumber number = set->number;
  const auto is_its = [number](const auto& each) { return each.second == number; };
  if (std::ranges::none_of(numbers_, is_its)) sets_.erase(number);
}

void EpollSets::leave(int fd) {
  unknow(fd);
  forget(fd);
  for (auto& [number, set] : sets_) {
    if (std::erase_if(set->watches, [fd](const Watch& each) { return each.fd == fd; }) != 0)
      set->tell();
    // An rsocket goes on under its other descriptors.
    if (std::ranges::find(set->watches, fd, &Watch::rsocket) != set->watches.end()) know(fd);
  }
}

}  // namespace verbena::rspreload
