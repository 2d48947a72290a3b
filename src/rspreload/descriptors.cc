// SPDX-License-Identifier: MIT
#include "rspreload/descriptors.h"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace verbena::rspreload {
namespace {

constexpr int kDescriptors = 1 << 20;
constexpr int kGroup = 4096;

// Of each descriptor: 0, the rsocket and one, or a Late below 0. Pages that nobody touches cost
// nothing.
std::array<std::atomic<std::int32_t>, kDescriptors> entries;
// How many descriptors an rsocket has, and a group of descriptors.
std::array<std::atomic<std::int32_t>, kDescriptors> uses;
std::array<std::atomic<std::int32_t>, kDescriptors / kGroup> used_in_group;

std::array<std::atomic<bool>, kDescriptors> kept;

constinit thread_local int replaced = -1;

std::atomic<pid_t> owner{0};

void own() { owner.store(getpid(), std::memory_order_relaxed); }

// Where handlers of fork(2) cannot be had a child's calls are for its own descriptors only.
[[gnu::constructor]] void begin() {
  own();
  static_cast<void>(pthread_atfork(nullptr, nullptr, own));
}

template <class Array>
auto& at(Array& array, int index) {
  return array[static_cast<std::size_t>(index)];
}

bool is_in_range(int fd) { return fd >= 0 && fd < kDescriptors; }

std::int32_t entry_of(int fd) {
  return is_in_range(fd) ? at(entries, fd).load(std::memory_order_acquire) : 0;
}

}  // namespace

int rsocket_of(int fd) {
  const std::int32_t entry = entry_of(fd);
  return entry > 0 ? entry - 1 : -1;
}

Late late_of(int fd) {
  const std::int32_t entry = entry_of(fd);
  return entry < 0 ? static_cast<Late>(-entry) : Late::kNone;
}

bool is_ours(int fd) { return entry_of(fd) != 0; }

void set_rsocket(int fd, int rsocket) {
  if (!is_in_range(fd) || !is_in_range(rsocket)) return;
  at(uses, rsocket).fetch_add(1, std::memory_order_relaxed);
  at(used_in_group, fd / kGroup).fetch_add(1, std::memory_order_relaxed);
  at(entries, fd).store(rsocket + 1, std::memory_order_release);
}

void set_late(int fd, Late late) {
  if (is_in_range(fd)) at(entries, fd).store(-static_cast<int>(late), std::memory_order_release);
}

int forget(int fd) {
  if (!is_in_range(fd)) return -1;
  const std::int32_t entry = at(entries, fd).exchange(0, std::memory_order_acq_rel);
  if (entry <= 0) return -1;
  at(used_in_group, fd / kGroup).fetch_sub(1, std::memory_order_relaxed);
  return at(uses, entry - 1).fetch_sub(1, std::memory_order_acq_rel) == 1 ? entry - 1 : -1;
}

bool is_needed(int fd) {
  if (!is_in_range(fd)) return false;
  const int own = rsocket_of(fd) == fd ? 1 : 0;
  return at(uses, fd).load(std::memory_order_acquire) > own;
}

void keep_number(int fd) {
  if (is_in_range(fd)) at(kept, fd).store(true, std::memory_order_relaxed);
}

bool is_kept(int fd) { return is_in_range(fd) && at(kept, fd).load(std::memory_order_relaxed); }

int drop_kept(int fd) {
  at(kept, fd).store(false, std::memory_order_relaxed);
  return 0;
}

Replacing::Replacing(int fd) {
  keep_number(fd);
  replaced = fd;
}

Replacing::~Replacing() { replaced = -1; }

bool is_replaced_here(int fd) { return fd >= 0 && replaced == fd; }

int next_ours(int from, int last, bool (*is_known)(int fd)) {
  for (int fd = from; fd <= last && fd < kDescriptors; ++fd)
    if (is_ours(fd) || is_known(fd)) return fd;
  return -1;
}

bool are_borrowed() { return owner.load(std::memory_order_relaxed) != getpid(); }

int next_rsocket(int from) {
  for (int fd = from; fd < kDescriptors;) {
    if (at(used_in_group, fd / kGroup).load(std::memory_order_relaxed) == 0) {
      fd = (fd / kGroup + 1) * kGroup;
    } else if (rsocket_of(fd) >= 0) {
      return fd;
    } else {
      ++fd;
    }
  }
  return -1;
}

}  // namespace verbena::rspreload
