// SPDX-License-Identifier: MIT
#include "nic/forked_descriptors.h"

#include <pthread.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "base/log.h"
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
constinit std::atomic<std::uint32_t> count{0};

ino_t file_of(int fd) {
  struct stat status{};
  return host::raw::status(fd, status) == 0 ? status.st_ino : 0;
}

// In the child, where no other thread is and locks may be held for ever.
void close_all() {
  for (Entry& entry : entries) {
    const int fd = entry.fd.load(std::memory_order_acquire);
    if (fd < 0) continue;
    if (file_of(fd) == entry.file.load(std::memory_order_relaxed)) host::raw::close(fd);
    entry.fd.store(-1, std::memory_order_relaxed);
  }
}

}  // namespace

void close_in_children(int fd) {
  static const int registered = pthread_atfork(nullptr, nullptr, close_all);
  const std::uint32_t place = count.fetch_add(1, std::memory_order_relaxed);
  if (registered != 0 || place >= entries.size()) {
    LOG_WARN("a forked child will keep a socket of the UDP port");
    return;
  }
  entries[place].file.store(file_of(fd), std::memory_order_relaxed);
  entries[place].fd.store(fd, std::memory_order_release);
}

}  // namespace verbena::nic
