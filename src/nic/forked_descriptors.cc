// SPDX-License-Identifier: MIT
#include "nic/forked_descriptors.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/log.h"
#include "base/mutex.h"
#include "base/types.h"
#include "host/raw_calls.h"

namespace verbena::nic {
namespace {

struct Entry {
  std::atomic<int> fd{-1};
  std::atomic<ino_t> file{0};
};
// One for each slot of the host, and as many again for those that were lost and fetched once more.
constinit std::array<Entry, 2 * kSlotCount> entries;
constinit Mutex entries_lock;  // of who adds

ino_t file_of(int fd) {
  struct stat status{};
  return host::raw::status(fd, status) == 0 ? status.st_ino : 0;
}

// Not closed since, as far as one can see.
bool is_there(const Entry& entry) {
  const int fd = entry.fd.load(std::memory_order_acquire);
  return fd >= 0 && file_of(fd) == entry.file.load(std::memory_order_relaxed);
}

// In the child, where no other thread is and locks may be held for ever.
void close_all() {
  std::construct_at(&entries_lock);
  for (Entry& entry : entries) {
    if (is_there(entry)) host::raw::close(entry.fd.load(std::memory_order_relaxed));
    entry.fd.store(-1, std::memory_order_relaxed);
  }
}

}  // namespace

void close_in_children(int fd) {
  static const int registered = pthread_atfork(nullptr, nullptr, close_all);
  const std::lock_guard guard(entries_lock);
  Entry* const entry = std::ranges::find_if_not(entries, is_there);
  if (registered != 0 || entry == entries.end()) {
    LOG_WARN("a forked child will keep a socket of the UDP port");
    return;
  }
  entry->fd.store(-1, std::memory_order_relaxed);
  entry->file.store(file_of(fd), std::memory_order_release);
  entry->fd.store(fd, std::memory_order_release);
}

}  // namespace verbena::nic
