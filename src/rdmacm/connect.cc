// SPDX-License-Identifier: MIT
// Connecting, accepting, rejecting, disconnecting.
#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "rdmacm/ids.h"
#include "rdmacm/manager.h"
#include "rdmacm/multicast.h"
#include "rdmacm/path.h"
#include "rdmacm/queue_pair.h"

namespace verbena::rdmacm {
namespace {

constexpr std::uint8_t kXrc = 1;    // of extended transports
constexpr std::uint8_t kSeven = 7;  // the most that fits; of RNR retries, without end

std::span<const std::byte> private_data_of(const rdma_conn_param* param) {
  if (!param || !param->private_data) return {};
  return {static_cast<const std::byte*>(param->private_data), param->private_data_len};
}

template <std::size_t kBytes>
bool put(std::span<const std::byte> from, std::array<std::byte, kBytes>& to, std::size_t at = 0) {
  if (from.size() > kBytes - at) return false;
  std::copy(from.begin(), from.end(), to.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

// The RDMA IP CM header (annex A11), and behind it what the program says. Between GIDs there is no
// header, as with the kernel's rdma_cm.
template <std::size_t kBytes>
bool put_request_data(const Id& id, const rdma_conn_param* param,
                      std::array<std::byte, kBytes>& to) {
  if (id.destination().is_ib()) {
    return put(id.connect_data, to) && put(private_data_of(param), to, id.connect_data.size());
  }
  const wire::IpCm ip{.source_port = id.source().port(),
                      .source = id.source().gid(),
                      .destination = id.destination().gid()};
  wire::encode_ip_cm(ip, std::span(to).template first<wire::IpCm::kBytes>());
  const std::size_t behind = wire::IpCm::kBytes + id.connect_data.size();
  return put(id.connect_data, to, wire::IpCm::kBytes) && put(private_data_of(param), to, behind);
}

std::uint8_t limited(const rdma_conn_param* param, std::uint8_t rdma_conn_param::* field,
                     std::uint8_t most) {
  if (!param || param->*field == RDMA_MAX_RESP_RES) return most;
  return std::min(param->*field, most);
}

std::uint32_t qp_number_of(const Id& id, const rdma_conn_param* param) {
  if (id.qp) return id.qp->qp_num;
  return param ? param->qp_num : 0;
}

bool uses_srq(const Id& id, const rdma_conn_param* param) {
  if (id.qp) return id.qp->srq != nullptr;
  return param && param->srq != 0;
}

wire::Ece ece_of(const Id& id) {
  return {.vendor_id = id.local_ece.vendor_id, .options = id.local_ece.options};
}

std::uint8_t ack_timeout_of(const Id& id) {
  // There and back, and what the peer takes to answer.
  return id.ack_timeout.value_or(kPacketLifetime + 2);
}

void agree(Id& id, const rdma_conn_param* param, std::uint64_t random) {
  Agreement& agreed = id.agreement;
  agreed.own_qp = qp_number_of(id, param);
  agreed.own_psn = static_cast<std::uint32_t>(random) & 0xFFFFFF;
  agreed.path_mtu = active_mtu_of(id);
  agreed.reads_in =
      limited(param, &rdma_conn_param::responder_resources, id.port->device->reads_in_max);
  agreed.reads_out =
      limited(param, &rdma_conn_param::initiator_depth, id.port->device->reads_out_max);
  agreed.retry_count = param ? std::min(param->retry_count, kSeven) : kSeven;
  agreed.rnr_retry_count = param ? std::min(param->rnr_retry_count, kSeven) : kSeven;
  agreed.timeout = ack_timeout_of(id);
}

wire::TransportType transport_of(ibv_qp_type type) {
  if (type == IBV_QPT_UC) return wire::TransportType::kUc;
  const bool is_xrc = type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV;
  return is_xrc ? wire::TransportType::kExtended : wire::TransportType::kRc;
}

wire::Req request_of(const Id& id, const rdma_conn_param* param) {
  const Agreement& agreed = id.agreement;
  wire::Req req{.service_id = id.service_id(id.destination()),
                .local_ca_guid = id.port->device->guid,
                .local_qp = {agreed.own_qp},
                .responder_resources = agreed.reads_in,
                .initiator_depth = agreed.reads_out,
                .remote_cm_response_timeout = kResponseTimeout,
                .transport_type = transport_of(id.qp_type),
                .end_to_end_flow_control = param && param->flow_control != 0,
                .starting_psn = agreed.own_psn,
                .local_cm_response_timeout = kResponseTimeout,
                .retry_count = agreed.retry_count,
                .path_mtu = agreed.path_mtu,
                .rnr_retry_count = agreed.rnr_retry_count,
                .max_cm_retries = kRetriesMax,
                .srq = uses_srq(id, param),
                .primary = cm_path_of(id)};
  if (req.transport_type == wire::TransportType::kExtended) req.extended_transport = kXrc;
  req.ece = ece_of(id);
  return req;
}

int connect_datagrams(Id& id, const rdma_conn_param* param) {
  wire::SidrReq request{.service_id = id.service_id(id.destination())};
  if (!put_request_data(id, param, request.private_data)) return EINVAL;
  const cm::Patience patience{.response_timeout = kResponseTimeout, .retries_max = kRetriesMax};
  Turn turn(id.manager);
  const auto comm = turn.engine().resolve(id.way, request, patience,
                                          reinterpret_cast<std::uint64_t>(&id), turn.now());
  if (!comm) return comm.error() == cm::Refusal::kNoRoom ? ENOMEM : EINVAL;
  id.comm = *comm;
  id.manager.enter(id);
  id.stage = Stage::kConnecting;
  return 0;
}

int connect_queue_pair(Id& id, const rdma_conn_param* param) {
  Turn turn(id.manager);
  agree(id, param, id.manager.draw());
  wire::Req req = request_of(id, param);
  if (!put_request_data(id, param, req.private_data)) return EINVAL;
  const auto comm =
      turn.engine().connect(id.way, req, reinterpret_cast<std::uint64_t>(&id), turn.now());
  if (!comm) return comm.error() == cm::Refusal::kNoRoom ? ENOMEM : EINVAL;
  id.comm = *comm;
  LOG_DEBUG("connection 0x%x: asks for service 0x%llx", comm->value,
            static_cast<unsigned long long>(req.service_id));
  id.manager.enter(id);
  id.stage = Stage::kConnecting;
  return 0;
}

int connect(Id& id, const rdma_conn_param* param) {
  if (!id.manager.in_owner()) return EIO;
  if (id.stage != Stage::kRouted) return EINVAL;
  id.way = route_of(id);
  const int error = id.is_datagram() ? connect_datagrams(id, param) : connect_queue_pair(id, param);
  return error ? error : complete(id);
}

int accept_datagrams(Id& id, const rdma_conn_param* param) {
  wire::SidrRep reply{
      .qp = {qp_number_of(id, param)}, .service_id = id.requested_service, .qkey = id.qkey};
  if (!put(private_data_of(param), reply.private_data)) return EINVAL;
  Turn turn(id.manager);
  if (!turn.engine().answer(*id.comm, reply, turn.now())) return EINVAL;
  id.awaits_accept = false;
  id.stage = Stage::kConnected;
  return 0;
}

int accept_queue_pair(Id& id, const rdma_conn_param* param) {
  Agreement& agreed = id.agreement;
  agreed.reads_in = limited(param, &rdma_conn_param::responder_resources, agreed.reads_in);
  agreed.reads_out = limited(param, &rdma_conn_param::initiator_depth, agreed.reads_out);
  agreed.own_qp = qp_number_of(id, param);
  if (id.qp) {
    if (const int error = make_ready(id)) return error;
  }
  wire::Rep rep{.local_qp = {agreed.own_qp},
                .starting_psn = agreed.own_psn,
                .responder_resources = agreed.reads_in,
                .initiator_depth = agreed.reads_out,
                .end_to_end_flow_control = param && param->flow_control != 0,
                .rnr_retry_count = param ? std::min(param->rnr_retry_count, kSeven) : kSeven,
                .srq = uses_srq(id, param),
                .local_ca_guid = id.port->device->guid};
  rep.ece = ece_of(id);
  if (!put(private_data_of(param), rep.private_data)) return EINVAL;
  Turn turn(id.manager);
  if (!turn.engine().accept(*id.comm, rep, turn.now())) return EINVAL;
  id.awaits_accept = false;
  id.stage = Stage::kAccepting;
  return 0;
}

int accept(Id& id, const rdma_conn_param* param) {
  if (!id.manager.in_owner()) return EIO;
  if (id.stage != Stage::kRequested || !id.comm) return EINVAL;
  if (id.is_datagram()) return accept_datagrams(id, param);
  const int error = accept_queue_pair(id, param);
  return error ? error : complete(id);
}

int reject(Id& id, std::span<const std::byte> private_data, wire::RejReason reason) {
  if (!id.manager.in_owner()) return EIO;
  const bool may = id.stage == Stage::kRequested || id.stage == Stage::kAnswered ||
                   id.stage == Stage::kAccepting;
  if (!may || !id.comm) return EINVAL;
  Turn turn(id.manager);
  if (id.is_datagram()) {
    wire::SidrRep reply{.status = wire::SidrStatus::kRejected, .service_id = id.requested_service};
    if (!put(private_data, reply.private_data)) return EINVAL;
    static_cast<void>(turn.engine().answer(*id.comm, reply, turn.now()));
  } else {
    const cm::Rejection rejection{.reason = reason, .private_data = private_data};
    if (!turn.engine().reject(*id.comm, rejection, turn.now())) return EINVAL;
  }
  id.stage = Stage::kOver;
  return 0;
}

int confirm(Id& id) {
  Turn turn(id.manager);
  if (!turn.engine().confirm(*id.comm, {}, turn.now())) return EINVAL;
  id.stage = Stage::kConnected;
  return 0;
}

int establish(Id& id) {
  if (!id.manager.in_owner()) return EIO;
  if (id.qp || id.stage != Stage::kAnswered || !id.comm) return EINVAL;
  return confirm(id);
}

int disconnect(Id& id) {
  if (!id.manager.in_owner()) return EIO;
  if (!id.comm) return EINVAL;
  if (const int error = move_to_error(id)) return error;
  bool is_begun = false;
  {
    Turn turn(id.manager);
    is_begun = turn.engine().disconnect(*id.comm, {}, turn.now()).has_value();
  }
  // The peer may have been first; then there is an event already, unless it was fetched.
  if (!is_begun && !id.events().has_waiting()) return 0;
  return complete(id);
}

int notify(Id& id, ibv_event_type type) {
  if (!id.manager.in_owner()) return EIO;
  if (type != IBV_EVENT_COMM_EST || !id.comm) return EINVAL;
  Turn turn(id.manager);
  // It crossed the RTU: then it is established all the same.
  static_cast<void>(turn.engine().established(*id.comm, turn.now()));
  return 0;
}

// The peer has answered: the queue pair gets ready, and the peer hears of it, if it has not ended
// the connection meanwhile.
void complete_connection(Event& event) {
  Id& id = Id::of(event.id);
  if (!id.qp) return;
  int error = id.stage == Stage::kAnswered ? make_ready(id) : ECONNREFUSED;
  if (!error) error = confirm(id);
  if (!error) {
    event.event = RDMA_CM_EVENT_ESTABLISHED;
    return;
  }
  static_cast<void>(reject(id, {}, wire::RejReason::kConsumer));
  static_cast<void>(move_to_error(id));
  event.event = RDMA_CM_EVENT_CONNECT_ERROR;
  event.status = -error;
}

}  // namespace

namespace {

// As the kernel counts: what the program knows of waits no more.
void take_from_backlog(Id& id) {
  Turn turn(id.manager);
  if (id.comm) turn.engine().taken(*id.comm);
}

// A listener without a channel has one of its own, and so has each id that a request brings. A
// request that gets none is nobody's: its peer hears that.
int hand_over_request(const Event& event) {
  Id& id = Id::of(event.id);
  take_from_backlog(id);
  if (!Id::of(event.listen_id).is_sync) return 0;
  const int error = migrate_id(id, nullptr);
  if (error) static_cast<void>(destroy_id(id));
  return error;
}

}  // namespace

int settle(Event& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_CONNECT_RESPONSE: complete_connection(event); return 0;
    case RDMA_CM_EVENT_CONNECT_REQUEST: return hand_over_request(event);
    case RDMA_CM_EVENT_REJECTED: static_cast<void>(move_to_error(Id::of(event.id))); return 0;
    case RDMA_CM_EVENT_MULTICAST_JOIN: attach_to_group(event); return 0;
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_ESTABLISHED:
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
    case RDMA_CM_EVENT_MULTICAST_ERROR:
    case RDMA_CM_EVENT_ADDR_CHANGE:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT: return 0;
  }
  return 0;
}

}  // namespace verbena::rdmacm

using namespace verbena::rdmacm;

extern "C" {

int rdma_connect(rdma_cm_id* id, rdma_conn_param* param) {
  if (!id) return answer(EINVAL);
  return answer(verbena::rdmacm::connect(Id::of(id), param));
}

int rdma_accept(rdma_cm_id* id, rdma_conn_param* param) {
  if (!id) return answer(EINVAL);
  return answer(verbena::rdmacm::accept(Id::of(id), param));
}

int rdma_reject(rdma_cm_id* id, const void* data, uint8_t length) {
  if (!id) return answer(EINVAL);
  const std::span bytes(static_cast<const std::byte*>(data), data ? length : 0);
  return answer(reject(Id::of(id), bytes, verbena::wire::RejReason::kConsumer));
}

int rdma_reject_ece(rdma_cm_id* id, const void* data, uint8_t length) {
  if (!id) return answer(EINVAL);
  const std::span bytes(static_cast<const std::byte*>(data), data ? length : 0);
  return answer(reject(Id::of(id), bytes, verbena::wire::RejReason::kVendorOptionNotSupported));
}

int rdma_establish(rdma_cm_id* id) {
  if (!id) return answer(EINVAL);
  return answer(establish(Id::of(id)));
}

int rdma_disconnect(rdma_cm_id* id) {
  if (!id) return answer(EINVAL);
  return answer(disconnect(Id::of(id)));
}

int rdma_notify(rdma_cm_id* id, ibv_event_type event) {
  if (!id) return answer(EINVAL);
  return answer(notify(Id::of(id), event));
}

int rdma_set_local_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (!id || id->qp || !ece || ece->comp_mask != 0) return answer(EINVAL);
  Id::of(id).local_ece = *ece;
  return 0;
}

int rdma_get_remote_ece(rdma_cm_id* id, ibv_ece* ece) {
  if (!id || id->qp || !ece) return answer(EINVAL);
  Manager& manager = Id::of(id).manager;
  if (!manager.in_owner()) return answer(EIO);
  const Turn turn(manager);
  *ece = Id::of(id).remote_ece;
  return 0;
}

}  // extern "C"
