// SPDX-License-Identifier: MIT
#include "memory/null_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace verbena::memory {

// Raw, since libraries of the program may hook libc's. All of it is the kernel's one page of zeros.
bool map_null_memory() {
  if (null_memory.load(std::memory_order_acquire)) return true;
  const long address = syscall(SYS_mmap, nullptr, kNullBytes, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == -1) return false;
  std::byte* none = nullptr;
  if (!null_memory.compare_exchange_strong(none, reinterpret_cast<std::byte*>(address)))
    syscall(SYS_munmap, address, kNullBytes);
  return true;
}

}  // namespace verbena::memory
