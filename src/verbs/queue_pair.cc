// SPDX-License-Identifier: MIT
// Queue pairs (ibv_create_qp(3), ibv_create_qp_ex(3), ibv_modify_qp(3), ibv_query_qp(3),
// ibv_attach_mcast(3)).
#include <algorithm>
#include <cstring>

#include "nic/xrc.h"
#include "verbs/border.h"
#include "verbs/builder.h"
#include "verbs/objects.h"
#include "verbs/translate.h"

namespace verbena::verbs {
namespace {

// The old structure is the beginning of the extended one: the header's inline passes either.
static_assert(offsetof(ibv_qp_init_attr, cap) == offsetof(ibv_qp_init_attr_ex, cap));
static_assert(offsetof(ibv_qp_init_attr, sq_sig_all) == offsetof(ibv_qp_init_attr_ex, sq_sig_all));

Gid gid_from(const ibv_gid& gid) {
  Gid ours;
  std::memcpy(ours.bytes, gid.raw, sizeof ours.bytes);
  return ours;
}

bool is_within(const ibv_qp_cap& wanted, const nic::Limits& limits) {
  return wanted.max_send_wr <= limits.work_requests && wanted.max_recv_wr <= limits.work_requests &&
         wanted.max_send_sge <= limits.sges && wanted.max_recv_sge <= limits.sges &&
         wanted.max_inline_data <= limits.inline_bytes;
}

Result<nic::QpRequest, nic::Error> request_from(const Context& context,
                                                const ibv_qp_init_attr& wanted) {
  const auto type = type_from(wanted.qp_type);
  if (!type) return refuse(nic::Error::kNotSupported);
  const qp::Xrc xrc = xrc_from(wanted.qp_type);
  const bool has_queues = wanted.send_cq && (wanted.recv_cq || xrc == qp::Xrc::kInitiator);
  if (!has_queues || xrc == qp::Xrc::kTarget) return refuse(nic::Error::kInvalid);
  // Its messages take receives of the target's domain.
  if (xrc != qp::Xrc::kNo && wanted.srq) return refuse(nic::Error::kInvalid);
  if (!is_within(wanted.cap, context.nic->device().limits)) return refuse(nic::Error::kInvalid);
  nic::QpRequest request;
  request.type = *type;
  request.send_cq = own(wanted.send_cq).nic;
  request.xrc = xrc;
  request.receive_cq = wanted.recv_cq ? own(wanted.recv_cq).nic : request.send_cq;
  request.srq = wanted.srq ? own(wanted.srq).nic : nullptr;
  request.signal_all = wanted.sq_sig_all != 0;
  request.send_depth = wanted.cap.max_send_wr;
  request.send_sge_max = wanted.cap.max_send_sge;
  // What there is room for: rdma_xclient asks for none and sends 16 bytes, as adapters let it.
  request.inline_max =
      std::min(queues::SendQueue::inline_room(wanted.cap.max_send_sge, wanted.cap.max_inline_data),
               context.nic->device().limits.inline_bytes);
  // A queue pair on a shared receive queue has none of its own.
  const bool has_receives = !wanted.srq && xrc == qp::Xrc::kNo;
  request.receive_depth = has_receives ? wanted.cap.max_recv_wr : 0;
  request.receive_sge_max = has_receives ? wanted.cap.max_recv_sge : 0;
  return request;
}

// Takes the NIC's queue pair along when the border's part cannot be finished.
struct Undo {
  void operator()(Qp* qp) const {
    if (qp->nic) static_cast<void>(nic::destroy_qp(qp->nic, qp));
    delete qp;
  }
};
using UnfinishedQp = std::unique_ptr<Qp, Undo>;

// `pd`: none for an XRC target.
void fill_face(Qp& qp, ibv_context* context, ibv_pd* pd, const ibv_qp_init_attr& wanted) {
  ibv_qp& face = qp.face.qp_base;
  face.context = context;
  face.qp_context = wanted.qp_context;
  face.pd = pd;
  face.send_cq = wanted.send_cq;
  face.recv_cq = wanted.recv_cq;
  face.srq = wanted.srq;
  face.handle = own(context).new_handle();
  face.qp_num = nic::number_of(*qp.nic).value;
  face.state = IBV_QPS_RESET;
  face.qp_type = wanted.qp_type;
  init_locks(face);
}

Result<UnfinishedQp, nic::Error> create(Pd& pd, ibv_qp_init_attr& wanted) {
  auto request = request_from(own(pd.face.context), wanted);
  if (!request) return refuse(request.error());
  UnfinishedQp qp(new Qp);
  qp->face = {};
  qp->is_datagram = request->type == qp::QpType::kUd;
  qp->is_xrc = request->xrc != qp::Xrc::kNo;
  request->cookie = qp.get();
  const auto made = nic::create_qp(*pd.nic, *request);
  if (!made) return refuse(made.error());
  qp->nic = *made;
  fill_face(*qp, pd.face.context, &pd.face, wanted);
  wanted.cap = capabilities_of(nic::config_of(*qp->nic));
  return qp;
}

constexpr std::uint32_t kScaling = IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;

// What can be refused without a queue pair.
Result<void, nic::Error> check(const ibv_qp_init_attr_ex& wanted) {
  constexpr std::uint32_t kKnown = (IBV_QP_INIT_ATTR_SEND_OPS_FLAGS << 1) - 1;
  constexpr std::uint32_t kOurs = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
                                  IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
                                  kScaling;
  if (wanted.comp_mask & ~kKnown) return refuse(nic::Error::kInvalid);
  const auto type = type_from(wanted.qp_type);
  if (!type || wanted.comp_mask & ~kOurs) return refuse(nic::Error::kNotSupported);
  const bool is_target = xrc_from(wanted.qp_type) == qp::Xrc::kTarget;
  if (is_target) {
    if (!(wanted.comp_mask & IBV_QP_INIT_ATTR_XRCD) || !wanted.xrcd)
      return refuse(nic::Error::kInvalid);
  } else if (wanted.comp_mask & IBV_QP_INIT_ATTR_XRCD) {
    return refuse(nic::Error::kInvalid);
  } else if (!(wanted.comp_mask & IBV_QP_INIT_ATTR_PD) || !wanted.pd)
    return refuse(nic::Error::kInvalid);
  if (wanted.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && wanted.create_flags != 0) {
    return refuse(nic::Error::kNotSupported);
  }
  if (wanted.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS &&
      wanted.send_ops_flags & ~supported_operations(*type)) {
    return refuse(nic::Error::kNotSupported);
  }
  return {};
}

// Everything that is posted or completes there belongs to shared receive queues.
Result<ibv_qp*, nic::Error> create_target(ibv_qp_init_attr_ex& wanted) {
  if (wanted.srq) return refuse(nic::Error::kInvalid);
  ibv_context* const context = wanted.xrcd->context;
  UnfinishedQp qp(new Qp);
  qp->face = {};
  qp->is_xrc = true;
  const auto made = nic::create_target(*own(wanted.xrcd).nic, qp.get());
  if (!made) return refuse(made.error());
  qp->nic = *made;
  auto& old = reinterpret_cast<ibv_qp_init_attr&>(wanted);
  fill_face(*qp, context, nullptr, old);
  qp->plain()->send_cq = qp->plain()->recv_cq = nullptr;
  wanted.cap = {};
  return qp.release()->plain();
}

Result<raw::HashConfig, nic::Error> hashing_from(const ibv_rx_hash_conf& wanted) {
  if (wanted.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ ||
      wanted.rx_hash_fields_mask & ~raw::kHashFields) {
    return refuse(nic::Error::kNotSupported);
  }
  raw::HashConfig hashing;
  if (wanted.rx_hash_key_len != hashing.key.size() || !wanted.rx_hash_key) {
    return refuse(nic::Error::kInvalid);
  }
  hashing.fields = wanted.rx_hash_fields_mask;
  std::copy_n(wanted.rx_hash_key, hashing.key.size(), hashing.key.begin());
  return hashing;
}

// Everything that is posted or completes there belongs to work queues.
Result<ibv_qp*, nic::Error> create_scaling(ibv_qp_init_attr_ex& wanted) {
  const bool has_queues = wanted.srq || wanted.send_cq || wanted.recv_cq;
  const bool is_whole = (wanted.comp_mask & kScaling) == kScaling && wanted.rwq_ind_tbl;
  if (!is_whole || has_queues || wanted.qp_type != IBV_QPT_RAW_PACKET ||
      wanted.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
    return refuse(nic::Error::kInvalid);
  }
  const auto hashing = hashing_from(wanted.rx_hash_conf);
  if (!hashing) return refuse(hashing.error());
  UnfinishedQp qp(new Qp);
  qp->face = {};
  const auto made =
      nic::create_scaling_qp(*own(wanted.pd).nic, *own(wanted.rwq_ind_tbl).nic, *hashing, qp.get());
  if (!made) return refuse(made.error());
  qp->nic = *made;
  fill_face(*qp, wanted.pd->context, wanted.pd, reinterpret_cast<ibv_qp_init_attr&>(wanted));
  wanted.cap = {};
  return qp.release()->plain();
}

Result<ibv_qp*, nic::Error> open_target(Context& context, const ibv_qp_open_attr& wanted) {
  constexpr std::uint32_t kNeeded =
      IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  constexpr std::uint32_t kKnown = kNeeded | IBV_QP_OPEN_ATTR_CONTEXT;
  if (wanted.comp_mask & ~kKnown || (wanted.comp_mask & kNeeded) != kNeeded || !wanted.xrcd ||
      wanted.qp_type != IBV_QPT_XRC_RECV) {
    return refuse(nic::Error::kInvalid);
  }
  if (wanted.xrcd->context != &context.table.context) return refuse(nic::Error::kInvalid);
  UnfinishedQp qp(new Qp);
  qp->face = {};
  qp->is_xrc = true;
  const auto found = nic::open_target(*own(wanted.xrcd).nic, {wanted.qp_num}, qp.get());
  if (!found) return refuse(found.error());
  qp->nic = *found;
  ibv_qp_init_attr initial = {};
  initial.qp_type = IBV_QPT_XRC_RECV;
  if (wanted.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) initial.qp_context = wanted.qp_context;
  fill_face(*qp, &context.table.context, nullptr, initial);
  if (const auto now = nic::query_qp(*qp->nic))
    qp->plain()->state = static_cast<ibv_qp_state>(now->attributes.state);
  return qp.release()->plain();
}

Result<ibv_qp*, nic::Error> create_extended(ibv_qp_init_attr_ex& wanted) {
  if (const auto fits = check(wanted); !fits) return refuse(fits.error());
  if (xrc_from(wanted.qp_type) == qp::Xrc::kTarget) return create_target(wanted);
  if (wanted.comp_mask & kScaling) return create_scaling(wanted);
  const bool has_operations = wanted.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if (has_operations && wanted.send_ops_flags & IBV_QP_EX_WITH_ATOMIC_WRITE) {
    wanted.cap.max_inline_data = std::max(wanted.cap.max_inline_data, kAtomicWriteBytes);
  }
  auto made = create(own(wanted.pd), reinterpret_cast<ibv_qp_init_attr&>(wanted));
  if (!made) return refuse(made.error());
  Qp& qp = **made;
  if (has_operations) {
    qp.builder = std::make_unique<SendBuilder>(*qp.nic, wanted.send_ops_flags);
    set_builders(qp);
  }
  return made->release()->plain();
}

// The first address of a device is always there as far as anybody is reachable; for the others the
// interface is asked.
bool has_gid(const Context& context, std::uint8_t index) {
  return index == 0 || index < context.nic->gids().size();
}

Result<void, nic::Error> modify(Qp& qp, const ibv_qp_attr& attributes, int mask) {
  const auto bits = static_cast<std::uint32_t>(mask);
  const auto wanted = attributes_from(attributes, bits);
  if (!wanted) return refuse(nic::Error::kInvalid);
  const Context& context = own(qp.plain()->context);
  if (!context.is_usable()) return refuse(nic::Error::kGone);
  if (bits & IBV_QP_AV && !has_gid(context, wanted->path.source_gid_index)) {
    return refuse(nic::Error::kInvalid);
  }
  if (const auto done = nic::modify_qp(*qp.nic, *wanted, bits); !done) return done;
  if (bits & IBV_QP_STATE) qp.plain()->state = attributes.qp_state;
  return {};
}

// How long packets are says each of them by itself.
Result<void, nic::Error> limit_rate(Qp& qp, const ibv_qp_rate_limit_attr& limit) {
  if (!own(qp.plain()->context).is_usable()) return refuse(nic::Error::kGone);
  if (limit.comp_mask != 0) return refuse(nic::Error::kInvalid);
  if (nic::config_of(*qp.nic).type != qp::QpType::kRawPacket) {
    return refuse(nic::Error::kNotSupported);
  }
  qp::QpAttributes wanted;
  wanted.rate_limit = limit.rate_limit;
  wanted.rate_burst = limit.max_burst_sz;
  return nic::modify_qp(*qp.nic, wanted, qp::kRateLimit);
}

Result<void, nic::Error> query(Qp& qp, ibv_qp_attr& attributes, ibv_qp_init_attr& initial) {
  const auto now = nic::query_qp(*qp.nic);
  if (!now) return refuse(now.error());
  const qp::QpConfig& config = nic::config_of(*qp.nic);
  const ibv_qp& face = *qp.plain();
  attributes = attributes_to(now->attributes, config);
  attributes.sq_draining = now->is_draining;
  qp.plain()->state = attributes.qp_state;
  initial = {.qp_context = face.qp_context,
             .send_cq = face.send_cq,
             .recv_cq = face.recv_cq,
             .srq = face.srq,
             .cap = attributes.cap,
             .qp_type = face.qp_type,
             .sq_sig_all = config.signal_all};
  return {};
}

void dispose(Qp* qp, bool is_inherited) {
  if (!is_inherited) destroy_locks(*qp->plain());
  delete qp;
}

}  // namespace

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* wanted) noexcept {
  return pointer_at_border([&] { return open_target(own(context), *wanted); });
}

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* wanted) noexcept {
  return pointer_at_border([&] { return create_extended(*wanted); });
}

int modify_qp_rate_limit(ibv_qp* qp, ibv_qp_rate_limit_attr* wanted) noexcept {
  return at_border([&] { return limit_rate(own(qp), *wanted); });
}

}  // namespace verbena::verbs

using namespace verbena;

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  return verbs::pointer_at_border([&]() -> Result<ibv_qp*, nic::Error> {
    auto made = verbs::create(verbs::own(pd), *wanted);
    if (!made) return refuse(made.error());
    return made->release()->plain();
  });
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  return verbs::at_border([&] { return verbs::modify(verbs::own(qp), *attributes, mask); });
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* initial) {
  return verbs::at_border([&] { return verbs::query(verbs::own(qp), *attributes, *initial); });
}

int ibv_destroy_qp(ibv_qp* qp) {
  verbs::Qp* const ours = &verbs::own(qp);
  const bool is_inherited = verbs::is_inherited(qp);
  return verbs::destroy_at_border(is_inherited, nic::destroy_qp(ours->nic, ours),
                                  [&] { verbs::dispose(ours, is_inherited); });
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  verbs::Qp& ours = verbs::own(qp);
  return ours.builder ? &ours.face : nullptr;
}

// LIDs are InfiniBand's (annex A16.3.1): it is the GID that counts.
int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t) {
  return verbs::at_border(
      [&] { return nic::attach_multicast(*verbs::own(qp).nic, verbs::gid_from(*gid)); });
}

int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t) {
  return verbs::at_border(
      [&] { return nic::detach_multicast(*verbs::own(qp).nic, verbs::gid_from(*gid)); });
}

// Only the end of a message is certain to come last: what lies before it may be copied in any
// order.
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, std::uint32_t) { return 0; }
