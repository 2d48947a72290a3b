// SPDX-License-Identifier: MIT
// Another process that has a shared receive queue, for tests: executes what a target relays, when
// the test lets it.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "roce/test_world.h"

namespace verbena::roce {

class TestRelay final : public qp::Relay, qp::Responder::Owner {
 public:
  explicit TestRelay(TestEnd& of) : memory(512 * 1024) {
    region = *regions.add({.pd = PdId{7},
                           .iova = address(0),
                           .access = memory::kLocalWrite | memory::kRemoteWrite |
                                     memory::kRemoteRead | memory::kRemoteAtomic,
                           .extents = {{memory.data(), memory.size()}}});
    queues_.queues = {{kQueue, {&queue, &completions, PdId{7}}}};
    qp::QpAttributes attributes;
    attributes.state = qp::QpState::kReadyToReceive;
    attributes.access = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
    attributes.reads_in_max = 16;
    responder_.start(attributes);
    of.shared_queues.elsewhere.insert({kQueue, kNobodys});
    of.pair.responder().relay_by(this);
  }

  static constexpr std::uint32_t kQueue = 0x801;
  static constexpr std::uint32_t kNobodys = 0x802;

  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.data() + offset);
  }
  void post_receive(std::uint64_t id, std::size_t offset, std::uint32_t length) {
    const Sge sge{address(offset), length, region};
    ASSERT_FALSE(queue.post(id, {&sge, 1}));
  }
  std::vector<queues::Completion> poll() {
    std::vector<queues::Completion> all(256);
    all.resize(completions.poll(all));
    return all;
  }
  // So many more pieces are answered.
  void let(std::uint32_t pieces) { may_answer_ += pieces; }
  // It has died.
  void die() { is_dead_ = true; }
  std::uint32_t room = 1000;  // pieces without an answer
  bool is_found = true;

  Sent send(const qp::RelayPiece& piece) override {
    if (piece.shared_queue != kQueue) return Sent::kNowhere;
    if (!is_found || pieces_.size() >= room) return Sent::kLater;
    pieces_.push_back({piece, {piece.bytes.begin(), piece.bytes.end()}});
    return Sent::kSent;
  }
  bool knows_way_to(std::uint32_t) const override { return is_found; }
  std::uint32_t outstanding() const override { return static_cast<std::uint32_t>(pieces_.size()); }
  std::optional<qp::RelayReply> reply() override {
    if (pieces_.empty()) return std::nullopt;
    if (replies_.empty() && is_dead_) refuse_with(qp::Answer::kOperation);
    if (replies_.empty() && may_answer_ != 0) {
      --may_answer_;
      execute();
    }
    if (replies_.empty()) return std::nullopt;
    return replies_.front();
  }
  void take_reply() override {
    const auto kind = replies_.front().kind;
    replies_.pop_front();
    if (kind == qp::RelayReply::Kind::kDone) pieces_.pop_front();
    if (kind == qp::RelayReply::Kind::kRefused) pieces_.clear();
  }

  std::vector<std::byte> memory;
  SeededRandom random{3};
  memory::SectionList sections;
  memory::RegionTable regions{64, random, sections};
  queues::ReceiveQueue queue{64, 1};
  queues::CompletionQueue completions{256, nullptr};
  MemoryKey region;
  std::uint64_t executed_atomics = 0;

 private:
  struct Piece {
    qp::RelayPiece piece;
    std::vector<std::byte> bytes;
  };
  void responder_failed(qp::ResponderFault) override {}
  void communication_established() override {}

  void refuse_with(qp::Answer answer) {
    replies_.push_back({.kind = qp::RelayReply::Kind::kRefused, .answer = answer});
  }
  void execute() {
    const Piece& front = pieces_.front();
    Result<void, qp::Refusal> done = front.piece.kind == qp::OpKind::kRead
                                         ? responder_.choose_domain(front.piece.shared_queue)
                                         : responder_.choose(front.piece.shared_queue);
    if (done) done = execute(front.piece, front.bytes);
    if (!done) return refuse_with(qp::answer_of(done.error()));
    replies_.push_back({});
  }
  Result<void, qp::Refusal> execute(const qp::RelayPiece& piece, std::span<const std::byte> bytes) {
    switch (piece.kind) {
      case qp::OpKind::kSend: return execute_send(piece, bytes);
      case qp::OpKind::kWrite: return execute_write(piece, bytes);
      case qp::OpKind::kRead: return execute_read(piece);
      case qp::OpKind::kCompareSwap:
      case qp::OpKind::kFetchAdd: return execute_atomic(piece);
      case qp::OpKind::kFlush:
      case qp::OpKind::kAtomicWrite:
      case qp::OpKind::kLocalInvalidate:
      case qp::OpKind::kBindWindow: break;
    }
    return refuse(qp::Refusal::kInvalidRequest);
  }
  Result<void, qp::Refusal> execute_send(const qp::RelayPiece& piece,
                                         std::span<const std::byte> bytes) {
    if (piece.is_first) {
      if (auto begun = responder_.begin_receive_of_any_length(); !begun) return begun;
    }
    if (auto placed = responder_.place(piece.offset, bytes); !placed) return placed;
    if (!piece.is_last) return {};
    responder_.length_known(piece.length);
    return responder_.finish_receive(piece.arrived);
  }
  Result<void, qp::Refusal> execute_write(const qp::RelayPiece& piece,
                                          std::span<const std::byte> bytes) {
    if (piece.is_first) {
      if (auto begun = responder_.begin_write(piece.key, piece.address, piece.length); !begun)
        return begun;
    }
    if (auto done = responder_.write(piece.key, piece.address + piece.offset, bytes); !done)
      return done;
    if (!piece.arrived.has_immediate) return {};
    return responder_.finish_write_with_immediate(piece.length, piece.arrived);
  }
  Result<void, qp::Refusal> execute_read(const qp::RelayPiece& piece) {
    if (auto begun = responder_.begin_read(piece.key, piece.address, piece.length); !begun)
      return begun;
    read_.resize(piece.length);
    if (auto done = responder_.read(piece.key, piece.address, read_); !done) return done;
    for (std::uint32_t at = 0; at < piece.length; at += kPieceMax) {
      replies_.push_back(
          {.kind = qp::RelayReply::Kind::kBytes,
           .offset = at,
           .bytes = std::span(read_).subspan(at, std::min(kPieceMax, piece.length - at))});
    }
    return {};
  }
  Result<void, qp::Refusal> execute_atomic(const qp::RelayPiece& piece) {
    const auto before = responder_.atomic(piece.key, piece.address,
                                          {.add = piece.kind == qp::OpKind::kFetchAdd,
                                           .operand = piece.compare_add,
                                           .swap = piece.swap});
    if (!before) return refuse(before.error());
    ++executed_atomics;
    replies_.push_back({.kind = qp::RelayReply::Kind::kValue, .value = *before});
    return {};
  }

  TestQueues queues_;
  qp::Responder responder_{{.type = qp::QpType::kRc,
                            .xrc = qp::Xrc::kTarget,
                            .is_shared = true,
                            .shared_queues = &queues_,
                            .completions = &completions,
                            .regions = &regions,
                            .owner = this}};
  std::deque<Piece> pieces_;
  std::deque<qp::RelayReply> replies_;
  std::vector<std::byte> read_;
  std::uint32_t may_answer_ = 0;
  bool is_dead_ = false;
};

}  // namespace verbena::roce
