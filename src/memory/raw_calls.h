// SPDX-License-Identifier: MIT
// The system calls that change the program's memory, and those that look at it, as such: libraries
// in the program (UCX, allocators, checkers) hook libc's and would take our changes for the
// program's. Like libc's: -1 or MAP_FAILED and errno when refused.
#pragma once

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <ctime>

namespace verbena::memory::raw {

// linux/mman.h of 5.7 and 5.14; the headers may be older than the kernel.
inline constexpr int kRemapKeepOld = 4;  // MREMAP_DONTUNMAP
inline constexpr int kPopulateWrite = 23;

// Asks /proc/self/maps for a mapping: linux/fs.h of 6.11; the headers may be older than the kernel.
struct MapQuery {
  std::uint64_t size;
  std::uint64_t query_flags;
  std::uint64_t query_address;
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t flags;
  std::uint64_t page_size;
  std::uint64_t offset;
  std::uint64_t inode;
  std::uint32_t device_major;
  std::uint32_t device_minor;
  std::uint32_t name_size;
  std::uint32_t build_id_size;
  std::uint64_t name_address;
  std::uint64_t build_id_address;
};
static_assert(sizeof(MapQuery) == 104);
inline constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);
inline constexpr std::uint64_t kOrNextAbove = 0x10;  // in query_flags
inline constexpr std::uint64_t kMapReadable = 1;
inline constexpr std::uint64_t kMapWritable = 2;
inline constexpr std::uint64_t kMapExecutable = 4;
inline constexpr std::uint64_t kMapShared = 8;

inline std::uintptr_t page_size() { return static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)); }

inline std::byte* as_address(long result) { return reinterpret_cast<std::byte*>(result); }
inline std::byte* failed() { return static_cast<std::byte*>(MAP_FAILED); }

inline std::byte* map(std::byte* at, std::size_t length, int flags, int fd, std::uint64_t offset) {
  return as_address(
      syscall(SYS_mmap, at, length, PROT_READ | PROT_WRITE, flags, fd, static_cast<long>(offset)));
}
inline std::byte* map_private(std::size_t length) {
  return map(nullptr, length, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}
inline int unmap(std::byte* at, std::size_t length) {
  return static_cast<int>(syscall(SYS_munmap, at, length));
}
// Moves the pages to an address of the kernel's choice, and leaves the mapping, empty, behind.
inline std::byte* move_away(std::byte* from, std::size_t length) {
  return as_address(
      syscall(SYS_mremap, from, length, length, MREMAP_MAYMOVE | kRemapKeepOld, nullptr));
}
// Puts a mapping in the place of what is at `to`.
inline std::byte* move_over(std::byte* to, std::byte* from, std::size_t length) {
  return as_address(syscall(SYS_mremap, from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to));
}
inline std::byte* move_over_keeping(std::byte* to, std::byte* from, std::size_t length) {
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | kRemapKeepOld;
  return as_address(syscall(SYS_mremap, from, length, length, kFlags, to));
}
inline int advise(std::byte* at, std::size_t length, int advice) {
  return static_cast<int>(syscall(SYS_madvise, at, length, advice));
}
inline int protect(std::byte* at, std::size_t length, int rights) {
  return static_cast<int>(syscall(SYS_mprotect, at, length, rights));
}

inline int close(int fd) { return static_cast<int>(syscall(SYS_close, fd)); }
inline int open(const char* path, int flags) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC));
}
inline int status(int fd, struct stat& status) {
  return static_cast<int>(syscall(SYS_fstat, fd, &status));
}
inline long read_at(int fd, void* to, std::size_t length, std::uint64_t offset) {
  return syscall(SYS_pread64, fd, to, length, static_cast<long>(offset));
}
inline long write_at(int fd, const void* from, std::size_t length, std::uint64_t offset) {
  return syscall(SYS_pwrite64, fd, from, length, static_cast<long>(offset));
}
inline std::int64_t seek(int fd, std::uint64_t offset, int whence) {
  return syscall(SYS_lseek, fd, static_cast<long>(offset), whence);
}
inline void nap(long microseconds) {  // below a million
  const timespec pause{.tv_sec = 0, .tv_nsec = microseconds * 1000};
  syscall(SYS_nanosleep, &pause, nullptr);
}
template <class Argument>
int control(int fd, unsigned long request, Argument* argument) {
  return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
}

}  // namespace verbena::memory::raw
