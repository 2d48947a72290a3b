// SPDX-License-Identifier: MIT
// What a device and its port are (ibv_query_device_ex(3), ibv_query_port(3), ibv_query_gid_ex(3),
// ibv_query_pkey(3), ibv_query_rt_values_ex(3)). What this NIC does not have is absent here: packet
// pacing; and checksums and VLAN tags of raw packets are left to the program.
#include <endian.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>

#include "qp/tag_matcher.h"
#include "verbs/abi/context.h"
#include "verbs/border.h"
#include "verbs/objects.h"

#ifndef VERBENA_VERSION
#error "the build passes the version of the project"
#endif

namespace verbena::verbs {
namespace {

constexpr std::uint32_t kVendorId = 0x565242;  // "VRB"; not an OUI that anybody was assigned
constexpr std::uint32_t kVendorPart = 1;
constexpr std::uint8_t kAckDelayCode = 15;   // 134 ms: we may have to be scheduled first
constexpr std::uint8_t kWidth4x = 2;         // ibv_port_attr::active_width
constexpr std::uint8_t kSpeedEdr = 32;       // active_speed: 25 Gb/s a lane
constexpr std::uint8_t kPhysicalLinkUp = 5;  // IBTA vol 1, 14.2.5.6
constexpr std::uint8_t kPhysicalDisabled = 3;
// What gives completions their timestamps, and raw_clock: CLOCK_MONOTONIC, in nanoseconds.
constexpr std::uint64_t kClockKilohertz = 1'000'000;
constexpr std::uint64_t kClockMask = ~std::uint64_t{0};
constexpr std::uint16_t kDefaultPkey = 0xffff;      // full member of the default partition
constexpr std::uint32_t kRendezvousHeaderMax = 64;  // with 32 bytes of the program's own
// Addresses come and go while a device is open, so the GID table has free places. Programs look at
// all of it: keep it small.
constexpr int kGidTableMin = 8;
constexpr int kGidTableMax = 256;  // ibv_global_route::sgid_index has eight bits

// Of newer headers: IB_UVERBS_DEVICE_FLUSH_GLOBAL and IB_UVERBS_DEVICE_ATOMIC_WRITE.
constexpr std::uint64_t kNewerCapabilities = 1ULL << 38 | 1ULL << 40;

int clamped(std::uint64_t value) {
  return static_cast<int>(std::min<std::uint64_t>(value, std::numeric_limits<int>::max()));
}

ibv_device_attr device_attributes(const nic::Device& device) {
  const nic::Limits& limits = device.limits;
  ibv_device_attr answer = {};
  std::snprintf(answer.fw_ver, sizeof answer.fw_ver, "%s", VERBENA_VERSION);
  answer.node_guid = htobe64(device.guid);
  answer.sys_image_guid = htobe64(device.guid);
  answer.max_mr_size = std::numeric_limits<std::uint64_t>::max();
  answer.page_size_cap = 0xfffff000;
  answer.vendor_id = kVendorId;
  answer.vendor_part_id = kVendorPart;
  answer.max_qp = clamped(limits.queue_pairs);
  answer.max_qp_wr = clamped(limits.work_requests);
  answer.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID |
                            IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE |
                            IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_XRC |
                            IBV_DEVICE_MANAGED_FLOW_STEERING;
  answer.max_sge = clamped(limits.sges);
  answer.max_sge_rd = clamped(limits.sges);
  answer.max_cq = clamped(limits.completion_queues);
  answer.max_cqe = clamped(limits.completions);
  answer.max_mr = clamped(limits.regions);
  answer.max_mw = clamped(limits.windows);
  answer.max_pd = clamped(limits.domains);
  answer.max_qp_rd_atom = clamped(limits.reads_in_flight);
  answer.max_qp_init_rd_atom = clamped(limits.reads_in_flight);
  answer.max_res_rd_atom = clamped(std::uint64_t{limits.queue_pairs} * limits.reads_in_flight);
  answer.atomic_cap = IBV_ATOMIC_GLOB;  // they are the processor's own
  answer.max_raw_ethy_qp = clamped(limits.queue_pairs);
  answer.max_mcast_grp = clamped(limits.multicast_groups);
  answer.max_mcast_qp_attach = clamped(limits.multicast_members);
  answer.max_total_mcast_qp_attach =
      clamped(std::uint64_t{limits.multicast_groups} * limits.multicast_members);
  answer.max_ah = clamped(limits.address_handles);
  answer.max_srq = clamped(limits.shared_receive_queues);
  answer.max_srq_wr = clamped(limits.work_requests);
  answer.max_srq_sge = clamped(limits.sges);
  answer.max_pkeys = 1;
  answer.local_ca_ack_delay = kAckDelayCode;
  answer.phys_port_cnt = kPort;
  return answer;
}

// Pages come when they are used, whoever uses them: nothing is pinned.
ibv_odp_caps on_demand() {
  constexpr std::uint32_t kMessages =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  constexpr std::uint32_t kAll =
      kMessages | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
  return {.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT,
          .per_transport_caps = {.rc_odp_caps = kAll,
                                 .uc_odp_caps = kMessages | IBV_ODP_SUPPORT_WRITE,
                                 .ud_odp_caps = kMessages}};
}

ibv_rss_caps scaling(const nic::Limits& limits) {
  return {.supported_qpts = 1u << IBV_QPT_RAW_PACKET,
          .max_rwq_indirection_tables = limits.work_queue_tables,
          .max_rwq_indirection_table_size = limits.work_queues_in_table,
          .rx_hash_fields_mask = raw::kHashFields,
          .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ};
}

int gid_table_length(std::size_t used) {
  const int wanted = static_cast<int>(std::bit_ceil(std::min<std::size_t>(used + 1, kGidTableMax)));
  return std::clamp(wanted, kGidTableMin, kGidTableMax);
}

ibv_port_attr port_attributes(const Context& context) {
  const nic::Device& device = context.nic->device();
  const bool is_up = context.nic->port_is_up();
  ibv_port_attr answer = {};
  answer.state = is_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  answer.max_mtu = IBV_MTU_4096;
  answer.active_mtu = static_cast<ibv_mtu>(device.active_mtu);
  answer.gid_tbl_len = gid_table_length(context.nic->gids().size());
  answer.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
  answer.max_msg_sz = static_cast<std::uint32_t>(device.limits.message_bytes);
  answer.pkey_tbl_len = 1;
  answer.max_vl_num = 1;
  answer.active_width = kWidth4x;
  answer.active_speed = kSpeedEdr;
  answer.phys_state = is_up ? kPhysicalLinkUp : kPhysicalDisabled;
  answer.link_layer = IBV_LINK_LAYER_ETHERNET;
  answer.flags = IBV_QPF_GRH_REQUIRED;
  return answer;
}

int entry_at(const Context& context, std::uint32_t index, ibv_gid_entry& entry) {
  const std::vector<Gid> gids = context.nic->gids();
  if (index >= static_cast<std::uint32_t>(gid_table_length(gids.size()))) return EINVAL;
  if (index >= gids.size()) return ENODATA;
  entry = {};
  std::memcpy(entry.gid.raw, gids[index].bytes, sizeof entry.gid.raw);
  entry.gid_index = index;
  entry.port_num = kPort;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = context.nic->device().interface_index;
  return 0;
}

}  // namespace

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attributes, std::size_t size) noexcept {
  if (input && input->comp_mask) return EINVAL;
  if (size < sizeof(ibv_device_attr)) return EINVAL;
  const Context& open = own(context);
  if (!open.is_usable()) return EIO;
  ibv_device_attr_ex answer = {};
  answer.orig_attr = device_attributes(open.nic->device());
  answer.odp_caps = on_demand();
  answer.xrc_odp_caps = answer.odp_caps.per_transport_caps.rc_odp_caps;
  answer.max_dm_size = open.nic->device().limits.device_memory_bytes;
  answer.completion_timestamp_mask = kClockMask;
  answer.hca_core_clock = kClockKilohertz;
  answer.device_cap_flags_ex = answer.orig_attr.device_cap_flags | kNewerCapabilities;
  answer.tm_caps = {.max_rndv_hdr_size = kRendezvousHeaderMax,
                    .max_num_tags = qp::kTagsMax,
                    .flags = IBV_TM_CAP_RC,
                    .max_ops = qp::kTagOperationsMax,
                    .max_sge = qp::kTagSgeMax};
  answer.cq_mod_caps = {.max_cq_count = std::numeric_limits<std::uint16_t>::max(),
                        .max_cq_period = std::numeric_limits<std::uint16_t>::max()};
  answer.phys_port_cnt_ex = kPort;
  answer.packet_pacing_caps = {.qp_rate_limit_min = qp::kRateMin,
                               .qp_rate_limit_max = qp::kRateMax,
                               .supported_qpts = 1u << IBV_QPT_RAW_PACKET};
  answer.rss_caps = scaling(open.nic->device().limits);
  answer.max_wq_type_rq = open.nic->device().limits.queue_pairs;
  copy_out(answer, attributes, size);
  return 0;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes,
               std::size_t size) noexcept {
  return at_border([&]() -> Result<void, nic::Error> {
    if (port != kPort) return refuse(nic::Error::kInvalid);
    if (!own(context).is_usable()) return refuse(nic::Error::kGone);
    copy_out(port_attributes(own(context)), attributes, size);
    return {};
  });
}

int query_real_time(ibv_context* context, ibv_values_ex* values) noexcept {
  if (!own(context).is_usable()) return EIO;
  const std::uint32_t wanted = values->comp_mask;
  values->comp_mask = 0;  // tells what was filled in
  if (wanted & ~std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK}) return EINVAL;
  if (wanted & IBV_VALUES_MASK_RAW_CLOCK) {
    // In ticks of hca_core_clock, all of them in tv_nsec: so other adapters fill it.
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    values->raw_clock = {.tv_sec = 0, .tv_nsec = now.tv_sec * 1'000'000'000 + now.tv_nsec};
    values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  }
  return 0;
}

int gid_entry(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry) {
  if (port != kPort) return EINVAL;
  if (!own(context).is_usable()) return EIO;
  int answer = 0;
  const int refused = at_border([&]() -> Result<void, nic::Error> {
    answer = entry_at(own(context), index, *entry);
    return {};
  });
  return refused ? refused : answer;
}

}  // namespace verbena::verbs

using namespace verbena;

int ibv_query_pkey(ibv_context* context, std::uint8_t port, int index, __be16* pkey) {
  return verbs::minus_one_at_border([&]() -> Result<void, nic::Error> {
    if (port != verbs::kPort || index != 0) return refuse(nic::Error::kInvalid);
    if (!verbs::own(context).is_usable()) return refuse(nic::Error::kGone);
    *pkey = htobe16(verbs::kDefaultPkey);
    return {};
  });
}
