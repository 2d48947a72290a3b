// SPDX-License-Identifier: MIT
#include "rdmacm/queue_pair.h"

#include <cstring>

#include "base/enum_number.h"
#include "rdmacm/ids.h"
#include "rdmacm/manager.h"
#include "rdmacm/path.h"

namespace verbena::rdmacm {
namespace {

constexpr int kConnectedAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// Extended reliable connections have each half on its own (IBTA vol 1, 11.2.5.2 and annex A14).
bool asks(ibv_qp_type type) { return type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND; }
bool answers_reads(ibv_qp_type type) { return type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV; }

int init_attributes(const Id& id, ibv_qp_attr& attributes) {
  attributes.pkey_index = 0;
  attributes.port_num = id.port_num;
  if (id.is_datagram()) {
    attributes.qkey = id.qkey;
    return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
  }
  // Before there is a connection nobody has a right to anything.
  attributes.qp_access_flags = id.comm ? kConnectedAccess : 0;
  return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
}

int receive_attributes(const Id& id, ibv_qp_attr& attributes) {
  if (id.is_datagram()) return IBV_QP_STATE;
  const Agreement& agreed = id.agreement;
  attributes.ah_attr = path_to_peer(id);
  attributes.path_mtu = static_cast<ibv_mtu>(agreed.path_mtu);
  attributes.dest_qp_num = agreed.peer_qp;
  attributes.rq_psn = agreed.own_psn;
  attributes.max_dest_rd_atomic = agreed.reads_in;
  attributes.min_rnr_timer = 0;
  int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (answers_reads(id.qp_type)) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return mask;
}

int send_attributes(const Id& id, ibv_qp_attr& attributes) {
  const Agreement& agreed = id.agreement;
  attributes.sq_psn = id.is_datagram() ? 0 : agreed.peer_psn;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (!answers_reads(id.qp_type) && !asks(id.qp_type)) return mask;
  mask |= IBV_QP_TIMEOUT;
  attributes.timeout = id.ack_timeout.value_or(agreed.timeout);
  if (!asks(id.qp_type)) return mask;
  attributes.retry_cnt = agreed.retry_count;
  attributes.rnr_retry = agreed.rnr_retry_count;
  attributes.max_rd_atomic = agreed.reads_out;
  return mask | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

int move(Id& id, ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr attributes{};
  attributes.qp_state = state;
  int mask = 0;
  if (const int error = fill_attributes(id, attributes, mask)) return error;
  return ibv_modify_qp(qp, &attributes, mask);
}

int prepare(Id& id, ibv_qp* qp) {
  if (const int error = move(id, qp, IBV_QPS_INIT)) return error;
  if (!id.is_datagram()) return 0;
  if (const int error = move(id, qp, IBV_QPS_RTR)) return error;
  return move(id, qp, IBV_QPS_RTS);
}

// A completion queue and its channel, for one direction. False: errno says why.
bool make_cq(Id& id, std::uint32_t depth, ibv_comp_channel*& channel, ibv_cq*& cq) {
  channel = ibv_create_comp_channel(id.verbs);
  if (!channel) return false;
  cq = ibv_create_cq(id.verbs, static_cast<int>(depth > 0 ? depth : 1), &id, channel, 0);
  if (cq) return true;
  const int error = errno;
  ibv_destroy_comp_channel(channel);
  channel = nullptr;
  errno = error;
  return false;
}

void drop_cq(ibv_comp_channel*& channel, ibv_cq*& cq, bool& is_ours) {
  if (!is_ours) return;
  if (cq) ibv_destroy_cq(cq);
  if (channel) ibv_destroy_comp_channel(channel);
  cq = nullptr;
  channel = nullptr;
  is_ours = false;
}

void drop_cqs(Id& id) {
  drop_cq(id.recv_cq_channel, id.recv_cq, id.owns_recv_cq);
  drop_cq(id.send_cq_channel, id.send_cq, id.owns_send_cq);
}

int complete_cqs(Id& id, ibv_qp_init_attr_ex& attributes) {
  if (attributes.qp_type == IBV_QPT_XRC_RECV) return 0;  // shared receive queues have theirs
  if (!attributes.recv_cq && !id.recv_cq) {
    id.owns_recv_cq = make_cq(id, attributes.cap.max_recv_wr, id.recv_cq_channel, id.recv_cq);
    if (!id.owns_recv_cq) return errno;
  }
  if (!attributes.send_cq && !id.send_cq) {
    id.owns_send_cq = make_cq(id, attributes.cap.max_send_wr, id.send_cq_channel, id.send_cq);
    if (!id.owns_send_cq) return errno;
  }
  if (!attributes.recv_cq) attributes.recv_cq = id.recv_cq;
  if (!attributes.send_cq) attributes.send_cq = id.send_cq;
  return 0;
}

// An XRC target without a domain gets the one of all ids of its device.
int complete_domain(Id& id, ibv_qp_init_attr_ex& attributes) {
  if ((attributes.comp_mask & IBV_QP_INIT_ATTR_XRCD) != 0 && attributes.xrcd) return 0;
  attributes.xrcd = id.manager.devices().xrc_domain_of(*id.port->device);
  if (!attributes.xrcd) return errno;
  attributes.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
  return 0;
}

// The same for a shared receive queue, which completes where the id's receives do.
int complete_shared(Id& id, ibv_srq_init_attr_ex& attributes) {
  if ((attributes.comp_mask & IBV_SRQ_INIT_ATTR_XRCD) == 0 || !attributes.xrcd) {
    attributes.xrcd = id.manager.devices().xrc_domain_of(*id.port->device);
    if (!attributes.xrcd) return errno;
  }
  if ((attributes.comp_mask & IBV_SRQ_INIT_ATTR_CQ) == 0 || !attributes.cq) {
    if (!id.recv_cq) {
      id.owns_recv_cq = make_cq(id, attributes.attr.max_wr, id.recv_cq_channel, id.recv_cq);
      if (!id.owns_recv_cq) return errno;
    }
    attributes.cq = id.recv_cq;
  }
  attributes.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  return 0;
}

bool differ(const ibv_cq* a, const ibv_cq* b) { return a && b && a != b; }

}  // namespace

int fill_attributes(const Id& id, ibv_qp_attr& attributes, int& mask) {
  if (!id.port) return EINVAL;
  switch (enum_number(attributes.qp_state)) {
    case IBV_QPS_INIT: mask = init_attributes(id, attributes); return 0;
    case IBV_QPS_RTR:
      if (!id.is_datagram() && !id.comm) return EINVAL;
      mask = receive_attributes(id, attributes);
      return 0;
    case IBV_QPS_RTS:
      if (!id.is_datagram() && !id.comm) return EINVAL;
      mask = send_attributes(id, attributes);
      return 0;
    default: return EINVAL;
  }
}

int make_ready(Id& id) {
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS})
    if (const int error = move(id, id.qp, state)) return error;
  return 0;
}

int move_to_error(Id& id) {
  if (!id.qp) return 0;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(id.qp, &attributes, IBV_QP_STATE);
}

int create_qp(Id& id, ibv_qp_init_attr_ex& attributes) {
  if (!id.manager.in_owner()) return EIO;
  if (id.qp || !id.port) return EINVAL;
  if ((attributes.comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || !attributes.pd) {
    attributes.comp_mask |= IBV_QP_INIT_ATTR_PD;
    attributes.pd = id.pd;
  }
  if (!attributes.pd) return ENOMEM;
  if (attributes.pd->context != id.verbs) return EINVAL;
  if ((attributes.qp_type == IBV_QPT_UD) != id.is_datagram()) return EINVAL;
  if (differ(id.recv_cq, attributes.recv_cq) || differ(id.send_cq, attributes.send_cq)) {
    return EINVAL;
  }
  if (attributes.qp_type == IBV_QPT_XRC_RECV) {
    if (const int error = complete_domain(id, attributes)) return error;
  } else if (id.srq && !attributes.srq) {
    attributes.srq = id.srq;
  }
  if (const int error = complete_cqs(id, attributes)) {
    drop_cqs(id);
    return error;
  }
  ibv_qp* const qp = ibv_create_qp_ex(id.verbs, &attributes);
  const int error = qp ? prepare(id, qp) : errno;
  if (error) {
    if (qp) ibv_destroy_qp(qp);
    drop_cqs(id);
    return error;
  }
  id.qp = qp;
  id.qp_type = attributes.qp_type;
  id.pd = attributes.pd;
  return 0;
}

// The queue pair and the shared receive queue complete in the same queues: whoever goes last takes
// these along.
void destroy_qp(Id& id) {
  if (!id.qp) return;
  ibv_destroy_qp(id.qp);
  id.qp = nullptr;
  if (!id.srq) drop_cqs(id);
}

void destroy_srq(Id& id) {
  if (!id.srq) return;
  ibv_destroy_srq(id.srq);
  id.srq = nullptr;
  if (!id.qp) drop_cqs(id);
}

}  // namespace verbena::rdmacm

using namespace verbena::rdmacm;

extern "C" {

int rdma_create_qp_ex(rdma_cm_id* id, ibv_qp_init_attr_ex* attributes) {
  if (!id || !attributes) return answer(EINVAL);
  return answer(create_qp(Id::of(id), *attributes));
}

int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attributes) {
  if (!id || !attributes) return answer(EINVAL);
  ibv_qp_init_attr_ex extended{};
  std::memcpy(&extended, attributes, sizeof *attributes);
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd ? pd : id->pd;
  const int error = create_qp(Id::of(id), extended);
  if (!error) std::memcpy(attributes, &extended, sizeof *attributes);
  return answer(error);
}

void rdma_destroy_qp(rdma_cm_id* id) { destroy_qp(Id::of(id)); }

int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) {
  if (!id || !attributes || !mask) return answer(EINVAL);
  Manager& manager = Id::of(id).manager;
  if (!manager.in_owner()) return answer(EIO);
  const Turn turn(manager);  // the peer's answer may be coming
  return answer(fill_attributes(Id::of(id), *attributes, *mask));
}

int rdma_create_srq_ex(rdma_cm_id* id, ibv_srq_init_attr_ex* attributes) {
  if (!id || !attributes || !Id::of(id).port || id->srq) return answer(EINVAL);
  if ((attributes->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || !attributes->pd) {
    attributes->pd = id->pd;
    attributes->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
  }
  const bool is_xrc =
      (attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && attributes->srq_type == IBV_SRQT_XRC;
  if (is_xrc) {
    if (const int error = complete_shared(Id::of(id), *attributes)) return answer(error);
  }
  ibv_srq* const srq = ibv_create_srq_ex(id->verbs, attributes);
  if (!srq) return -1;
  if (!id->pd) id->pd = attributes->pd;
  id->srq = srq;
  return 0;
}

int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* attributes) {
  if (!id || !attributes) return answer(EINVAL);
  ibv_srq_init_attr_ex extended{};
  std::memcpy(&extended, attributes, sizeof *attributes);
  extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  extended.srq_type = id->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC;
  extended.pd = pd;
  const int failed = rdma_create_srq_ex(id, &extended);
  if (!failed) std::memcpy(attributes, &extended, sizeof *attributes);
  return failed;
}

void rdma_destroy_srq(rdma_cm_id* id) { destroy_srq(Id::of(id)); }

}  // extern "C"
