// SPDX-License-Identifier: MIT
// What a program does to its own mappings, where memory that is registered answers otherwise than
// the program's own: a NIC made of software may have moved it into shared memory ("adopted" it; see
// docs/architecture.md), which MADV_DONTNEED does not make zero, MADV_FREE and MADV_WIPEONFORK
// refuse, and mremap moves without its meaning. libibverbs makes it what the call expects, and then
// the real call follows.
//
// Allocators make these calls, with their locks held, before main and at any time, also while they
// start; so nothing here allocates, waits for whom an allocator could block, looks for symbols, or
// changes errno. libibverbs tells us by verbena_preload_guard() whom to ask (base/contracts.h);
// until it does, and for memory that nobody registered, a call costs one load, or a few.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "base/contracts.h"
#include "preload/next.h"

using verbena::MemoryGuard;

VERBENA_NEXT(madvise, int(void*, std::size_t, int));
VERBENA_NEXT(munmap, int(void*, std::size_t));
VERBENA_NEXT(mremap, void*(void*, std::size_t, std::size_t, int, ...));
VERBENA_NEXT(mmap, void*(void*, std::size_t, int, int, int, off_t));
VERBENA_NEXT(mmap64, void*(void*, std::size_t, int, int, int, off64_t));

namespace {

// linux/mman.h of 5.7 and 6.13; the headers may be older than the kernel.
constexpr int kRemapKeepsOld = 4;       // MREMAP_DONTUNMAP
constexpr int kAdviceDropLocked = 24;   // MADV_DONTNEED_LOCKED
constexpr int kAdviceGuardSet = 102;    // MADV_GUARD_INSTALL
constexpr int kAdviceGuardClear = 103;  // MADV_GUARD_REMOVE

constinit std::atomic<const MemoryGuard*> guard{nullptr};

const MemoryGuard* guard_of(const void* address, std::size_t length) {
  const MemoryGuard* const known = guard.load(std::memory_order_acquire);
  if (!known) [[likely]]
    return nullptr;
  return known->overlaps(address, length) ? known : nullptr;
}

// What the kernel refuses is not worth a copy.
bool is_page(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 4096 == 0; }

void make_private(const void* address, std::size_t length) {
  if (!is_page(address)) return;
  const MemoryGuard* const known = guard_of(address, length);
  // Where it does not succeed the call means what it means for shared memory.
  if (known) [[unlikely]]
    known->make_private(address, length);
}

enum class Meaning { kSame, kDrops, kOther };

Meaning meaning_of(int advice) {
  switch (advice) {
    case MADV_DONTNEED:
    case MADV_FREE: return Meaning::kDrops;
    // Shared memory refuses them, or they are flags of the mapping, which is to have them
    // afterwards, too.
    case MADV_REMOVE:
    case MADV_WIPEONFORK:
    case MADV_KEEPONFORK:
    case MADV_DONTFORK:
    case MADV_DOFORK:
    case MADV_MERGEABLE:
    case MADV_UNMERGEABLE:
    case MADV_HUGEPAGE:
    case MADV_NOHUGEPAGE:
    case MADV_DONTDUMP:
    case MADV_DODUMP:
    case kAdviceDropLocked:
    case kAdviceGuardSet:
    case kAdviceGuardClear: return Meaning::kOther;
    default: return Meaning::kSame;
  }
}

// The system call where the next function is not known yet: dlsym is not for an allocator that is
// just starting.
int real_madvise(void* address, std::size_t length, int advice) {
  if (next_madvise.is_known()) [[likely]]
    return next_madvise(address, length, advice);
  return static_cast<int>(syscall(SYS_madvise, address, length, advice));
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] void verbena_preload_guard(const MemoryGuard* given) {
  const bool fits = given->version == MemoryGuard::kVersion && given->size >= sizeof(MemoryGuard);
  if (fits) guard.store(given, std::memory_order_release);
}

int wrapped_madvise(void* address, std::size_t length, int advice) VERBENA_WRAP(madvise);
int wrapped_madvise(void* address, std::size_t length, int advice) {
  const MemoryGuard* const known = guard_of(address, length);
  if (!known || !is_page(address)) [[likely]]
    return real_madvise(address, length, advice);
  const Meaning meaning = meaning_of(advice);
  if (meaning == Meaning::kDrops && known->give_back(address, length)) {
    // The rest of the range; shared memory knows no MADV_FREE, and dropping at once is one way to
    // do that.
    return real_madvise(address, length, MADV_DONTNEED);
  }
  if (meaning != Meaning::kSame) known->make_private(address, length);
  return real_madvise(address, length, advice);
}

int wrapped_munmap(void* address, std::size_t length) VERBENA_WRAP(munmap);
int wrapped_munmap(void* address, std::size_t length) {
  make_private(address, length);
  if (next_munmap.is_known()) [[likely]]
    return next_munmap(address, length);
  return static_cast<int>(syscall(SYS_munmap, address, length));
}

void* wrapped_mremap(void* old, std::size_t length, std::size_t wanted, int flags, ...)
    VERBENA_WRAP(mremap);
void* wrapped_mremap(void* old, std::size_t length, std::size_t wanted, int flags, ...) {
  void* place = nullptr;
  if (flags & (MREMAP_FIXED | kRemapKeepsOld)) {
    va_list arguments;
    va_start(arguments, flags);
    place = va_arg(arguments, void*);
    va_end(arguments);
  }
  make_private(old, length);
  if (flags & MREMAP_FIXED) make_private(place, wanted);
  if (next_mremap.is_known()) [[likely]]
    return next_mremap(old, length, wanted, flags, place);
  return reinterpret_cast<void*>(syscall(SYS_mremap, old, length, wanted, flags, place));
}

void* wrapped_mmap(void* address, std::size_t length, int rights, int flags, int file, off_t offset)
    VERBENA_WRAP(mmap);
void* wrapped_mmap(void* address, std::size_t length, int rights, int flags, int file,
                   off_t offset) {
  if (flags & MAP_FIXED) make_private(address, length);
  if (next_mmap.is_known()) [[likely]]
    return next_mmap(address, length, rights, flags, file, offset);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, length, rights, flags, file, offset));
}

void* wrapped_mmap64(void* address, std::size_t length, int rights, int flags, int file,
                     off64_t offset) VERBENA_WRAP(mmap64);
void* wrapped_mmap64(void* address, std::size_t length, int rights, int flags, int file,
                     off64_t offset) {
  if (flags & MAP_FIXED) make_private(address, length);
  if (next_mmap64.is_known()) [[likely]]
    return next_mmap64(address, length, rights, flags, file, offset);
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, length, rights, flags, file, offset));
}

}  // extern "C"
