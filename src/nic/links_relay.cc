// SPDX-License-Identifier: MIT
// Links: the ways from an XRC target to processes whose shared receive queues its peer names. The
// target's process asks for one; the other makes a hidden target, and offers its conduit as that of
// any queue pair.
#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

#include "base/log.h"
#include "nic/engine.h"
#include "nic/links.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/target_relay.h"
#include "nic/xrc.h"

namespace verbena::nic {
namespace {

// Far more than there are targets on a host whose processes behave.
constexpr std::size_t kHiddenMost = 4096;
// One process shall not keep the others from theirs, nor the program from its queue pairs.
constexpr std::ptrdiff_t kHiddenOfPeerMost = 256;

}  // namespace

// -- the target's process ---------------------------------------------------------------------

bool Links::find_relay(QpNum target, QpNum queue) {
  return control_->submit([this, target, queue] { look_for_relay(target, queue); });
}

void Links::look_for_relay(QpNum target, QpNum queue) {
  WantedRelay wanted{.target = target, .queue = queue, .domain = {}};
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* const qp = nic_.queue_pairs().find(target);
    if (!qp || !qp->relay()) return;
    const auto* const domain = static_cast<XrcDomain*>(qp->pair.config().shared_queues);
    if (!domain->file()) return;
    wanted.domain = *domain->file();
  }
  waiting_[queue.slot()].relays.push_back(wanted);
  look_for(queue.slot());
}

void Links::ask_for_relay(const WantedRelay& wanted, Process& process) {
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* const qp = nic_.queue_pairs().find(wanted.target);
    if (!qp || !qp->relay()) return;
    const std::lock_guard guard(qp->pair.lock());
    // So that it hears when that process dies.
    qp->relay()->asked(wanted.queue.slot(), process.link);
  }
  send(process,
       {.kind = MessageKind::kWantRelay,
        .from_qp = wanted.target.value,
        .to_qp = wanted.queue.value,
        .domain = wanted.domain},
       nullptr);
}

void Links::no_relay(QpNum target, SlotNumber slot) {
  const QpTable::Reading reading(nic_.queue_pairs());
  Qp* const qp = nic_.queue_pairs().find(target);
  if (!qp || !qp->relay()) return;
  const std::lock_guard guard(qp->pair.lock());
  qp->relay()->has_nobody(slot);
  engine_.want_turn(target);
}

void Links::take_no_relay(Process& from, const Message& refusal) {
  const QpNum queue{refusal.from_qp};
  if (may_speak_for(from, queue)) no_relay(QpNum{refusal.to_qp}, queue.slot());
}

// With the queue pair's lock.
Links::Taken Links::attach_relay(Qp& target, Process& from, const Message& offered,
                                 local::Conduit conduit) {
  engine_.want_turn(target.number());
  const bool is_mapped = static_cast<bool>(conduit);
  const bool is_asked =
      target.relay()->open(from.link, std::move(conduit), QpNum{offered.from_qp}.index());
  return is_asked && is_mapped ? Taken::kYes : Taken::kNo;
}

// -- the process that has the queue -----------------------------------------------------------

void Links::take_want_relay(Process& from, const Message& wanted) {
  const QpNum target{wanted.from_qp};
  const QpNum queue{wanted.to_qp};
  const bool is_right = may_speak_for(from, target) && may_have_relay(from);
  Qp* const made =
      is_right ? create_hidden_target(nic_, wanted.domain, wanted.to_qp, target) : nullptr;
  if (!made) return refuse_relay(target, queue, from);
  hidden_targets_[made->number()] = {.relayed_by = target, .queue = queue, .peer = from.link->id()};
  offer({.qp = made->number(), .slot = target.slot()}, from);
}

bool Links::may_have_relay(const Process& process) const {
  if (hidden_targets_.size() >= kHiddenMost) return false;
  const auto is_its = [&](const auto& each) { return each.second.peer == process.link->id(); };
  return std::ranges::count_if(hidden_targets_, is_its) < kHiddenOfPeerMost;
}

void Links::refuse_relay(QpNum target, QpNum queue, Process& process) {
  send(process,
       {.kind = MessageKind::kNoRelay, .from_qp = queue.value, .to_qp = target.value, .domain = {}},
       nullptr);
}

// There is no memory to offer.
void Links::give_up_hidden(QpNum number, Process& process) {
  const auto found = hidden_targets_.find(number);
  if (found == hidden_targets_.end()) return;
  refuse_relay(found->second.relayed_by, found->second.queue, process);
  end_hidden_target(number);
}

// A task would be lost where too many wait.
void Links::end_hidden_target(QpNum target) {
  {
    const std::lock_guard guard(over_lock_);
    over_.insert(target);
  }
  static_cast<void>(control_->nudge());
}

void Links::end_hidden_that_are_over() {
  std::set<QpNum> over;
  {
    const std::lock_guard guard(over_lock_);
    over.swap(over_);
  }
  for (const QpNum each : over)
    end_hidden_now(each);
}

void Links::end_hidden_now(QpNum target) {
  if (hidden_targets_.erase(target) == 0) return;
  {
    // Its number may become another one's.
    const std::lock_guard guard(over_lock_);
    over_.erase(target);
  }
  Qp* qp = nullptr;
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    qp = nic_.queue_pairs().find(target);
  }
  // Nobody else destroys it.
  destroy_hidden_target(qp);
}

template <class Is>
void Links::end_hidden_if(Is&& is) {
  std::vector<QpNum> over;
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    for (const auto& [each, hidden] : hidden_targets_) {
      Qp* const qp = nic_.queue_pairs().find(each);
      const std::lock_guard guard(qp->pair.lock());
      if (is(*qp)) over.push_back(each);
    }
  }
  for (const QpNum each : over)
    end_hidden_now(each);
}

bool Links::leave_hidden_targets(XrcDomain& domain) {
  return control_->call([this, &domain] {
    if (domain.keep_own_handle()) return;
    end_hidden_if([&domain](Qp& qp) { return qp.pair.config().shared_queues == &domain; });
  });
}

void Links::end_hidden_targets_of(const Link& link) {
  end_hidden_if([&link](Qp& qp) { return qp.link.get() == &link; });
}

}  // namespace verbena::nic
