// SPDX-License-Identifier: MIT
// Completion queues and their channels (ibv_create_cq(3), ibv_create_cq_ex(3), ibv_modify_cq(3),
// ibv_get_cq_event(3)).
#include "verbs/abi/context.h"
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

constexpr std::uint64_t kTimestamps =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

struct CqRequest {
  std::uint32_t capacity = 0;
  ibv_comp_channel* channel = nullptr;
  void* cq_context = nullptr;
  std::int64_t vector = 0;
  nic::CqOptions options = {};
};

Result<Cq*, nic::Error> create(Context& context, const CqRequest& wanted) {
  const nic::Limits& limits = context.nic->device().limits;
  if (wanted.capacity == 0 || wanted.capacity > limits.completions || wanted.vector < 0 ||
      wanted.vector >= context.table.context.num_comp_vectors) {
    return refuse(nic::Error::kInvalid);
  }
  auto cq = std::make_unique<Cq>();
  cq->face = {};
  nic::Channel* const channel = wanted.channel ? own(wanted.channel).nic : nullptr;
  const auto made =
      nic::create_cq(*context.nic, wanted.capacity, channel, cq.get(), wanted.options);
  if (!made) return refuse(made.error());
  cq->nic = *made;
  verbs_init_cq(cq->plain(), &context.table.context, wanted.channel, wanted.cq_context);
  cq->face.handle = context.new_handle();
  cq->face.cqe = static_cast<int>(cq->nic->queue.capacity());
  hold(context);
  return cq.release();
}

Result<ibv_cq_ex*, nic::Error> create_extended(Context& context, const ibv_cq_init_attr_ex& from) {
  constexpr std::uint32_t kMasks = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  constexpr std::uint32_t kFlags =
      IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if (from.comp_mask & ~kMasks) return refuse(nic::Error::kInvalid);
  if (from.wc_flags & ~std::uint64_t{IBV_CREATE_CQ_SUP_WC_FLAGS}) {
    return refuse(nic::Error::kInvalid);
  }
  const std::uint32_t flags = from.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? from.flags : 0;
  if (flags & ~kFlags) return refuse(nic::Error::kNotSupported);
  nic::Pd* domain = nullptr;
  if (from.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) {
    if (!from.parent_domain) return refuse(nic::Error::kInvalid);
    domain = own(from.parent_domain).nic;
    if (!domain->parent) return refuse(nic::Error::kInvalid);
  }

  const nic::CqOptions options{.has_timestamps = (from.wc_flags & kTimestamps) != 0,
                               .ignores_overrun = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0};
  const auto made =
      create(context, {from.cqe, from.channel, from.cq_context, from.comp_vector, options});
  if (!made) return refuse(made.error());
  (*made)->is_single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  (*made)->parent_domain = domain;
  if (domain) domain->dependents.fetch_add(1);
  set_readers((*made)->face);
  return &(*made)->face;
}

Result<ibv_comp_channel*, nic::Error> create_channel(Context& context) {
  auto channel = std::make_unique<Channel>();
  const auto made = nic::create_channel(*context.nic);
  if (!made) return refuse(made.error());
  channel->nic = *made;
  channel->face = {.context = &context.table.context, .fd = (*made)->queue->fd(), .refcnt = 0};
  hold(context);
  return &channel.release()->face;
}

Result<void, nic::Error> resize(Cq& cq, int capacity) {
  const nic::Limits& limits = own(cq.face.context).nic->device().limits;
  if (capacity <= 0 || static_cast<std::uint32_t>(capacity) > limits.completions) {
    return refuse(nic::Error::kInvalid);
  }
  const auto done = nic::resize_cq(*cq.nic, static_cast<std::uint32_t>(capacity));
  cq.face.cqe = static_cast<int>(cq.nic->queue.capacity());
  return done;
}

void dispose(Cq* cq, bool is_inherited) {
  Context* const context = &own(cq->face.context);
  // In a child the locks may be held by threads that it does not have.
  if (!is_inherited) release_cq(*cq->plain());
  if (cq->parent_domain) cq->parent_domain->dependents.fetch_sub(1);
  delete cq;
  release(context);
}

bool is_used(ibv_comp_channel& channel) {
  pthread_mutex_lock(&channel.context->mutex);
  const bool answer = channel.refcnt != 0;
  pthread_mutex_unlock(&channel.context->mutex);
  return answer;
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* wanted) noexcept {
  return pointer_at_border([&] { return create_extended(own(context), *wanted); });
}

int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* wanted) noexcept {
  return at_border([&]() -> Result<void, nic::Error> {
    if (wanted->attr_mask & ~std::uint32_t{IBV_CQ_ATTR_MODERATE})
      return refuse(nic::Error::kInvalid);
    if (!(wanted->attr_mask & IBV_CQ_ATTR_MODERATE)) return {};
    return nic::moderate_cq(*own(cq).nic, wanted->moderate.cq_count, wanted->moderate.cq_period);
  });
}

int request_notification(ibv_cq* cq, int solicited_only) noexcept {
  if (is_inherited(cq)) return EIO;
  own(cq).nic->arm(solicited_only ? queues::Arm::kSolicited : queues::Arm::kNext);
  return 0;
}

}  // namespace verbena::verbs

using namespace verbena;

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector) {
  const auto capacity = static_cast<std::uint32_t>(cqe < 0 ? 0 : cqe);
  verbs::Cq* const cq = verbs::pointer_at_border([&] {
    return verbs::create(verbs::own(context), {capacity, channel, cq_context, comp_vector});
  });
  return cq ? cq->plain() : nullptr;
}

int ibv_resize_cq(ibv_cq* cq, int cqe) {
  return verbs::at_border([&] { return verbs::resize(verbs::own(cq), cqe); });
}

int ibv_destroy_cq(ibv_cq* cq) {
  verbs::Cq* const ours = &verbs::own(cq);
  const bool is_inherited = verbs::is_inherited(cq);
  return verbs::destroy_at_border(is_inherited, nic::destroy_cq(ours->nic),
                                  [&] { verbs::dispose(ours, is_inherited); });
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  return verbs::pointer_at_border([&] { return verbs::create_channel(verbs::own(context)); });
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  verbs::Channel* const ours = &verbs::own(channel);
  verbs::Context* const context = &verbs::own(channel->context);
  const bool is_inherited = verbs::is_inherited(channel);
  if (!is_inherited && verbs::is_used(*channel)) return EBUSY;
  return verbs::destroy_at_border(is_inherited, nic::destroy_channel(ours->nic), [&] {
    delete ours;
    verbs::release(context);
  });
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  return verbs::minus_one_at_border([&]() -> Result<void, nic::Error> {
    const auto event = nic::next_completion_event(*verbs::own(channel).nic);
    if (!event) return refuse(event.error());
    auto* const ours = static_cast<verbs::Cq*>((*event)->cookie);
    *cq = ours->plain();
    *cq_context = ours->face.cq_context;
    return {};
  });
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  if (verbs::is_inherited(cq)) return;
  verbs::note_acknowledged(*cq, cq->comp_events_completed, count);
  // From here on whoever destroys it may go on.
  verbs::own(cq).nic->completion_events.acknowledged(count);
}
