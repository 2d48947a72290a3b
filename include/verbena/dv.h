// SPDX-License-Identifier: MIT
// What Verbena's NIC can do beyond the verbs API ("direct verbs"): memory that is shared with the
// peers of this host from the start, and how a region or a queue pair is served. For C99 and C++;
// link with -lverbena (pkg-config: verbena).
//
// A program that uses this header runs with any libibverbs: with another one, such as rdma-core's
// for hardware, verbena_dv_is_supported() is false and every other function refuses with
// EOPNOTSUPP. The usual way is to ask once and to use malloc() where it is not supported.
//
//     void *memory = verbena_dv_is_supported(device) ? verbena_dv_alloc(context, length) : NULL;
//     bool is_special = memory != NULL;
//     if (!is_special) memory = aligned_alloc(4096, length);
//     ...
//     if (is_special) verbena_dv_free(context, memory); else free(memory);
//
// ERRORS. Functions that return int return 0 or a positive errno value, as libibverbs does, and do
// not promise anything about errno. verbena_dv_alloc() returns NULL and sets errno.
//
// THREADS. Every function may be called from any thread at any time, not from a signal handler. An
// object may not be destroyed during a call that was given it.
//
// FORK. In a child made by fork() the objects that it inherited refuse with EIO, as all verbs do. A
// device that the child opens itself works. About memory see verbena_dv_alloc().
//
// EXTENSION. The structures grow only at their ends. In their `comp_mask` the caller says which of
// the fields that came after the first version it knows (0: none); on return it says which of those
// were filled in. Everything else is always filled in.
//
// The format of work requests in a queue will be described here in a later version, for programs
// that let RDMA modify posted work requests.
#pragma once

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Whether the device is Verbena's and the functions below work with it. False for NULL.
bool verbena_dv_is_supported(struct ibv_device* device);

// Allocates memory that the peers of this host can map, so that their RDMA operations on regions in
// it are plain copies, and atomics plain CPU atomics, from the first one on, and also while this
// process is stopped.
//
// `length` is in bytes and rounded up to whole pages. The memory begins at a page, is zero, and is
// there: it is not overcommitted. It is registered by ibv_reg_mr() as a whole or in parts, any
// number of times; nothing of it needs to be adopted (see docs/architecture.md), so the limits of
// adoption do not count. Peers get no more rights than a region has, but a peer of the same user
// that does not obey could write to all memory that was allocated here.
//
// Limits: 256 GiB at once, half of the machine's memory in all, 4096 pieces (adopted regions count
// among these). RLIMIT_AS and RLIMIT_DATA must leave sixteen times as much as is asked for.
//
// What it means: it is shared memory (memfd_create(2)). madvise() and mremap() on it make it
// ordinary private memory where they need to; it then remains valid, but peers no longer map it.
// The same happens to all of it when a peer is found that does not leave memory that was taken
// away. It is given back by verbena_dv_free() only; munmap() of it is for nobody.
// A child made by fork() does not have it: touching it there is SIGSEGV, as with memory under
// ibv_fork_init().
//
// NULL with errno: EINVAL (length 0), ENOMEM (a limit, or no memory), EOPNOTSUPP (not our device;
// or VERBENA_PATH=ring; or the system refuses shared memory), EIO (inherited from the parent),
// EMFILE or ENOSPC (this process cannot join the host's others: no descriptors, or no slot), EAGAIN
// (the NIC did not answer in time).
void* verbena_dv_alloc(struct ibv_context* context, size_t length);

// Frees memory of verbena_dv_alloc(); `memory` is what that returned, `context` any open one. The
// memory goes with the last region that is registered in it, now if there is none.
//
// EINVAL (not such memory, or freed before), EIO, EOPNOTSUPP, EAGAIN.
int verbena_dv_free(struct ibv_context* context, void* memory);

// NOLINTBEGIN(readability-identifier-naming): the names of a C header, after those of verbs.

// How peers on this host reach a region. A peer takes the quickest way that both sides have.
enum verbena_dv_reach {
  // They send us the operation, and we execute it: any thread that polls, or the NIC's own.
  VERBENA_DV_REACH_RING = 1 << 0,
  // They copy by process_vm_writev(2) and process_vm_readv(2), or /proc/PID/mem, where the system
  // lets them (same user, no restriction of ptrace). No CPU time of ours. Not for atomics.
  VERBENA_DV_REACH_PROCESS = 1 << 1,
  // They map a part of it, below, and copy. No CPU time of ours; atomics as well.
  VERBENA_DV_REACH_MAPPED = 1 << 2,
};

struct verbena_dv_mr {
  uint64_t comp_mask;
  uint32_t reach;  // enum verbena_dv_reach, or'ed
  uint32_t reserved;
  // The part that can be mapped, in bytes from the region's first one; 0, 0: none. It consists of
  // whole pages of the program's memory.
  uint64_t mapped_offset;
  uint64_t mapped_length;
};

// How the region can be reached now. It changes when memory that was adopted becomes private.
//
// EINVAL (a NULL), EIO, EOPNOTSUPP.
int verbena_dv_query_mr(struct ibv_mr* mr, struct verbena_dv_mr* out);

// Who executes what a queue pair of type RC or UC posts.
enum verbena_dv_carrier {
  VERBENA_DV_CARRIER_NONE = 0,  // not connected (yet), or UD
  // The peer, as a message in shared memory tells it to.
  VERBENA_DV_CARRIER_RING = 1,
  // We ourselves where the operation is one-sided and its target can be reached; else the ring.
  VERBENA_DV_CARRIER_DIRECT = 2,
  // The peer, by RoCEv2.
  VERBENA_DV_CARRIER_WIRE = 3,
};

// Of verbena_dv_qp::comp_mask.
enum verbena_dv_qp_mask {
  VERBENA_DV_QP_WIRE = 1 << 0,  // wire_packets, wire_repeated, wire_agreed
};

struct verbena_dv_qp {
  uint64_t comp_mask;
  uint32_t carrier;  // enum verbena_dv_carrier
  uint32_t reserved;
  // Operations executed since the queue pair went to RTR, by the way they took. They are counted
  // when their end is known here, before it may be known to the program.
  uint64_t mapped_operations;   // in memory of the peer that we map
  uint64_t process_operations;  // by process_vm_writev, process_vm_readv, /proc/PID/mem
  uint64_t ring_operations;     // by the peer

  // VERBENA_DV_QP_WIRE; of type RC. Requests sent since the queue pair went to RTR, in packets, and
  // how many of these had been sent before. 1 in `wire_agreed`: the peer is Verbena, too, and both
  // know it: only what is lost is repeated, and round trips say how fast to send.
  uint64_t wire_packets;
  uint64_t wire_repeated;
  uint32_t wire_agreed;
  uint32_t reserved_wire;
};

// NOLINTEND(readability-identifier-naming)

// EINVAL (a NULL), EIO, EOPNOTSUPP.
int verbena_dv_query_qp(struct ibv_qp* qp, struct verbena_dv_qp* out);

#ifdef __cplusplus
}
#endif
