// SPDX-License-Identifier: MIT
// A queue pair of a node with its engine, and the two flows of its program: what it sends, and what
// comes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "node.h"
#include "qp/queue_pair.h"
#include "roce/congestion.h"
#include "roce/engine.h"

namespace verbena::fabric {

class Flow;

inline constexpr std::uint32_t kQkey = 0x11223344;
inline constexpr std::uint32_t kInlineMax = 64;

// What its maker decides.
struct PairOptions {
  qp::QpType type = qp::QpType::kRc;
  qp::Xrc xrc = qp::Xrc::kNo;
  QpNum number{};
  QpNum peer{};
  unsigned peer_node = 0;
  std::uint32_t send_psn = 0;
  std::uint32_t receive_psn = 0;
  bool asks = false;
  bool agreed = false;
};

class Pair final : public qp::QpEvents, public roce::Wire, public roce::Paths {
 public:
  Pair(World& world, Node& home, const PairOptions& options);

  // `packet`: what is in the datagram.
  // False: nothing has happened.
  bool receive_run(wire::Unverified& packet, const Gid& from);
  void receive(std::span<const std::byte> datagram, const wire::Packet& packet,
               const roce::Arrival& arrival);
  // The NIC does what there is to do.
  void drive();
  void completed(const queues::Completion& completion);
  // As NICs do, at once where that can be; every third in the general way.
  bool post(const qp::SendRequest& request) {
    const bool may_be = request.wr_id % 3 != 0 && !is_lost_ && !home_.is_paused();
    return (may_be && post_at_once(request)) || pair_.post_send(request).has_value();
  }
  std::optional<ReceiveSlot> room_for_receive(Node::Carve from = Node::Carve::kPlain);
  // Receive queues: its own, a shared one, or for XRC those of its node.
  unsigned queues() const;
  Receives& receives_of(unsigned queue);
  void post_receive(unsigned queue, const ReceiveSlot& slot);
  // Nobody knows what became of those that have not completed.
  void settle_receives();
  // Flushes what is left.
  void stop();
  void lost() { is_lost_ = true; }
  // The next packet is told to the connection manager.
  void tell_first_packet() { tells_packet_ = true; }

  void join(Flow& outgoing, Flow& incoming) {
    outgoing_ = &outgoing;
    incoming_ = &incoming;
  }
  Node& home() { return home_; }
  bool has_shared_receives() const { return shares_; }
  bool is_extended() const { return options_.xrc != qp::Xrc::kNo; }
  bool sends_requests() const { return options_.xrc != qp::Xrc::kTarget; }
  const PairOptions& options() const { return options_; }
  QpNum number() const { return options_.number; }
  bool is_lost() const { return is_lost_; }  // with its node
  bool is_stopped() const { return pair_.state() == qp::QpState::kError; }
  bool can_send() const { return pair_.state() == qp::QpState::kReadyToSend; }
  bool is_alive() const { return !is_lost_ && !is_stopped(); }
  bool was_told_to_stop() const { return told_to_stop_; }
  bool is_reliable() const { return options_.type == qp::QpType::kRc; }
  bool is_datagram() const { return options_.type == qp::QpType::kUd; }
  bool has_room() { return pair_.send_queue().room() != nullptr; }
  bool has_event(qp::QpEvent event) const;

  Sent transmit(const roce::Outgoing& packet, const roce::Path& path,
                roce::PayloadSource payload) override;
  const roce::Path* path_of(const qp::Operation&) override { return &path_; }
  void qp_event(QpNum qp, qp::QpEvent event) override;

 private:
  bool post_at_once(const qp::SendRequest& request);
  void modify(qp::QpState to, std::uint32_t mask);
  void connect();
  bool turn();
  void schedule();

  World& world_;
  Node& home_;
  PairOptions options_;
  bool shares_;
  std::unique_ptr<roce::Congestion> congestion_;
  std::unique_ptr<roce::Congestion> when_agreed_;
  roce::Path path_;
  qp::QueuePair pair_;
  std::unique_ptr<roce::Engine> engine_;
  Receives own_posted_;
  Flow* outgoing_ = nullptr;
  Flow* incoming_ = nullptr;
  std::vector<qp::QpEvent> events_;
  std::optional<Instant> wake_;
  bool had_no_room_ = false;
  unsigned turns_ = 0;
  bool is_lost_ = false;
  bool told_to_stop_ = false;
  bool tells_packet_ = false;
};

}  // namespace verbena::fabric
