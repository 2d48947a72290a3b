// SPDX-License-Identifier: MIT
// How our shared objects find each other in a process, where any of them may be missing or of
// another version. None is linked with another.
//
// libverbena.so looks in whatever libibverbs.so.1 is loaded for a table of functions that only ours
// exports (DvTable). libibverbs.so tells the preload, if there is one, how to ask about adopted
// memory (MemoryGuard): by a weak reference, which the loader binds, because the preload cannot
// look for anything when it is called: it stands before functions that allocators use.
#pragma once

#include <cstddef>
#include <cstdint>

// NOLINTBEGIN(readability-identifier-naming): of the C headers.
struct ibv_context;
struct ibv_device;
struct ibv_mr;
struct ibv_qp;
struct verbena_dv_mr;
struct verbena_dv_qp;
// NOLINTEND(readability-identifier-naming)

namespace verbena {

// What libibverbs.so exports as verbena_dv_table@VERBENA_PRIVATE_1. Functions are added at the end
// and counted by `size`; another meaning is another version.
struct DvTable {
  static constexpr std::uint32_t kVersion = 1;
  std::uint32_t version = kVersion;
  std::uint32_t size = sizeof(DvTable);

  // As in verbena/dv.h.
  void* (*alloc)(ibv_context* context, std::size_t length) = nullptr;
  int (*free)(ibv_context* context, void* memory) = nullptr;
  int (*query_mr)(ibv_mr* mr, verbena_dv_mr* out) = nullptr;
  int (*query_qp)(ibv_qp* qp, verbena_dv_qp* out) = nullptr;
};

// What libibverbs.so gives to verbena_preload_guard() of the preload. Any thread, at any time, also
// in an allocator and in a forked child: nothing here uses the heap, and errno stays.
struct MemoryGuard {
  static constexpr std::uint32_t kVersion = 1;
  std::uint32_t version = kVersion;
  std::uint32_t size = sizeof(MemoryGuard);

  // Whether there is adopted (or allocated) memory in the range; without a lock.
  bool (*overlaps)(const void* address, std::size_t length) noexcept = nullptr;
  // The program drops the content (MADV_DONTNEED): what is shared is zero afterwards, and stays
  // shared. False: not all of it; make_private() first.
  bool (*give_back)(void* address, std::size_t length) noexcept = nullptr;
  // The program is about to do what shared memory answers otherwise: makes it private, and waits
  // for that a limited time. False: some of it could not be.
  bool (*make_private)(const void* address, std::size_t length) noexcept = nullptr;
};

}  // namespace verbena
