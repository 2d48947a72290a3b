// SPDX-License-Identifier: MIT
// A stand-in for the NIC half of libibverbs.so.1: one device that can be opened and queried and
// does nothing. With it the library links and loads, and abi/ is tested, whatever state the NIC is
// in. Never shipped.
#include <arpa/inet.h>
#include <endian.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/contracts.h"
#include "verbs/abi/context.h"
#include "verbs/abi/entry.h"

namespace {

using verbena::verbs::DeviceShell;

constexpr std::uint8_t kPort = 1;

struct Gid {
  const char* text;  // null: an empty entry
  std::uint32_t type;
};
// Each address both ways, as an adapter would show it: who looks for one must also look at the
// type.
constexpr Gid kGids[] = {
    {"fe80::1", IBV_GID_TYPE_ROCE_V1},
    {"fe80::1", IBV_GID_TYPE_ROCE_V2},
    {"::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1},
    {"::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2},
    {nullptr, IBV_GID_TYPE_IB},
    {"fe80::9", IBV_GID_TYPE_IB},
};
constexpr std::uint32_t kInterfaceIndex = 7;

template <class Object>
Object* nothing() {
  errno = EOPNOTSUPP;
  return nullptr;
}

int query_port(ibv_context*, std::uint8_t port, ibv_port_attr* attributes, std::size_t size) {
  if (port != kPort) return EINVAL;
  ibv_port_attr full = {};
  full.state = IBV_PORT_ACTIVE;
  full.max_mtu = IBV_MTU_4096;
  full.active_mtu = IBV_MTU_1024;
  full.gid_tbl_len = std::size(kGids);
  full.max_msg_sz = 1U << 30;
  full.pkey_tbl_len = 2;
  full.link_layer = IBV_LINK_LAYER_ETHERNET;
  full.flags = 0x5a;
  full.port_cap_flags2 = 0x1234;
  verbena::verbs::copy_out(full, attributes, size);
  return 0;
}

int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* attributes,
                    std::size_t size) {
  ibv_device_attr_ex full = {};
  std::strcpy(full.orig_attr.fw_ver, "stub");
  full.orig_attr.phys_port_cnt = 1;
  full.orig_attr.max_qp = 12;
  full.phys_port_cnt_ex = 1;
  verbena::verbs::copy_out(full, attributes, size);
  return 0;
}

}  // namespace

int verbena::verbs::gid_entry(ibv_context*, std::uint32_t port, std::uint32_t index,
                              ibv_gid_entry* entry) {
  if (port != kPort || index >= std::size(kGids)) return EINVAL;
  if (!kGids[index].text) return ENODATA;
  inet_pton(AF_INET6, kGids[index].text, entry->gid.raw);
  entry->gid_index = index;
  entry->port_num = port;
  entry->gid_type = kGids[index].type;
  entry->ndev_ifindex = kInterfaceIndex;
  return 0;
}

ibv_device** ibv_get_device_list(int* count) {
  static DeviceShell stub = {};
  std::strcpy(stub.device.name, "stub0");
  std::strcpy(stub.device.dev_name, "uverbs0");
  stub.device.node_type = IBV_NODE_CA;
  stub.device.transport_type = IBV_TRANSPORT_IB;
  if (count) *count = 1;
  return new ibv_device*[2]{&stub.device, nullptr};
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }
__be64 ibv_get_device_guid(ibv_device*) { return 1; }
int ibv_get_device_index(ibv_device*) { return -1; }

ibv_context* ibv_open_device(ibv_device* device) {
  auto* context = new verbs_context;
  verbena::verbs::init_context(*context, *device);
  context->query_port = query_port;
  context->query_device_ex = query_device_ex;
  return &context->context;
}
int ibv_close_device(ibv_context* context) {
  verbs_context* whole = verbs_get_ctx(context);
  verbena::verbs::destroy_context(*whole);
  delete whole;
  return 0;
}

int ibv_query_pkey(ibv_context*, std::uint8_t port, int index, __be16* pkey) {
  if (port != kPort || index < 0 || index > 1) {
    errno = EINVAL;
    return -1;
  }
  *pkey = htobe16(index == 0 ? 0xffff : 0x8001);
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) { return new ibv_pd{context, 0}; }
int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  return 0;
}

// Gives back what it was given.
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                         unsigned access) {
  auto* mr = new ibv_mr{};
  mr->pd = pd;
  mr->addr = addr;
  mr->length = length;
  mr->lkey = access;
  mr->rkey = static_cast<std::uint32_t>(iova);
  return mr;
}
int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, std::size_t, int) { return EOPNOTSUPP; }
int ibv_dereg_mr(ibv_mr* mr) {
  delete mr;
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context*) { return nothing<ibv_comp_channel>(); }
int ibv_destroy_comp_channel(ibv_comp_channel*) { return EOPNOTSUPP; }
int ibv_get_cq_event(ibv_comp_channel*, ibv_cq**, void**) { return -1; }
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
ibv_cq* ibv_create_cq(ibv_context*, int, void*, ibv_comp_channel*, int) {
  return nothing<ibv_cq>();
}
int ibv_resize_cq(ibv_cq*, int) { return EOPNOTSUPP; }
int ibv_destroy_cq(ibv_cq*) { return EOPNOTSUPP; }
int ibv_get_async_event(ibv_context*, ibv_async_event*) { return -1; }
void ibv_ack_async_event(ibv_async_event*) {}

ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) { return nothing<ibv_srq>(); }
int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) { return EOPNOTSUPP; }
int ibv_query_srq(ibv_srq*, ibv_srq_attr*) { return EOPNOTSUPP; }
int ibv_destroy_srq(ibv_srq*) { return EOPNOTSUPP; }

ibv_qp* ibv_create_qp(ibv_pd*, ibv_qp_init_attr*) { return nothing<ibv_qp>(); }
int ibv_modify_qp(ibv_qp*, ibv_qp_attr*, int) { return EOPNOTSUPP; }
int ibv_query_qp(ibv_qp*, ibv_qp_attr*, int, ibv_qp_init_attr*) { return EOPNOTSUPP; }
int ibv_destroy_qp(ibv_qp*) { return EOPNOTSUPP; }
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) { return nullptr; }
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, std::uint32_t) { return 0; }

ibv_context* ibv_import_device(int) { return nothing<ibv_context>(); }
ibv_pd* ibv_import_pd(ibv_context*, std::uint32_t) { return nothing<ibv_pd>(); }
void ibv_unimport_pd(ibv_pd*) {}
ibv_mr* ibv_import_mr(ibv_pd*, std::uint32_t) { return nothing<ibv_mr>(); }
void ibv_unimport_mr(ibv_mr*) {}
ibv_dm* ibv_import_dm(ibv_context*, std::uint32_t) { return nothing<ibv_dm>(); }
void ibv_unimport_dm(ibv_dm*) {}

// The handle tells what it was made of: the index of our own GID.
ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  return new ibv_ah{pd->context, pd, attributes->grh.sgid_index};
}
int ibv_destroy_ah(ibv_ah* ah) {
  delete ah;
  return 0;
}
int ibv_attach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) { return EOPNOTSUPP; }
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) { return EOPNOTSUPP; }

// Nobody calls these.
extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): a name for C and for dlsym
[[gnu::visibility("default")]] extern const verbena::DvTable verbena_dv_table;
constinit const verbena::DvTable verbena_dv_table{};
// NOLINTNEXTLINE(readability-identifier-naming): a name for C and for dlsym
[[gnu::visibility("default")]] extern const verbena::GsiTable verbena_gsi_table;
constinit const verbena::GsiTable verbena_gsi_table{};
}
