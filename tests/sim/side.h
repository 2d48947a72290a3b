// SPDX-License-Identifier: MIT
// One end of a connection: a queue pair with the truth about it, its carrier, the NIC that drives
// them and the program that uses them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "endpoint.h"
#include "qp/queue_pair.h"
#include "receive_ledger.h"
#include "send_ledger.h"
#include "sim_carrier.h"
#include "workload.h"

namespace verbena::sim {

class World;

class Side final : public qp::QpEvents {
 public:
  Side(World& world, Endpoint& home, Endpoint& away, QpNum number);

  void connect(Side& peer) { peer_ = &peer; }
  // A life begins in RESET and ends in ERR.
  void begin_life();
  void end_life();
  void to_reset();

  void program();  // something that a program does now
  void drive();    // the NIC does what there is to do
  bool is_finished() const;
  // After every call into the queue pair: did it stop?
  void observe();
  void completed(const queues::Completion& completion);
  // The next stop of the queue pair is not its own work request's fault.
  void expect_stop() { has_reason_ = true; }
  void expect_event(qp::QpEvent event) { expected_events_.push_back(event); }
  void qp_event(QpNum, qp::QpEvent event) override;
  void note_request();  // a request is served now
  void die();

  World& world() { return world_; }
  Endpoint& home() { return home_; }
  Side& peer() { return *peer_; }
  QpNum number() const { return number_; }
  qp::QueuePair& qp() { return *qp_; }
  SimCarrier& carrier() { return *carrier_; }
  SendLedger& sends() { return *sends_; }
  ReceiveLedger& receives() { return *receives_; }
  bool is_reliable() const;
  bool is_dead() const { return home_.is_dead; }
  std::uint32_t access() const { return access_; }
  std::uint32_t posted() const { return posted_; }

 private:
  void modify(qp::QpState to, std::uint32_t mask, bool must_succeed = true);
  void move_to_rts();
  void post_sends();
  void post_receives();
  void change_state();
  void make_mischief();
  void schedule_wake(bool soon);
  void check_events();
  void observe_overrun();

  World& world_;
  Endpoint& home_;
  QpNum number_;
  Side* peer_ = nullptr;
  Workload workload_;
  std::unique_ptr<qp::QueuePair> qp_;
  std::unique_ptr<SimCarrier> carrier_;
  std::unique_ptr<SendLedger> sends_;
  PostedReceives own_posted_;
  std::unique_ptr<ReceiveLedger> receives_;

  std::uint32_t access_ = 0;
  std::uint32_t posted_ = 0;  // sends of this life
  std::uint64_t next_id_ = 1;
  qp::QpState seen_ = qp::QpState::kReset;
  bool has_reason_ = false;
  bool notify_drained_ = false;
  bool is_drained_told_ = false;
  Instant paused_until_;
  std::optional<Instant> wake_;
  std::vector<qp::QpEvent> events_;
  std::vector<qp::QpEvent> expected_events_;
};

}  // namespace verbena::sim
