// SPDX-License-Identifier: MIT
#include "verbs/abi/context.h"

#include <cerrno>

namespace verbena::verbs {
namespace {

// A channel may not be destroyed while a CQ uses it: `refcnt`, under the context's lock, says so.
void change_uses(ibv_context& context, ibv_comp_channel& channel, int by) {
  pthread_mutex_lock(&context.mutex);
  channel.refcnt += by;
  pthread_mutex_unlock(&context.mutex);
}

int refuse_poll_cq(ibv_cq*, int, ibv_wc*) {
  errno = EOPNOTSUPP;
  return -1;
}

int refuse_req_notify_cq(ibv_cq*, int) { return EOPNOTSUPP; }

template <class Object, class Request>
int refuse_post(Object*, Request* first, Request** bad) {
  if (bad) *bad = first;
  return EOPNOTSUPP;
}

ibv_mw* refuse_alloc_mw(ibv_pd*, ibv_mw_type) {
  errno = EOPNOTSUPP;
  return nullptr;
}

int refuse_bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; }

int refuse_dealloc_mw(ibv_mw*) { return EOPNOTSUPP; }

// ibv_close_xrcd does not look whether there is one.
int refuse_close_xrcd(ibv_xrcd*) { return EOPNOTSUPP; }

}  // namespace

void init_context(verbs_context& context, ibv_device& device) {
  context = {};
  context.sz = sizeof(verbs_context);
  context.close_xrcd = refuse_close_xrcd;

  ibv_context& inner = context.context;
  inner.device = &device;
  inner.cmd_fd = -1;
  inner.async_fd = -1;
  inner.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&inner.mutex, nullptr);

  // Programs of the first days call these two through the table.
  inner.ops._compat_query_device = ibv_query_device;
  inner.ops._compat_query_port = ibv_query_port;
  inner.ops.poll_cq = refuse_poll_cq;
  inner.ops.req_notify_cq = refuse_req_notify_cq;
  inner.ops.post_send = refuse_post<ibv_qp, ibv_send_wr>;
  inner.ops.post_recv = refuse_post<ibv_qp, ibv_recv_wr>;
  inner.ops.post_srq_recv = refuse_post<ibv_srq, ibv_recv_wr>;
  inner.ops.alloc_mw = refuse_alloc_mw;
  inner.ops.bind_mw = refuse_bind_mw;
  inner.ops.dealloc_mw = refuse_dealloc_mw;
}

void destroy_context(verbs_context& context) { pthread_mutex_destroy(&context.context.mutex); }

void release_cq(ibv_cq& cq) {
  if (cq.channel) change_uses(*cq.context, *cq.channel, -1);
  pthread_cond_destroy(&cq.cond);
  pthread_mutex_destroy(&cq.mutex);
}

}  // namespace verbena::verbs

void verbs_init_cq(ibv_cq* cq, ibv_context* context, ibv_comp_channel* channel, void* cq_context) {
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->comp_events_completed = 0;
  cq->async_events_completed = 0;
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  if (channel) verbena::verbs::change_uses(*context, *channel, +1);
}
