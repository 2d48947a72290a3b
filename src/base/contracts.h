// SPDX-License-Identifier: MIT
// How our shared objects find each other in a process, where any of them may be missing or of
// another version. None is linked with another, but for what both have of rdma-core's interface.
//
// libverbena.so and librdmacm.so look in whatever libibverbs.so.1 is loaded for tables of functions
// that only ours exports (DvTable, GsiTable). libibverbs.so tells the preload, if there is one, how
// to ask about adopted memory (MemoryGuard): by a weak reference, which the loader binds, because
// the preload cannot look for anything when it is called: it stands before functions that
// allocators use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

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

// A management datagram (IBTA vol 1, 13.4.2) of queue pair 1, and between which addresses it
// travels. Also sent by link as it lies here.
struct GsiMad {
  Gid from{};
  Gid to{};
  std::uint32_t interface = 0;  // its index, which link-local addresses need
  std::uint8_t traffic_class = 0;
  std::uint8_t unused[3] = {};
  std::array<std::byte, 256> bytes{};
};
static_assert(sizeof(GsiMad) == 296);

// Where a service of rdma_cm listens: on one address, or on all of a family.
struct GsiPlace {
  enum Kind : std::uint32_t { kAddress, kAllIpv4, kAllIpv6 };
  std::uint64_t service = 0;
  std::uint32_t kind = kAddress;
  std::uint32_t unused = 0;
  Gid address{};
};

// `interfaces_changed`: network interfaces, or their addresses.
struct GsiEvents {
  void* context = nullptr;
  void (*arrived)(void* context, const GsiMad* mad) = nullptr;
  void (*gone)(void* context, std::uint32_t slot) = nullptr;
  void (*interfaces_changed)(void* context) = nullptr;
};

// What libibverbs.so exports as verbena_gsi_table@VERBENA_PRIVATE_1, for librdmacm.so: queue pair 1
// and who serves what on this host. Functions give 0 or an errno value.
struct GsiTable {
  static constexpr std::uint32_t kVersion = 2;
  std::uint32_t version = kVersion;
  std::uint32_t size = sizeof(GsiTable);

  // Takes a place on this host if need be, and tells its slot, which communication ids begin with.
  // The two are called on any thread, also one that must not touch the program's descriptors, and
  // inside send(). `gone`: a process of this host that had this slot, and was sent something, has
  // ended. Once a process; in a forked child again.
  int (*open)(const GsiEvents* events, std::uint32_t* slot) = nullptr;
  // Lossy, and never waits but for the first one that takes the wire.
  void (*send)(const GsiMad* mad) = nullptr;
  // Requests that come by the wire arrive from now on, where it may bring any: to the loopback
  // interface only with VERBENA_PATH=wire.
  int (*listen_on_wire)(bool is_loopback) = nullptr;
  // Takes a service for this process; EADDRINUSE: somebody has it.
  int (*claim)(const GsiPlace* place) = nullptr;
  // Requests for what was claimed come here.
  int (*serve)(const GsiPlace* place) = nullptr;
  void (*release)(const GsiPlace* place) = nullptr;
  bool (*is_claimed)(const GsiPlace* place) = nullptr;
  // What was sent has left for the other processes of this host, when it returns; for exit(): takes
  // no lock that somebody may hold for long, and waits 50 ms at most.
  void (*flush)() = nullptr;
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
