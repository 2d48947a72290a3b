// SPDX-License-Identifier: MIT
#include "rdmacm/path.h"

#include <endian.h>

#include <cstring>

#include "rdmacm/manager.h"

namespace verbena::rdmacm {
namespace {

constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kRate = IBV_RATE_10_GBPS;  // no more than a promise
constexpr std::uint16_t kPkey = 0xFFFF;
constexpr std::uint8_t kExactly = 2;  // of a selector (IBTA vol 1, 15.2.5.16)

}  // namespace

ibv_gid gid_of(const Gid& gid) {
  ibv_gid made;
  std::memcpy(made.raw, gid.bytes, sizeof made.raw);
  return made;
}

void bind_to_port(Id& id) {
  id.manager.changes().add(id);
  id.verbs = id.port->device->context;
  id.port_num = 1;
  if (!id.pd) id.pd = id.manager.devices().domain_of(*id.port->device);
  rdma_ib_addr& shown = id.route.addr.addr.ibaddr;
  shown.sgid = gid_of(id.source().gid());
  shown.dgid = gid_of(id.destination().gid());
  shown.pkey = htobe16(kPkey);
}

cm::Route route_of(const Id& id) {
  return {.port = id.port->interface,
          .local = id.source().gid(),
          .remote = id.destination().gid(),
          .traffic_class = id.traffic_class};
}

ibv_ah_attr path_to_peer(const Id& id) {
  ibv_ah_attr path{};
  path.is_global = 1;
  path.port_num = 1;
  path.grh.dgid = gid_of(id.way.remote);
  path.grh.sgid_index = id.port->gid_index;
  path.grh.hop_limit = kHopLimit;
  path.grh.traffic_class = id.traffic_class;
  return path;
}

std::uint8_t active_mtu_of(const Id& id) {
  ibv_port_attr port{};
  if (ibv_query_port(id.verbs, id.port_num, &port) != 0) return IBV_MTU_1024;
  return static_cast<std::uint8_t>(port.active_mtu);
}

ibv_sa_path_rec path_record_of(const Id& id) {
  ibv_sa_path_rec path{};
  path.dgid = gid_of(id.destination().gid());
  path.sgid = gid_of(id.source().gid());
  path.hop_limit = kHopLimit;
  path.traffic_class = id.traffic_class;
  path.reversible = 1;
  path.numb_path = 1;
  path.pkey = htobe16(kPkey);
  path.mtu_selector = kExactly;
  path.mtu = active_mtu_of(id);
  path.rate_selector = kExactly;
  path.rate = kRate;
  path.packet_life_time_selector = kExactly;
  path.packet_life_time = kPacketLifetime;
  return path;
}

wire::CmPath cm_path_of(const Id& id) {
  return {.local_gid = id.way.local,
          .remote_gid = id.way.remote,
          .packet_rate = kRate,
          .traffic_class = id.traffic_class,
          .hop_limit = kHopLimit,
          .ack_timeout = id.agreement.timeout};
}

}  // namespace verbena::rdmacm
