// SPDX-License-Identifier: MIT
#include "memory/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "memory/raw_calls.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace verbena::memory {
namespace {

int new_memfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Systems with vm.memfd_noexec = 2 insist on the seal; older kernels do not know it.
  const auto make = [](unsigned flags) {
    return static_cast<int>(syscall(SYS_memfd_create, "verbena", flags));
  };
  const int fd = make(kFlags | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno == EMFILE || errno == ENFILE || errno == ENOMEM) return fd;
  return make(kFlags);
}

ArenaError reason_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE: return ArenaError::kNoDescriptor;
    case ENOMEM:
    case ENOSPC: return ArenaError::kNoMemory;
    case EFBIG: return ArenaError::kFileSizeLimit;
    default: return ArenaError::kDenied;
  }
}

// /proc/self would be the table of the process's first thread.
int reopen_for_reading(int fd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
  return raw::open(path, O_RDONLY);
}

}  // namespace

TableFd::TableFd(int fd) : fd_(fd), owner_(fd < 0 ? 0 : gettid()) {
  struct stat status{};
  if (fd_ >= 0 && raw::status(fd_, status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
  }
}

TableFd::TableFd(TableFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      owner_(other.owner_),
      device_(other.device_),
      inode_(other.inode_) {}

TableFd& TableFd::operator=(TableFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    owner_ = other.owner_;
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

int TableFd::get() const {
  if (fd_ < 0 || gettid() != owner_) return -1;
  struct stat status{};
  if (raw::status(fd_, status) != 0) return -1;
  return status.st_ino == inode_ && status.st_dev == device_ ? fd_ : -1;
}

void TableFd::reset() {
  const int fd = get();
  if (fd >= 0) raw::close(fd);
  fd_ = -1;
}

bool file_size_is_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

Result<Arena, ArenaError> Arena::create(ArenaKind kind, std::uint32_t generation,
                                        std::uint64_t places_max) {
  // Growing past the limit is not only an error, it is SIGXFSZ.
  if (file_size_is_limited()) return refuse(ArenaError::kFileSizeLimit);
  Arena arena(kind, generation, std::min(places_max, kPlacesMax));
  arena.file_ = TableFd(new_memfd());
  const int file = arena.file_.get();
  if (file < 0) return refuse(reason_of(errno));
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  // Of no use to anybody but us and those whom we give a descriptor.
  if (syscall(SYS_fchmod, file, kind == ArenaKind::kPeersRead ? 0400 : 0600) != 0 ||
      syscall(SYS_ftruncate, file, static_cast<long>(kSize)) != 0 ||
      syscall(SYS_fcntl, file, F_ADD_SEALS, kSeals) != 0) {
    return refuse(reason_of(errno));
  }
  if (kind == ArenaKind::kPeersRead) {
    arena.peers_ = TableFd(reopen_for_reading(file));
    if (!arena.peers_) return refuse(reason_of(errno));
  }
  return arena;
}

std::optional<std::uint64_t> Arena::take_place() {
  if (next_place_ == places_max_) return std::nullopt;
  return kPlaceStride * next_place_++;
}

void Arena::clear_place(std::uint64_t offset) const {
  constexpr int kHole = 0x01 | 0x02;  // FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
  const int file = file_.get();
  if (file >= 0) {
    syscall(SYS_fallocate, file, kHole, static_cast<long>(offset), static_cast<long>(kPlaceStride));
  }
}

}  // namespace verbena::memory
