// SPDX-License-Identifier: MIT
#include "nic/xrc.h"

#include <mutex>

#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"

namespace verbena::nic {

Xrcd::Xrcd(Context& context, XrcDomain& of) : domain(&of), cq(context, 1, nullptr, nullptr) {
  pd.context = &context;
  pd.id = context.nic().new_domain();
}

Result<Xrcd*, Error> open_xrcd(Context& context, const XrcOpen& how) {
  if (!context.is_usable()) return refuse(Error::kGone);
  Nic& nic = context.nic();
  Share share(nic.counts().domains, nic.limits().domains);
  if (!share) return refuse(Error::kNoRoom);
  host::Control* control = nullptr;
  if (how.file) {
    const auto engine = nic.start_engine();
    if (!engine) return refuse(engine.error());
    control = &(*engine)->control();
  }
  const auto domain = nic.xrc_domains().open(how, control);
  if (!domain) return refuse(domain.error());
  auto* const xrcd = new Xrcd(context, **domain);
  xrcd->domain->add(*xrcd);
  share.keep();
  context.count_objects(1);
  return xrcd;
}

Result<void, Error> close_xrcd(Xrcd* xrcd) {
  Context& context = *xrcd->pd.context;
  if (xrcd->pd.dependents.load() != 0) return refuse(Error::kBusy);
  if (context.is_usable()) {
    Engine* const engine = context.nic().engine();
    XrcDomain& domain = *xrcd->domain;
    domain.remove(*xrcd);
    // Without a queue by this handle, none is made by its context.
    if (domain.has_own_handle() && !engine->links().leave_hidden_targets(domain)) {
      domain.add(*xrcd);
      return refuse(Error::kBusy);
    }
    context.nic().xrc_domains().close(domain, engine ? &engine->control() : nullptr);
    context.nic().counts().domains.fetch_sub(1);
  }
  context.count_objects(-1);
  delete xrcd;
  return {};
}

// -- shared receive queues ----------------------------------------------------------------------

Result<void, Error> join_domain(Srq& srq, Xrcd& xrcd, Cq& cq) {
  Context& context = *srq.pd->context;
  if (!context.is_usable()) return refuse(Error::kGone);
  if (xrcd.pd.context != &context || cq.context != &context) return refuse(Error::kInvalid);
  auto engine = context.nic().start_engine();
  if (!engine) return refuse(engine.error());
  // Numbers are those of queue pairs: they name their process.
  const auto number = (*engine)->reserve_number();
  if (!number) return refuse(number.error());
  srq.number = *number;
  srq.xrcd = &xrcd;
  srq.cq = &cq;
  xrcd.pd.dependents.fetch_add(1);
  cq.dependents.fetch_add(1);
  cq.begin_pushing();
  cq.lock_pushes();  // any number of targets push
  xrcd.domain->add(srq);
  return {};
}

void leave_domain(Srq& srq) {
  Context& context = *srq.pd->context;
  if (context.is_usable()) {
    Nic& nic = context.nic();
    srq.xrcd->domain->remove(srq);
    {
      const QpTable::Reading reading(nic.queue_pairs());
      nic.queue_pairs().each([&](Qp& qp) {
        if (qp.pair.config().shared_queues != srq.xrcd->domain) return;
        const std::lock_guard guard(qp.pair.lock());
        qp.pair.responder().forget_queue(srq.queue);
      });
    }
    nic.queue_pairs().release(srq.number);
    srq.cq->end_pushing();
  }
  srq.cq->dependents.fetch_sub(1);
  srq.xrcd->pd.dependents.fetch_sub(1);
  srq.xrcd = nullptr;
}

// -- targets ------------------------------------------------------------------------------------

Result<Qp*, Error> create_target(Xrcd& xrcd, void* cookie) {
  QpRequest request;
  request.xrc = qp::Xrc::kTarget;
  request.shared_queues = xrcd.domain;
  request.send_cq = request.receive_cq = &xrcd.cq;
  request.send_depth = request.send_sge_max = 0;
  request.receive_depth = request.receive_sge_max = 0;
  request.cookie = cookie;
  auto made = create_qp(xrcd.pd, request);
  if (!made) return made;
  xrcd.pd.dependents.fetch_add(1);
  xrcd.domain->add(**made, {cookie, &xrcd});
  return made;
}

Result<Qp*, Error> open_target(Xrcd& xrcd, QpNum number, void* cookie) {
  if (!xrcd.pd.context->is_usable()) return refuse(Error::kGone);
  Qp* const qp = xrcd.domain->open(number, {cookie, &xrcd});
  if (!qp)
    return refuse(xrcd.domain->is_elsewhere(number.value) ? Error::kNotSupported : Error::kInvalid);
  xrcd.pd.dependents.fetch_add(1);
  return qp;
}

bool close_target(Qp& target, void* cookie) {
  auto& domain = static_cast<XrcDomain&>(*target.pair.config().shared_queues);
  const XrcDomain::Left left = domain.leave(target.number(), cookie);
  if (left.xrcd) left.xrcd->pd.dependents.fetch_sub(1);
  if (!left.next_cookie) return true;
  {
    const std::lock_guard guard(target.pair.lock());
    if (target.cookie() == cookie) target.set_cookie(*left.next_cookie);
  }
  target.pd().context->async_events().withdraw(
      [cookie](const AsyncEvent& event) { return event.cookie == cookie; });
  return false;
}

}  // namespace verbena::nic
