// SPDX-License-Identifier: MIT
// An XRC target amid two processes that write whatever they like: the one that sends it requests,
// and the one that has the shared receive queue to which it passes them on. The same as a hidden
// target, which is sent pieces by another target. Nothing outside the granted region is touched, no
// receive completes twice, and nothing is answered that was not asked.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>

#include "base/assert.h"
#include "base/test_input.h"
#include "local/ring_relay.h"
#include "local/test_hostile.h"
#include "local/test_relay.h"

namespace verbena::local {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::byte kAround{0x5a};
constexpr std::uint32_t kInboundId = 1;
constexpr std::uint32_t kOutboundId = 2;

// As the NIC's: ends with the process that has the queue, and can be made anew.
class Way final : public qp::Relay {
 public:
  void open(Conduit conduit) {
    ring_.emplace(std::move(conduit));
    VERBENA_ASSERT(asked_.empty() && !is_ending_);
  }
  bool is_open() const { return ring_.has_value(); }
  void close() {
    if (ring_) ring_->close();
    ring_.reset();
    asked_.clear();
    is_ending_ = false;
  }

  Sent send(const qp::RelayPiece& piece) override {
    if (!ring_) return Sent::kNowhere;
    VERBENA_ASSERT(piece.bytes.size() <= kPieceMax);
    if (ring_->is_over() || !ring_->send(piece)) return Sent::kLater;
    asked_.push_back({piece.kind, piece.length});
    return Sent::kSent;
  }
  bool knows_way_to(std::uint32_t) const override { return true; }
  std::uint32_t outstanding() const override { return static_cast<std::uint32_t>(asked_.size()); }
  std::optional<qp::RelayReply> reply() override {
    if (asked_.empty()) return std::nullopt;
    if (!is_ending_) {
      VERBENA_ASSERT(ring_->outstanding() == asked_.size());
      if (const auto reply = ring_->reply()) return expect_asked(*reply);
      if (!ring_->is_over()) return std::nullopt;
      is_ending_ = true;
    }
    return qp::RelayReply{.kind = qp::RelayReply::Kind::kRefused, .answer = qp::Answer::kOperation};
  }
  void take_reply() override {
    if (is_ending_) return close();
    const auto kind = ring_->reply()->kind;
    ring_->take_reply();
    if (kind == qp::RelayReply::Kind::kRefused) asked_.clear();
    if (kind == qp::RelayReply::Kind::kDone) asked_.pop_front();
  }

 private:
  struct Asked {
    qp::OpKind kind;
    std::uint32_t length;
  };
  qp::RelayReply expect_asked(const qp::RelayReply& reply) {
    const Asked& oldest = asked_.front();
    switch (reply.kind) {
      case qp::RelayReply::Kind::kBytes:
        VERBENA_ASSERT(oldest.kind == qp::OpKind::kRead && reply.bytes.size() <= kPieceMax);
        VERBENA_ASSERT(reply.offset + std::uint64_t{reply.bytes.size()} <= oldest.length);
        break;
      case qp::RelayReply::Kind::kValue:
        VERBENA_ASSERT(oldest.kind == qp::OpKind::kCompareSwap ||
                       oldest.kind == qp::OpKind::kFetchAdd);
        break;
      case qp::RelayReply::Kind::kRefused: VERBENA_ASSERT(reply.answer != qp::Answer::kDone); break;
      case qp::RelayReply::Kind::kDone: break;
    }
    return reply;
  }

  std::optional<RingRelay> ring_;
  std::deque<Asked> asked_;
  bool is_ending_ = false;
};

class RelayRun {
 public:
  explicit RelayRun(TestInput input) : input_(input) {
    std::ranges::fill(victim_.memory, kAround);
    for (const HostileFile* file : {&inbound(), &outbound()})
      std::memset(file->begin(), 0, kConduitSize);
    victim_.ring.offer(Conduit::prepare(inbound().ours, 0, kInboundId));
    is_relaying_ = input_.one_in(2);
    if (!is_relaying_) return;
    victim_.responder.relay_by(&way_);
    open_way();
  }
  ~RelayRun() { way_.close(); }
  RelayRun(const RelayRun&) = delete;
  RelayRun& operator=(const RelayRun&) = delete;

  void run() {
    for (int steps = 0; !input_.empty() && steps < 200; ++steps)
      step();
    turn();
    const auto is_around = [](std::byte each) { return each == kAround; };
    VERBENA_ASSERT(std::all_of(victim_.memory.begin(), victim_.memory.begin() + kPage, is_around));
    VERBENA_ASSERT(std::all_of(victim_.memory.end() - kPage, victim_.memory.end(), is_around));
  }

 private:
  static const HostileFile& inbound() {
    static const HostileFile file = HostileFile::make();
    return file;
  }
  static const HostileFile& outbound() {
    static const HostileFile file = HostileFile::make();
    return file;
  }
  void open_way() {
    std::memset(outbound().begin(), 0, kConduitSize);
    responses_ = {};
    static_cast<void>(Conduit::prepare(outbound().theirs, 0, kOutboundId));
    Conduit conduit = Conduit::accept(outbound().ours, 0, kOutboundId);
    VERBENA_ASSERT(static_cast<bool>(conduit));
    way_.open(std::move(conduit));
  }

  void step() {
    switch (input_.below(8)) {
      case 0:
      case 1: return write_request();
      case 2: return write_response();
      case 3: return scribble(input_.one_in(2) ? inbound() : outbound(), input_);
      case 4: return write_counter(inbound(), outbound(), input_);
      case 5: return post_receive();
      case 6:
        epoch_ = input_.below(4);
        if (is_relaying_ && !way_.is_open()) open_way();
        return;
      default: return turn();
    }
  }

  void write_request() {
    constexpr std::array kQueues{kElsewhere, kQueue, kSecondQueue};
    RequestRecord record{};
    const std::uint32_t length = input_.take();
    record.index = wild(input_, index_);
    if (!input_.one_in(4)) ++index_;
    record.epoch = wild(input_, epoch_);
    record.total_length = input_.one_in(4) ? kUnknownLength : wild(input_, length);
    record.piece_length = wild(input_, length);
    record.offset = wild(input_, 0);
    const std::uint16_t at = input_.take<std::uint16_t>();
    record.remote_address = victim_.address(kPage) + at % (kPage + 64);
    record.remote_key = wild(input_, victim_.region.value);
    record.shared_queue = wild(input_, kQueues[input_.below(3)]);
    const std::uint8_t kind = input_.take();
    if (kind % 3 == 1) record.atomic = {input_.take(), input_.take()};
    if (kind % 3 == 2) record.flush = {wild(input_, length), input_.below(8), 0};
    requests_.publish(record, request_ring(inbound().begin()), input_);
  }
  void write_response() {
    ResponseRecord record{};
    take_response(record, input_);
    responses_.publish(record, response_ring(outbound().begin()), input_);
  }
  void post_receive() {
    const Sge sge{victim_.address(kPage), input_.take() * 16u, victim_.region};
    queues::ReceiveQueue& queue = input_.one_in(4) ? victim_.second_queue : victim_.queue;
    if (!queue.post(7, {&sge, 1})) ++posted_;
  }
  void turn() {
    qp::Budget budget;
    static_cast<void>(victim_.ring.serve(victim_.responder, budget));
    completed_ += victim_.poll().size();
    VERBENA_ASSERT(completed_ <= posted_);
  }

  TestInput input_;
  Owner victim_{3 * kPage, kPage, kPage};
  Way way_;
  bool is_relaying_ = false;
  HostileWriter requests_;
  HostileWriter responses_;
  std::uint32_t index_ = 0;
  std::uint32_t epoch_ = 0;
  std::size_t posted_ = 0;
  std::size_t completed_ = 0;
};

}  // namespace
}  // namespace verbena::local

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::local::RelayRun(verbena::TestInput(data, size)).run();
  return 0;
}
