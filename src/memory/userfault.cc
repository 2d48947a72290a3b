// SPDX-License-Identifier: MIT
#include "memory/userfault.h"

#include <linux/userfaultfd.h>

#include <cerrno>
#include <utility>

#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

// linux/userfaultfd.h of 5.11, 5.19, 6.4 and 6.8; the headers may be older than the kernel.
constexpr unsigned long kNewByDevice = _IO(0xAA, 0);
constexpr unsigned kUserModeOnly = 1;
constexpr std::uint64_t kFeatureProtect = 1 << 0;
constexpr std::uint64_t kFeatureProtectShared = 1 << 12;
constexpr std::uint64_t kFeatureProtectUnpopulated = 1 << 13;
constexpr std::uint64_t kFeatureMove = 1 << 16;
struct Move {
  std::uint64_t to;
  std::uint64_t from;
  std::uint64_t length;
  std::uint64_t mode;
  std::int64_t moved;
};
constexpr unsigned long kMove = _IOWR(0xAA, 0x05, Move);
constexpr std::uint64_t kMoveAllowHoles = 2;

uffdio_range range_of(std::byte* begin, std::size_t length) {
  return {.start = reinterpret_cast<std::uint64_t>(begin), .len = length};
}

int new_userfault(unsigned flags) {
  flags |= O_CLOEXEC | O_NONBLOCK;
  const int made = static_cast<int>(syscall(SYS_userfaultfd, flags));
  // Root is refused by filters only, which mean the device as well.
  if (made >= 0 || geteuid() == 0) return made;
  // Who may open it may have the whole; Linux 6.1.
  const int device = raw::open("/dev/userfaultfd", O_RDWR);
  if (device < 0) return made;
  const int made_by_device = static_cast<int>(syscall(SYS_ioctl, device, kNewByDevice, flags));
  raw::close(device);
  return made_by_device;
}

// The features are agreed on once for each descriptor: one to ask, another one to use.
std::uint64_t features_of(int fd) {
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  return raw::control(fd, UFFDIO_API, &api) == 0 ? api.features : 0;
}

}  // namespace

Userfault::Userfault(bool for_programs_only) {
  if (!for_programs_only && open(0)) {
    holds_kernel_ = true;
    return;
  }
  // Kernels before 5.11 do not know the flag, and have let everybody have the whole until then.
  if (!open(kUserModeOnly)) return;
}

bool Userfault::open(unsigned flags) {
  const int asked = new_userfault(flags);
  if (asked < 0) return false;
  const std::uint64_t offered = features_of(asked);
  raw::close(asked);
  const std::uint64_t wanted =
      kFeatureProtect | kFeatureProtectShared | kFeatureProtectUnpopulated | kFeatureMove;
  TableFd file(new_userfault(flags));
  uffdio_api api{.api = UFFD_API, .features = offered & wanted, .ioctls = 0};
  if (!file || raw::control(file.get(), UFFDIO_API, &api) != 0) return false;
  file_ = std::move(file);
  can_move_ = (offered & kFeatureMove) != 0;
  can_write_ = (offered & kFeatureProtectShared) != 0;
  return true;
}

int Userfault::watch(std::byte* begin, std::size_t length, HoldWhat what) const {
  const std::uint64_t mode =
      what == HoldWhat::kMissing ? UFFDIO_REGISTER_MODE_MISSING : UFFDIO_REGISTER_MODE_WP;
  uffdio_register request{.range = range_of(begin, length), .mode = mode, .ioctls = 0};
  return raw::control(file_.get(), UFFDIO_REGISTER, &request) == 0 ? 0 : errno;
}

int Userfault::unwatch(std::byte* begin, std::size_t length) const {
  uffdio_range range = range_of(begin, length);
  return raw::control(file_.get(), UFFDIO_UNREGISTER, &range) == 0 ? 0 : errno;
}

int Userfault::hold_writers(std::byte* begin, std::size_t length) const {
  uffdio_writeprotect request{.range = range_of(begin, length),
                              .mode = UFFDIO_WRITEPROTECT_MODE_WP};
  // EAGAIN: the mappings change under us.
  int error = EAGAIN;
  for (int tries = 0; error == EAGAIN && tries < 1000; ++tries)
    error = raw::control(file_.get(), UFFDIO_WRITEPROTECT, &request) == 0 ? 0 : errno;
  return error;
}

void Userfault::wake(std::byte* begin, std::size_t length) const {
  uffdio_range range = range_of(begin, length);
  raw::control(file_.get(), UFFDIO_WAKE, &range);
}

int Userfault::move(std::byte* to, std::byte* from, std::size_t length, std::size_t& moved) const {
  Move request{.to = reinterpret_cast<std::uint64_t>(to),
               .from = reinterpret_cast<std::uint64_t>(from),
               .length = length,
               .mode = kMoveAllowHoles,
               .moved = 0};
  const int failed = raw::control(file_.get(), kMove, &request);
  moved = request.moved > 0 ? static_cast<std::size_t>(request.moved) : 0;
  if (failed == 0) return moved == length ? 0 : EAGAIN;
  return errno;
}

}  // namespace verbena::memory
