// SPDX-License-Identifier: MIT
#include "port/udp_senders.h"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>

#include "base/log.h"
#include "host/raw_calls.h"

namespace verbena::port {
namespace {

ino_t file_of(int fd) {
  struct stat status{};
  return host::raw::status(fd, status) == 0 ? status.st_ino : 0;
}

}  // namespace

UdpSenders::UdpSenders(std::uint32_t count, std::uint32_t buffer)
    : count_(std::clamp<std::uint32_t>(count, 1, kSlotCount)), buffer_(buffer) {}

UdpSenders::~UdpSenders() {
  for (std::size_t i = 0; i < count_; ++i)
    if (senders_[i] != 0 && is_ours(i)) host::raw::close(unpack(senders_[i]).fd);
}

bool UdpSenders::is_ours(std::size_t index) const {
  return file_of(unpack(senders_[index]).fd) == files_[index];
}

Sender UdpSenders::make(SlotNumber slot) {
  const std::lock_guard lock(lock_);
  const std::size_t index = index_of(slot);
  if (senders_[index] != 0) return unpack(senders_[index]);
  const auto made = make_sender(buffer_);
  if (!made) {
    LOG_WARN("no socket to send to slot %u: %s", slot.value, to_string(made.error()));
    return any_other();
  }
  files_[index] = file_of(made->fd);
  senders_[index].store(pack(*made), std::memory_order_release);
  return *made;
}

// Where the system gives no more sockets, slots share what there is. It is remembered nowhere, so
// that a slot gets its own as soon as there is one; its packets then have another source port,
// which costs at most a retransmission.
Sender UdpSenders::any_other() const {
  for (std::size_t i = 0; i < count_; ++i)
    if (const std::uint64_t packed = senders_[i]) return unpack(packed);
  return {};
}

void UdpSenders::forget(SlotNumber slot) {
  const std::lock_guard lock(lock_);
  const std::size_t index = index_of(slot);
  if (senders_[index] != 0 && !is_ours(index)) senders_[index] = 0;
}

void UdpSenders::check() {
  const std::lock_guard lock(lock_);
  for (std::size_t i = 0; i < count_; ++i)
    if (senders_[i] != 0 && !is_ours(i)) senders_[i] = 0;
}

}  // namespace verbena::port
