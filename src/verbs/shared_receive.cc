// SPDX-License-Identifier: MIT
// Shared receive queues (ibv_create_srq(3), ibv_create_srq_ex(3), ibv_modify_srq(3)); those that
// match tags (ibv_post_srq_ops(3)).
#include "nic/xrc.h"
#include "verbs/border.h"
#include "verbs/objects.h"
#include "verbs/post.h"

namespace verbena::verbs {
namespace {

// Of an XRC domain: `xrcd` and `cq`. With tags: these and `cq`.
struct Extended {
  ibv_xrcd* xrcd = nullptr;
  ibv_cq* cq = nullptr;
  std::uint32_t tags_max = 0;
};

Result<void, nic::Error> extend(nic::Srq& srq, const Extended& extended) {
  if (extended.xrcd) return nic::join_domain(srq, *own(extended.xrcd).nic, *own(extended.cq).nic);
  if (extended.tags_max != 0) return nic::match_tags(srq, *own(extended.cq).nic, extended.tags_max);
  return {};
}

Result<ibv_srq*, nic::Error> create(Pd& pd, void* srq_context, ibv_srq_attr& attributes,
                                    const Extended& extended = {}) {
  const nic::Limits& limits = own(pd.face.context).nic->device().limits;
  if (attributes.max_wr == 0 || attributes.max_wr > limits.work_requests ||
      attributes.max_sge > limits.sges) {
    return refuse(nic::Error::kInvalid);
  }
  auto srq = std::make_unique<Srq>();
  srq->face = {};
  const auto made = nic::create_srq(*pd.nic, attributes.max_wr, attributes.max_sge, srq.get());
  if (!made) return refuse(made.error());
  if (const auto extends = extend(**made, extended); !extends) {
    static_cast<void>(nic::destroy_srq(*made));
    return refuse(extends.error());
  }
  srq->nic = *made;
  srq->face.context = pd.face.context;
  srq->face.srq_context = srq_context;
  srq->face.pd = &pd.face;
  srq->face.handle = own(pd.face.context).new_handle();
  init_locks(srq->face);
  attributes.max_wr = srq->nic->queue.depth();
  attributes.max_sge = srq->nic->queue.sge_max();
  return &srq.release()->face;
}

// Of the domain of an XRC queue nobody sends by tags: IBV_TM_CAP_RC is all we tell of.
Result<ibv_srq*, nic::Error> create_tag_matching(ibv_srq_init_attr_ex& wanted) {
  constexpr std::uint32_t kNeeded = IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
  const std::uint32_t mask = wanted.comp_mask;
  if ((mask & kNeeded) != kNeeded || mask & IBV_SRQ_INIT_ATTR_XRCD || !wanted.cq)
    return refuse(nic::Error::kInvalid);
  const ibv_tm_cap& tags = wanted.tm_cap;
  if (tags.max_num_tags == 0 || tags.max_num_tags > qp::kTagsMax ||
      tags.max_ops > qp::kTagOperationsMax)
    return refuse(nic::Error::kInvalid);
  return create(own(wanted.pd), wanted.srq_context, wanted.attr,
                {.cq = wanted.cq, .tags_max = tags.max_num_tags});
}

Result<ibv_srq*, nic::Error> create_extended(ibv_srq_init_attr_ex& wanted) {
  constexpr std::uint32_t kMasks = IBV_SRQ_INIT_ATTR_RESERVED - 1;
  const std::uint32_t mask = wanted.comp_mask;
  if (mask & ~kMasks || !(mask & IBV_SRQ_INIT_ATTR_PD)) return refuse(nic::Error::kInvalid);
  const ibv_srq_type type = mask & IBV_SRQ_INIT_ATTR_TYPE ? wanted.srq_type : IBV_SRQT_BASIC;
  if (type == IBV_SRQT_XRC) {
    constexpr std::uint32_t kNeeded = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    if ((mask & kNeeded) != kNeeded || !wanted.xrcd || !wanted.cq)
      return refuse(nic::Error::kInvalid);
    return create(own(wanted.pd), wanted.srq_context, wanted.attr,
                  {.xrcd = wanted.xrcd, .cq = wanted.cq});
  }
  if (type == IBV_SRQT_TM) return create_tag_matching(wanted);
  if (type != IBV_SRQT_BASIC) return refuse(nic::Error::kNotSupported);
  return create(own(wanted.pd), wanted.srq_context, wanted.attr);
}

Result<void, nic::Error> modify(Srq& srq, const ibv_srq_attr& attributes, int mask) {
  constexpr int kMasks = IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT;
  if (is_inherited(&srq.face)) return refuse(nic::Error::kGone);
  if (mask & ~kMasks) return refuse(nic::Error::kInvalid);
  queues::ReceiveQueue& queue = srq.nic->queue;
  if (mask & IBV_SRQ_MAX_WR) {
    const nic::Limits& limits = own(srq.face.context).nic->device().limits;
    if (attributes.max_wr == 0 || attributes.max_wr > limits.work_requests) {
      return refuse(nic::Error::kInvalid);
    }
    if (!queue.resize(attributes.max_wr)) return refuse(nic::Error::kInvalid);
  }
  if (mask & IBV_SRQ_LIMIT && !queue.set_limit(attributes.srq_limit)) {
    return refuse(nic::Error::kInvalid);
  }
  return {};
}

// An errno.
int add_tag(qp::TagMatcher& tags, const qp::TagRequest& request, ibv_ops_wr& wanted) {
  const auto& from = wanted.tm.add;
  if (from.num_sge < 0) return EINVAL;
  const qp::TagEntry entry{.wr_id = from.recv_wr_id,
                           .tag = from.tag,
                           .mask = from.mask,
                           .sges = sges_from(from.sg_list, static_cast<std::size_t>(from.num_sge))};
  const auto added = tags.add(request, entry);
  if (!added) return added.error() == qp::TagMatcher::AddError::kFull ? ENOMEM : EINVAL;
  wanted.tm.handle = added->value;
  return 0;
}

VERBENA_ANY_VALUE int change_tags(qp::TagMatcher& tags, ibv_ops_wr& wanted) {
  constexpr int kFlags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
  if (wanted.flags & ~kFlags) return EINVAL;
  qp::TagRequest request{.wr_id = wanted.wr_id,
                         .is_signaled = (wanted.flags & IBV_OPS_SIGNALED) != 0};
  if (wanted.flags & IBV_OPS_TM_SYNC) request.unexpected_seen = wanted.tm.unexpected_cnt;
  switch (wanted.opcode) {
    case IBV_WR_TAG_ADD: return add_tag(tags, request, wanted);
    case IBV_WR_TAG_DEL: tags.remove(request, {wanted.tm.handle}); return 0;
    case IBV_WR_TAG_SYNC: tags.synchronize(request); return 0;
  }
  return EINVAL;
}

void dispose(Srq* srq, bool is_inherited) {
  if (!is_inherited) destroy_locks(srq->face);
  delete srq;
}

}  // namespace

ibv_srq* create_srq_ex(ibv_context*, ibv_srq_init_attr_ex* wanted) noexcept {
  return pointer_at_border([&] { return create_extended(*wanted); });
}

int post_srq_ops(ibv_srq* srq, ibv_ops_wr* first, ibv_ops_wr** bad) noexcept {
  qp::TagMatcher* const tags = is_inherited(srq) ? nullptr : own(srq).nic->tags.get();
  for (ibv_ops_wr* next = first; next; next = next->next) {
    const int error = tags ? change_tags(*tags, *next) : is_inherited(srq) ? EIO : EINVAL;
    if (!error) continue;
    if (bad) *bad = next;
    return error;
  }
  return 0;
}

int get_srq_number(ibv_srq* srq, std::uint32_t* number) noexcept {
  if (is_inherited(srq)) return EIO;
  if (!own(srq).nic->xrcd) return EOPNOTSUPP;  // only those of XRC have one
  *number = own(srq).nic->number.value;
  return 0;
}

}  // namespace verbena::verbs

using namespace verbena;

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted) {
  return verbs::pointer_at_border(
      [&] { return verbs::create(verbs::own(pd), wanted->srq_context, wanted->attr); });
}

int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) {
  return verbs::at_border([&] { return verbs::modify(verbs::own(srq), *attributes, mask); });
}

int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attributes) {
  if (verbs::is_inherited(srq)) return EIO;
  const queues::ReceiveQueue& queue = verbs::own(srq).nic->queue;
  *attributes = {.max_wr = queue.depth(), .max_sge = queue.sge_max(), .srq_limit = queue.limit()};
  return 0;
}

int ibv_destroy_srq(ibv_srq* srq) {
  verbs::Srq* const ours = &verbs::own(srq);
  const bool is_inherited = verbs::is_inherited(srq);
  return verbs::destroy_at_border(is_inherited, nic::destroy_srq(ours->nic),
                                  [&] { verbs::dispose(ours, is_inherited); });
}
