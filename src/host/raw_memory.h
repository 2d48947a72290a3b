// SPDX-License-Identifier: MIT
// Changes of the address space by raw system calls: other libraries in the program (UCX, memory
// checkers) hook libc's mmap and munmap and would take ours for the program's. The sanitizers must
// see them, so there libc's are used.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace verbena::host {

inline std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// MAP_FAILED, and errno, when refused.
inline void* raw_map(std::size_t size, int flags, int fd, int rights = PROT_READ | PROT_WRITE,
                     std::uint64_t offset = 0) {
#ifdef VERBENA_SANITIZED
  // They see the place, but not the descriptor: to them it would be the program's (raw_calls.h).
  void* const place = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return place;
  flags |= MAP_FIXED;
#else
  void* const place = nullptr;
#endif
  const long at = syscall(SYS_mmap, place, size, rights, flags, fd, offset);
  return reinterpret_cast<void*>(at);
}

inline void raw_unmap(void* at, std::size_t size) {
#ifdef VERBENA_SANITIZED
  munmap(at, size);
#else
  syscall(SYS_munmap, at, size);
#endif
}

// Puts pages of a shared mapping a second time into our address space, over what is at `at`. First
// anywhere, where it may fail: what makes place at `at` leaves a hole when it fails.
inline bool raw_map_again(void* shared, std::size_t size, void* at) {
  constexpr std::size_t kStaysToo = 0;  // an old size of 0
  const long copy = syscall(SYS_mremap, shared, kStaysToo, size, MREMAP_MAYMOVE);
  if (copy == -1) return false;
  const long done = syscall(SYS_mremap, copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at);
  if (done == -1) syscall(SYS_munmap, copy, size);
  return done == reinterpret_cast<long>(at);
}

inline bool raw_protect(void* at, std::size_t size, int rights) {
  return syscall(SYS_mprotect, at, size, rights) == 0;
}

inline bool raw_advise(void* at, std::size_t size, int advice) {
  return syscall(SYS_madvise, at, size, advice) == 0;
}

}  // namespace verbena::host
