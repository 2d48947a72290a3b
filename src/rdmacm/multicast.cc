// SPDX-License-Identifier: MIT
#include "rdmacm/multicast.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/not_cancelled.h"
#include "rdmacm/ids.h"
#include "rdmacm/manager.h"
#include "rdmacm/path.h"

namespace verbena::rdmacm {
namespace {

constexpr std::uint32_t kMulticastQp = 0xFFFFFF;

auto find(Id& id, const Gid& group) {
  return std::ranges::find(id.groups, group, &Membership::group);
}

int join(Id& id, const sockaddr* address, bool is_send_only, void* context) {
  if (!id.manager.in_owner()) return EIO;
  const auto to = Address::from(address);
  if (!to || !id.port || !id.is_datagram()) return EINVAL;
  if (!to->is_multicast()) return EINVAL;
  auto event = std::make_unique<Event>(id, RDMA_CM_EVENT_MULTICAST_JOIN, 0);
  event->param.ud.private_data = context;
  event->param.ud.qp_num = kMulticastQp;
  event->param.ud.qkey = id.qkey;
  ibv_ah_attr& path = event->param.ud.ah_attr;
  path.is_global = 1;
  path.port_num = id.port_num;
  path.grh.dgid = gid_of(to->gid());
  path.grh.sgid_index = id.port->gid_index;
  path.grh.hop_limit = 64;
  path.grh.traffic_class = id.traffic_class;
  {
    const UncancelledGuard guard(id.groups_lock);
    if (find(id, to->gid()) != id.groups.end()) return EADDRINUSE;
    id.groups.push_back(
        {.address = *to, .group = to->gid(), .context = context, .is_send_only = is_send_only});
    id.events().push(std::move(event));
  }
  return complete(id);
}

void detach(Id& id, const Membership& group) {
  if (!group.is_attached || !id.qp) return;
  const ibv_gid gid = gid_of(group.group);
  ibv_detach_mcast(id.qp, &gid, 0);
}

int leave(Id& id, const sockaddr* address) {
  if (!id.manager.in_owner()) return EIO;
  const auto from = Address::from(address);
  if (!from) return EINVAL;
  const UncancelledGuard guard(id.groups_lock);
  const auto found = find(id, from->gid());
  if (found == id.groups.end()) return EADDRNOTAVAIL;
  detach(id, *found);
  const ibv_gid gid = gid_of(from->gid());
  // What was not fetched yet is taken back.
  static_cast<void>(id.events().withdraw([&](const Event& event) {
    return event.id == &id && event.event == RDMA_CM_EVENT_MULTICAST_JOIN &&
           std::memcmp(event.param.ud.ah_attr.grh.dgid.raw, gid.raw, sizeof gid.raw) == 0;
  }));
  id.groups.erase(found);
  return 0;
}

}  // namespace

void attach_to_group(Event& event) {
  Id& id = Id::of(event.id);
  ibv_gid gid = event.param.ud.ah_attr.grh.dgid;
  Gid group;
  std::memcpy(group.bytes, gid.raw, sizeof group.bytes);
  const UncancelledGuard guard(id.groups_lock);
  const auto found = find(id, group);
  if (found == id.groups.end() || found->is_send_only || !id.qp) return;
  const int error = ibv_attach_mcast(id.qp, &gid, 0);
  if (!error) {
    found->is_attached = true;
    return;
  }
  event.event = RDMA_CM_EVENT_MULTICAST_ERROR;
  event.status = -error;
  id.groups.erase(found);
}

void leave_all_groups(Id& id) {
  const UncancelledGuard guard(id.groups_lock);
  for (const Membership& each : id.groups)
    detach(id, each);
  id.groups.clear();
}

}  // namespace verbena::rdmacm

using namespace verbena::rdmacm;

extern "C" {

int rdma_join_multicast(rdma_cm_id* id, sockaddr* address, void* context) {
  if (!id) return answer(EINVAL);
  return answer(verbena::rdmacm::join(Id::of(id), address, false, context));
}

int rdma_join_multicast_ex(rdma_cm_id* id, rdma_cm_join_mc_attr_ex* wanted, void* context) {
  if (!id || !wanted || wanted->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED) {
    return answer(EINVAL);
  }
  if ((wanted->comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS) == 0) return answer(EINVAL);
  bool is_send_only = false;
  if ((wanted->comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS) != 0) {
    if (wanted->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED) return answer(EINVAL);
    is_send_only = wanted->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
  }
  return answer(verbena::rdmacm::join(Id::of(id), wanted->addr, is_send_only, context));
}

int rdma_leave_multicast(rdma_cm_id* id, sockaddr* address) {
  if (!id) return answer(EINVAL);
  return answer(leave(Id::of(id), address));
}

}  // extern "C"
