// SPDX-License-Identifier: MIT
// Completion channels, completion queues, shared receive queues.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/fence.h"
#include "base/log.h"
#include "memory/access_sections.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/objects.h"
#include "nic/xrc.h"

namespace verbena::nic {
namespace {

// Adapters give a few completions more than are asked for, and programs have come to need that:
// perftest asks for one where an acknowledgement that comes after its answer makes it two.
constexpr std::uint32_t kPlacesMin = 16;

std::uint64_t nanoseconds_now() { return static_cast<std::uint64_t>(clock_now().nanoseconds()); }

// What was asked for fits the limits of the NIC, which are a power of two and more than kPlacesMin.
std::uint32_t places_for(std::uint32_t capacity) {
  return std::bit_ceil(std::max(capacity, kPlacesMin));
}

}  // namespace

Result<Channel*, Error> create_channel(Context& context) {
  if (!context.is_usable()) return refuse(Error::kGone);
  auto queue = EventQueue<Cq*>::create();
  if (!queue) return refuse(queue.error());
  auto* channel = new Channel;
  channel->context = &context;
  channel->queue = std::move(*queue);
  context.count_objects(1);
  return channel;
}

Result<void, Error> destroy_channel(Channel* channel) {
  if (channel->dependents.load() != 0) return refuse(Error::kBusy);
  channel->context->count_objects(-1);
  delete channel;
  return {};
}

Result<Cq*, Error> next_completion_event(Channel& channel) {
  if (!channel.context->is_usable()) return refuse(Error::kGone);
  return channel.queue->take([](Cq* cq) { cq->completion_events.delivered(); });
}

Cq::Cq(Context& owner, std::uint32_t capacity, Channel* events, void* border_cookie,
       const queues::CompletionQueue::Extras& extras)
    : context(&owner),
      channel(events),
      cookie(border_cookie),
      queue(capacity, this, events ? queues::Pushers::kAny : queues::Pushers::kOneAtATime, extras),
      pushes_are_locked_(events != nullptr) {}

int Cq::poll(std::span<queues::Completion> out) {
  queues::Completion* to = out.data();
  return poll(out.size(), [&to](const queues::Completion& completion) { *to++ = completion; });
}

bool Cq::drive() {
  if (!context->is_usable()) return false;
  if (Engine* engine = context->nic().engine()) engine->drive();
  return true;
}

// The second queue pair here: two may push at a time from now on.
void Cq::begin_pushing() {
  if (pushers_.fetch_add(1) != 0) lock_pushes();
}

// Pushes are made with the lock of a queue pair held. Those that have begun end with that.
void Cq::lock_pushes() {
  if (pushes_are_locked_.load(std::memory_order_acquire)) return;
  queue.expect_many_pushers();
  full_fence();
  QpTable& table = context->nic().queue_pairs();
  const QpTable::Reading reading(table);
  table.each([](Qp& qp) { memory::wait_until_over(SectionLock::Watch(qp.pair.lock())); });
  pushes_are_locked_.store(true, std::memory_order_release);
}

void Cq::arm(queues::Arm what) {
  queue.arm(what);
  if (Engine* const engine = context->nic().engine()) engine->expect_no_polls();
}

void Cq::completion_event(queues::CompletionQueue&) {
  if (channel) channel->queue->push(this);
}

// Completions are pushed by queue pairs, and these need the engine.
void Cq::moderation_began(queues::CompletionQueue&) {
  if (Engine* const engine = context->nic().engine()) engine->note_moderation(*this);
}

void Cq::overrun_event(queues::CompletionQueue& full) {
  LOG_ERROR("a completion queue of %u overran: its queue pairs fail", full.capacity());
  context->async_events().push({AsyncKind::kCqError, cookie, &async_events});
}

Result<Cq*, Error> create_cq(Context& context, std::uint32_t capacity, Channel* channel,
                             void* cookie, const CqOptions& options) {
  if (!context.is_usable()) return refuse(Error::kGone);
  Nic& nic = context.nic();
  if (capacity == 0 || capacity > nic.limits().completions) return refuse(Error::kInvalid);
  Share share(nic.counts().completion_queues, nic.limits().completion_queues);
  if (!share) return refuse(Error::kNoRoom);
  auto* cq = new Cq(context, places_for(capacity), channel, cookie,
                    {.clock = options.has_timestamps ? nanoseconds_now : nullptr,
                     .ignores_overrun = options.ignores_overrun});
  share.keep();
  if (channel) channel->dependents.fetch_add(1);
  context.count_objects(1);
  return cq;
}

Result<void, Error> resize_cq(Cq& cq, std::uint32_t capacity) {
  if (!cq.context->is_usable()) return refuse(Error::kGone);
  if (capacity == 0 || capacity > cq.context->nic().limits().completions)
    return refuse(Error::kInvalid);
  cq.lock_pushes();
  // What waits must fit into what is asked for, though there are more places (11.2.9.3).
  const bool fits = cq.queue.resize(capacity) && cq.queue.resize(places_for(capacity));
  if (!fits) return refuse(Error::kInvalid);
  return {};
}

Result<void, Error> moderate_cq(Cq& cq, std::uint16_t count, std::uint16_t period) {
  if (!cq.context->is_usable()) return refuse(Error::kGone);
  cq.set_moderation_period(period);
  cq.queue.moderate(period == 0 ? 0 : count);
  return {};
}

namespace {

// What the program has not fetched is taken back, what it has fetched must be acknowledged.
void settle_async_events(Context& context, EventCount& count) {
  context.async_events().withdraw([&](const AsyncEvent& event) { return event.count == &count; });
  count.wait_until_acknowledged();
}

}  // namespace

Result<void, Error> destroy_cq(Cq* cq) {
  Context& context = *cq->context;
  if (cq->dependents.load() != 0) return refuse(Error::kBusy);
  if (context.is_usable()) {
    if (Engine* const engine = context.nic().engine()) engine->forget_moderation(*cq);
    if (cq->channel) {
      cq->channel->queue->withdraw([cq](Cq* waiting) { return waiting == cq; });
      cq->completion_events.wait_until_acknowledged();
    }
    settle_async_events(context, cq->async_events);
    context.nic().counts().completion_queues.fetch_sub(1);
  }
  if (cq->channel) cq->channel->dependents.fetch_sub(1);
  context.count_objects(-1);
  delete cq;
  return {};
}

Srq::Srq(Pd& domain, std::uint32_t depth, std::uint32_t sge_max, void* border_cookie)
    : pd(&domain), cookie(border_cookie), queue(depth, sge_max, this) {}

void Srq::limit_reached() {
  pd->context->async_events().push({AsyncKind::kSrqLimitReached, cookie, &async_events});
}

Result<Srq*, Error> create_srq(Pd& pd, std::uint32_t depth, std::uint32_t sge_max, void* cookie) {
  if (!pd.context->is_usable()) return refuse(Error::kGone);
  Nic& nic = pd.context->nic();
  const Limits& limits = nic.limits();
  if (depth == 0 || depth > limits.work_requests || sge_max > limits.sges) {
    return refuse(Error::kInvalid);
  }
  Share share(nic.counts().shared_receive_queues, limits.shared_receive_queues);
  if (!share) return refuse(Error::kNoRoom);
  auto* srq = new Srq(pd, depth, sge_max, cookie);
  share.keep();
  pd.dependents.fetch_add(1);
  return srq;
}

Result<void, Error> match_tags(Srq& srq, Cq& cq, std::uint32_t tags_max) {
  if (!srq.pd->context->is_usable()) return refuse(Error::kGone);
  const bool is_possible = tags_max > 0 && tags_max <= qp::kTagsMax;
  if (!is_possible || cq.context != srq.pd->context) return refuse(Error::kInvalid);
  srq.tags = std::make_unique<qp::TagMatcher>(tags_max, cq.queue);
  srq.cq = &cq;
  cq.dependents.fetch_add(1);
  cq.begin_pushing();
  cq.lock_pushes();  // the program pushes as well as queue pairs
  return {};
}

Result<void, Error> destroy_srq(Srq* srq) {
  Context& context = *srq->pd->context;
  if (srq->dependents.load() != 0) return refuse(Error::kBusy);
  if (srq->xrcd) leave_domain(*srq);
  if (srq->tags) {
    if (context.is_usable()) srq->cq->end_pushing();
    srq->cq->dependents.fetch_sub(1);
  }
  if (context.is_usable()) {
    settle_async_events(context, srq->async_events);
    context.nic().counts().shared_receive_queues.fetch_sub(1);
  }
  srq->pd->dependents.fetch_sub(1);
  delete srq;
  return {};
}

}  // namespace verbena::nic
