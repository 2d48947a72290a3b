// SPDX-License-Identifier: MIT
// A queue pair whose carrier is RoCEv2 on the wire.
#include "base/assert.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/wire_qp.h"

namespace verbena::nic {
namespace {

// As in verbs: 1 is 256 bytes, 5 is 4096.
std::uint32_t bytes_of_mtu(std::uint8_t code) { return 128U << code; }

// Of packets: what may be on its way leaves in one turn, mostly. The NIC thread would have to be
// woken for the rest.
constexpr qp::Budget kBudgetOfTurn{.bytes = 512 * 1024, .operations = 512};

}  // namespace

void Qp::begin_on_wire(WireNic& wire, const WireUse& use) {
  end_connection();
  Context& context = *pd_->context;
  const qp::QpAttributes& attributes = pair.attributes();
  const bool is_datagram = pair.config().type == qp::QpType::kUd;
  roce::Settings settings{
      .type = pair.config().type, .is_xrc = pair.config().xrc != qp::Xrc::kNo, .self = number()};
  if (is_datagram) {
    settings.path_mtu = bytes_of_mtu(context.device().active_mtu);
  } else {
    const std::vector<Gid> gids = context.gids();
    const std::size_t index = attributes.path.source_gid_index;
    settings.peer = attributes.destination;
    settings.path_mtu = bytes_of_mtu(attributes.path_mtu);
    settings.path = {.source = index < gids.size() ? gids[index] : Gid{},
                     .destination = attributes.path.destination,
                     .interface = context.device().interface_index,
                     .traffic_class = attributes.path.traffic_class,
                     .hop_limit = attributes.path.hop_limit};
    settings.reads_in_max = attributes.reads_in_max;
    settings.receive_psn = attributes.receive_psn;
    settings.asks_for_agreement = settings.type == qp::QpType::kRc && use.asks;
  }
  wire_ = std::make_unique<WireQp>(wire, context.nic().address_handles(),
                                   WireQp::Options{.settings = settings,
                                                   .interface = context.device().interface_index,
                                                   .is_on_this_host = use.is_local,
                                                   .all_by_wire = use.is_for_all});
}

bool Qp::turn_on_wire(const Now& now) {
  collect_on_wire(now);
  wire_->owe();
  return send_on_wire(now);
}

bool Qp::turn_without_answers(const Now& now) {
  collect_on_wire(now);
  const bool more = issue_on_wire(now);
  finish_on_wire(now);
  wire_->owe();
  return more && !wire_->is_stuck();
}

bool Qp::wants_turn_on_wire() const {
  return pair.window().has_unissued() || wire_->is_stuck() || pair.state() == qp::QpState::kError ||
         pair.config().xrc != qp::Xrc::kNo || wire_->engine().wants_to_send() ||
         wire_->has_sooner_deadline();
}

bool Qp::owes_on_wire() const { return wire_ && wire_->owes(); }

void Qp::answer_what_is_owed() {
  if (owes_on_wire()) static_cast<void>(send_on_wire(Now(clock_now)));
}

// What was posted goes first: answers are short, and end its train.
bool Qp::send_on_wire(const Now& now) {
  bool more = issue_on_wire(now);
  if (wire_->owes()) {
    wire_->answered();
    qp::Budget answers;
    more |= wire_->engine().serve(pair.responder(), answers, now);
  }
  finish_on_wire(now);
  return more && !wire_->is_stuck();
}

// What was just written, and what the peer waits for.
void Qp::depart_with_answers(const Now& now) {
  if (wire_->owes()) {
    wire_->answered();
    qp::Budget answers;
    const bool owes = wire_->engine().owes();
    if (owes && wire_->engine().serve(pair.responder(), answers, now)) wire_->owe();
  }
  wire_->flush(now);
}

void Qp::collect_on_wire(const Now& now) {
  wire_->begin(now);
  qp::Budget answers;
  wire_->engine().collect(pair.window(), answers, now);
}

bool Qp::issue_on_wire(const Now& now) {
  qp::Budget budget = kBudgetOfTurn;
  wire_->issue(pair.window(), budget, datagrams_.get(), now);
  return budget.spent();
}

void Qp::finish_on_wire(const Now& now) {
  wire_->flush(now);
  settle_grant();
  if (pair.config().xrc == qp::Xrc::kTarget) settle_relay();
  engine_->note_deadline(*this, now);
}

}  // namespace verbena::nic
