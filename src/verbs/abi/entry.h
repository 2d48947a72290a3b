// SPDX-License-Identifier: MIT
// The border of libibverbs.so.1: what is exported, and who defines it.
//
// Everything here has C linkage, default visibility, and a version in libibverbs.map. The folder
// abi/ defines what does not depend on how the NIC works inside: names, rates, the sysfs readers,
// the address of a sender, what comes down to another query, the entries that only drivers call,
// those of libibverbs 1.0. The rest is defined by the NIC half, in src/verbs/*.cc, with the
// signatures of <infiniband/verbs.h>; a missing one fails the link or tests/abi by name:
//
//   devices        ibv_get_device_list  ibv_free_device_list  ibv_get_device_guid
//   ibv_get_device_index
//                  ibv_open_device  ibv_close_device
//   tables         ibv_query_pkey, and verbena::verbs::gid_entry below
//   domains        ibv_alloc_pd  ibv_dealloc_pd
//   memory         ibv_reg_mr_iova2  ibv_rereg_mr  ibv_dereg_mr
//   completions    ibv_create_comp_channel  ibv_destroy_comp_channel  ibv_get_cq_event
//   ibv_ack_cq_events
//                  ibv_create_cq  ibv_resize_cq  ibv_destroy_cq
//   async events   ibv_get_async_event  ibv_ack_async_event
//   shared queues  ibv_create_srq  ibv_modify_srq  ibv_query_srq  ibv_destroy_srq
//   queue pairs    ibv_create_qp  ibv_modify_qp  ibv_query_qp  ibv_destroy_qp  ibv_qp_to_qp_ex
//                  ibv_query_qp_data_in_order
//   addresses      ibv_create_ah  ibv_destroy_ah  ibv_attach_mcast  ibv_detach_mcast
//
// Everything else that a program calls is an inline of the header that goes through the two tables
// of a context: see context.h, which fills them with refusals for the NIC half to replace.
//
// How refusals are said (the manual pages of each verb): functions that give an int return a
// positive errno, those that give a pointer return null and set errno; ibv_query_gid,
// ibv_query_pkey, ibv_get_pkey_index, ibv_get_cq_event, ibv_get_async_event and ibv_init_ah_from_wc
// return -1 and set errno.
//
// Include this instead of <infiniband/verbs.h>, and first: it makes the header's functions visible
// and takes away the macros that would rename a definition.
#pragma once

#include <cstddef>
#include <cstdint>

// For a function that takes an enumeration: a program in C may pass any int for it.
#define VERBENA_ANY_VALUE __attribute__((no_sanitize("enum")))

#pragma GCC visibility push(default)
#include <infiniband/sa.h>
#include <infiniband/verbs.h>

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

struct ib_uverbs_ah_attr;
struct ib_uverbs_qp_attr;
struct ib_user_path_rec;

extern "C" {

// Exported with IBVERBS_1.0 and 1.1, but no longer in an installed header: librdmacm and Open MPI
// call them.
const char* ibv_get_sysfs_path();
int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, std::size_t size);
void ibv_copy_ah_attr_from_kern(ibv_ah_attr* to, ib_uverbs_ah_attr* from);
void ibv_copy_qp_attr_from_kern(ibv_qp_attr* to, ib_uverbs_qp_attr* from);
void ibv_copy_path_rec_from_kern(ibv_sa_path_rec* to, ib_user_path_rec* from);
void ibv_copy_path_rec_to_kern(ib_user_path_rec* to, ibv_sa_path_rec* from);
int ibv_dontfork_range(void* base, std::size_t size);
int ibv_dofork_range(void* base, std::size_t size);

// Exported with IBVERBS_PRIVATE_34 and good for more than a refusal. ibv_devinfo and pyverbs call
// the first. The second fills what every ibv_cq has in front (context, channel with its reference
// count, lock, condition, zero counts): for the NIC half's ibv_create_cq and
// verbs_context::create_cq_ex; release_cq of context.h undoes it.
int ibv_query_gid_type(ibv_context* context, std::uint8_t port, unsigned index, unsigned* type);
void verbs_init_cq(ibv_cq* cq, ibv_context* context, ibv_comp_channel* channel, void* cq_context);
}

#pragma GCC visibility pop

namespace verbena::verbs {

// What the NIC half gives besides the entry points: the entry `index` of the GID table of `port`.
// Fills all fields of `entry` and returns 0; ENODATA where the index is inside the table but empty,
// EINVAL for a port or index out of range. ibv_query_gid, _ibv_query_gid_ex, _ibv_query_gid_table,
// ibv_query_gid_type and the address of a sender come from it.
int gid_entry(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry);

// A device as drivers know it: the public part, then the driver's table of operations. libmlx5 and
// libefa read that pointer of every device to tell whether it is theirs, so it must be readable;
// null says that it is not.
struct DeviceShell {
  ibv_device device;
  const void* driver_operations;
  // What drivers keep behind it (reference count, list links): zeros, so that nothing is led
  // astray.
  std::uint64_t driver_room[16];
};
static_assert(offsetof(DeviceShell, driver_operations) == sizeof(ibv_device));

}  // namespace verbena::verbs
