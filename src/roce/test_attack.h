// SPDX-License-Identifier: MIT
// Two queue pairs that talk, and whatever an input makes of it: packets that are changed on their
// way, come twice, late or never, packets that nobody sent, work that the programs post. One end is
// the victim: not a byte of its memory is written, or told, but where its peer may, and every
// request that its program posted completes once. For tests only.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <vector>

#include "base/assert.h"
#include "base/test_input.h"
#include "qp/tag_matcher.h"
#include "roce/agreement.h"
#include "roce/test_world.h"

namespace verbena::roce {

class AttackRun {
 public:
  explicit AttackRun(TestInput input) : input_(input), options_(take_options()) {
    TestEnd& target = victim();
    auto memory = std::span(target.memory);
    std::ranges::fill(memory, kSecret);
    std::ranges::fill(memory.subspan(kOpen, kZone), kPublic);
    std::ranges::fill(memory.subspan(kReadOnly, kZone), kPublic);
    VERBENA_ASSERT(target.regions.remove(target.key));
    keys_[0] = add(kOpen, PdId{1},
                   memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead |
                       memory::kRemoteAtomic | memory::kFlushGlobal);
    keys_[1] = add(kReadOnly, PdId{1}, memory::kRemoteRead);
    keys_[2] = add(
        kForeign, PdId{2},
        memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic);
    keys_[3] = add(kForeign, PdId{1}, memory::kLocalWrite);  // nothing for peers
    target.key = keys_[0];
    target.shared_queues.queues[kSharedQueue] = {&shared_receives_, &shared_completions_, PdId{1}};
    world_.link.tap = [this](int from, const wire::Packet& packet) {
      if (from == kVictim) expect_no_secret(packet.payload);
      return true;
    };
  }
  ~AttackRun() = default;
  AttackRun(const AttackRun&) = delete;
  AttackRun& operator=(const AttackRun&) = delete;

  void run() {
    for (int steps = 0; !input_.empty() && steps < 200; ++steps) {
      revive(victim());
      revive(world_.near());
      step(input_.take());
      for (TestEnd& each : world_.ends)
        count(each);
    }
    end();
  }

 private:
  static constexpr int kVictim = 1;
  static constexpr std::size_t kZone = 4096;
  // The zones of the victim's memory; what lies between them, and behind, is nobody's.
  static constexpr std::size_t kOpen = kZone;
  static constexpr std::size_t kReadOnly = 3 * kZone;
  static constexpr std::size_t kForeign = 5 * kZone;
  static constexpr std::size_t kMemory = 7 * kZone;
  static constexpr std::byte kSecret{0x11};
  static constexpr std::byte kPublic{0x22};
  static constexpr std::byte kNoSecret{0x12};  // what senders have where they would send kSecret
  static constexpr std::size_t kSecretRun = 64;
  static constexpr std::uint32_t kSharedQueue = 77;
  static constexpr unsigned kOpcodes = static_cast<unsigned>(queues::SendOpcode::kBindWindow);

  // What kind of queue pair, by the first two bytes.
  EndOptions take_options() {
    EndOptions options{.memory = kMemory, .depth = 16, .completions = 256};
    const std::uint8_t kind = input_.below(5);
    const std::uint8_t how = input_.take();
    options.type = kind == 1 ? qp::QpType::kUc : kind == 2 ? qp::QpType::kUd : qp::QpType::kRc;
    options.is_xrc = kind == 3;
    if (kind == 4) {
      options.shared_receives = &shared_receives_;
      options.tags = &tags_;
    }
    options.path_mtu = (how & 1) != 0 ? 256 : 1024;
    if ((how & 2) != 0) {
      options.reorder_packets = 16;
      options.reorder_patience = Duration::microseconds(3);
      options.selective = (how & 4) != 0;
    }
    options.issues_first = (how & 8) != 0;
    options.posts_at_once = (how & 16) != 0;
    return options;
  }
  EndOptions of_peer() const {
    EndOptions options = options_;
    options.shared_receives = nullptr;
    options.tags = nullptr;
    return options;
  }
  TestEnd& victim() { return world_.far(); }

  MemoryKey add(std::size_t offset, PdId pd, std::uint32_t access) {
    const auto key = victim().regions.add({.pd = pd,
                                           .iova = victim().address(offset),
                                           .access = access,
                                           .extents = {{victim().memory.data() + offset, kZone}}});
    VERBENA_ASSERT(key.has_value());
    return *key;
  }

  void step(std::uint8_t what) {
    switch (what % 12) {
      case 0:
      case 1: return invent();
      case 2: return give_bytes(input_.take_bytes(input_.take()));
      case 3: return deliver_changed();
      case 4: return drop();
      case 5: return post(victim());
      case 6:
      case 7: return post(world_.near());
      case 8: return post_receive();
      case 9: return tag();
      case 10: return pass(Duration::microseconds(std::int64_t{1} << input_.below(16)));
      default: return pass(Duration::microseconds(5));
    }
  }

  static std::uint8_t mark_of(std::uint8_t byte) {
    constexpr std::array kMarks = {kRequestMark, kResponseMark, kGapMark, kPiggybackMark};
    return (byte & 0x80) != 0 ? kMarks[byte % kMarks.size()] : byte;
  }

  // -- packets that nobody sent
  void invent() {
    wire::Head head;
    const std::uint8_t opcode = input_.take();
    const bool is_of_service = (opcode & 0x80) == 0;
    head.opcode = {static_cast<std::uint8_t>(is_of_service ? (opcode & 0x1F) | victim().service()
                                                           : input_.take())};
    const wire::OpcodeShape& shape = wire::shape_of(head.opcode);
    if (!shape.is_defined) return;
    const std::uint8_t how = input_.take();
    head.dest_qp = victim().self();
    head.source_qp = victim().peer();
    head.psn = psn(input_.take());
    head.ack_request = (how & 1) != 0;
    head.is_solicited = (how & 2) != 0;
    head.becn = how == 0xFF;
    head.mark = (how & 0x0C) == 0x0C ? mark_of(input_.take()) : 0;
    head.remote_key = key();
    head.invalidate_key = head.remote_key;
    head.remote_address = address(how >> 4);
    head.swap_or_add = 0x0101010101010101;
    head.compare = 0;
    head.syndrome = wire::Syndrome(input_.take());
    head.msn = wire::Msn(input_.take());
    head.qkey = (how & 4) != 0 ? 1 : kTestQkey;
    head.srq_number = (how & 4) != 0 ? 1 : kSharedQueue;
    head.placement = {.global_visibility = (how & 8) == 0, .persistence = (how & 4) != 0};
    head.selectivity = static_cast<wire::Selectivity>(how >> 7);
    const std::size_t length = payload_length(shape);
    head.dma_length = static_cast<std::uint32_t>(
        (how & 0x10) != 0 ? length + input_.take<std::uint16_t>() : length);
    if (how == 0x5A) head.dma_length = input_.take<std::uint32_t>();
    head.pad = wire::pad_of(length);
    InTransit packet;
    packet.bytes.assign(wire::datagram_bytes(head.opcode, length), std::byte{0xEE});
    wire::encode(head, packet.bytes);
    input_.fill(packet.bytes.data() + shape.header_bytes,
                std::min<std::size_t>(length, input_.below(64)));
    give(packet);
  }
  std::size_t payload_length(const wire::OpcodeShape& shape) {
    const std::uint8_t code = input_.take();
    switch (shape.payload) {
      case wire::Payload::kNone: return 0;
      case wire::Payload::kFull: return (code & 7) == 0 ? 512 : options_.path_mtu;
      case wire::Payload::kEight: return (code & 7) == 0 ? 4 : 8;
      case wire::Payload::kSome:
      case wire::Payload::kAny: break;
    }
    return (code & 0x80) != 0 ? std::size_t{code & 0x7Fu} * 8 : code & 0x3F;
  }
  wire::Psn psn(std::uint8_t code) {
    if (code == 0xFF) return wire::Psn(input_.take<std::uint32_t>() & 0xFFFFFF);
    if ((code & 0xC0) != 0) return std::exchange(psn_, psn_.next());
    return psn_ + ((code & 0x3Fu) - 32);
  }
  MemoryKey key() {
    const std::uint8_t code = input_.take();
    if (code == 0xFF) return {input_.take<std::uint32_t>()};
    return (code & 0x80) != 0 ? keys_[code % keys_.size()] : keys_[0];
  }
  std::uint64_t address(unsigned how) {
    const std::uint16_t offset = input_.take<std::uint16_t>();
    if (how == 15) return input_.take<std::uint64_t>();
    if (how == 14) return victim().address(offset % kMemory);
    return victim().address(kOpen +
                            (offset % kZone & (how < 8 ? ~std::size_t{7} : ~std::size_t{0})));
  }
  void give_bytes(std::span<const std::uint8_t> bytes) {
    InTransit packet;
    std::ranges::transform(bytes, std::back_inserter(packet.bytes),
                           [](std::uint8_t each) { return std::byte{each}; });
    give(packet);
  }
  // What attackers send holds no secrets, so that one that is told comes from the victim.
  void give(InTransit& packet) {
    std::ranges::replace(
        std::span(packet.bytes)
            .subspan(std::min<std::size_t>(packet.bytes.size(), wire::kBthBytes + 16)),
        kSecret, kNoSecret);
    victim().receive(packet);
  }

  // -- packets on their way
  void deliver_changed() {
    if (world_.link.is_empty()) return;
    InTransit packet = world_.link.take();
    for (unsigned changes = input_.below(4); changes > 0; --changes) {
      const std::size_t at = input_.take<std::uint16_t>() % packet.bytes.size();
      packet.bytes[at] ^= static_cast<std::byte>(input_.take());
    }
    if (input_.one_in(8)) packet.bytes.resize(packet.bytes.size() - input_.below(16));
    packet.is_marked = input_.one_in(8);
    if (packet.to == kVictim) {
      give(packet);
      if (input_.one_in(4)) give(packet);
    } else {
      world_.near().receive(packet);
    }
  }
  void drop() {
    if (!world_.link.is_empty()) world_.link.take();
  }
  void pass(Duration time) {
    world_.run(time);
    queues::Completion one;
    while (shared_completions_.poll({&one, 1}) == 1) {
    }
  }

  // -- what programs do
  void post(TestEnd& end) {
    const std::uint8_t what = input_.take();
    const std::uint32_t length = input_.take<std::uint16_t>() % kZone;
    qp::SendRequest request;
    request.opcode = static_cast<queues::SendOpcode>(what % kOpcodes);
    request.flags = input_.take() & (queues::kSignaled | queues::kSolicited | queues::kFence);
    request.remote_address = victim().address(kOpen) + (input_.take() & ~7u);
    request.remote_key = (what & 0x80) != 0 ? key() : keys_[0];
    request.compare_add = 1;
    request.remote_qp = end.peer();
    request.remote_qkey = kTestQkey;
    request.shared_queue = kSharedQueue;
    const bool is_victim = &end == &victim();
    const Sge sge{end.address(is_victim ? kOpen : 0), length, end.key};
    request.sges = {&sge, 1};
    const bool is_posted = (options_.posts_at_once && end.post_at_once(request, sge)) ||
                           end.pair.post_send(request).has_value();
    if (is_posted && is_victim) ++posted_;
  }
  void post_receive() {
    const std::uint32_t length = input_.take() * 16u;
    const Sge sge{victim().address(kOpen), length, keys_[0]};
    if (options_.is_xrc || options_.tags) {
      static_cast<void>(shared_receives_.post(1, {&sge, 1}));
    } else if (victim().pair.post_receive(1, {&sge, 1})) {
      ++receives_posted_;
    }
  }
  void tag() {
    if (!options_.tags) return;
    const Sge sge{victim().address(kOpen), input_.take() * 16u, keys_[0]};
    const auto handle = tags_.add({.is_signaled = false},
                                  {.tag = input_.take(), .mask = input_.take(), .sges = {&sge, 1}});
    if (handle && input_.one_in(4)) tags_.remove({}, *handle);
  }

  // -- what holds
  void revive(TestEnd& end) {
    if (end.pair.state() == qp::QpState::kReadyToSend) return;
    count(end);
    if (&end == &victim()) {
      fail(end);
      expect_all_completed();
    }
    end.connect();
    psn_ = wire::Psn(options_.first_psn);
  }
  // ERR, where all that is left completes.
  void fail(TestEnd& end) {
    qp::QpAttributes error;
    error.state = qp::QpState::kError;
    VERBENA_ASSERT(end.pair.modify(error, qp::kState).has_value());
    end.turn();
    count(end);
  }
  void count(TestEnd& end) {
    const auto sent = end.poll().size();
    const auto received = end.poll_receives().size();
    if (&end != &victim()) return;
    completed_ += sent;
    receives_completed_ += received;
  }
  void expect_all_completed() const {
    VERBENA_ASSERT(completed_ == posted_);
    if (!options_.tags) VERBENA_ASSERT(receives_completed_ == receives_posted_);
  }
  void expect_no_secret(std::span<const std::byte> payload) const {
    std::size_t run = 0;
    for (const std::byte each : payload) {
      run = each == kSecret ? run + 1 : 0;
      VERBENA_ASSERT(run < kSecretRun);
    }
  }
  void end() {
    pass(Duration::milliseconds(1));
    if (victim().pair.state() != qp::QpState::kReset) fail(victim());
    expect_all_completed();
    const auto memory = std::span(victim().memory);
    const auto is = [](std::byte what) { return [what](std::byte each) { return each == what; }; };
    VERBENA_ASSERT(std::ranges::all_of(memory.first(kOpen), is(kSecret)));
    VERBENA_ASSERT(
        std::ranges::all_of(memory.subspan(kOpen + kZone, kReadOnly - kOpen - kZone), is(kSecret)));
    VERBENA_ASSERT(std::ranges::all_of(memory.subspan(kReadOnly, kZone), is(kPublic)));
    VERBENA_ASSERT(std::ranges::all_of(memory.subspan(kReadOnly + kZone), is(kSecret)));
  }

  TestInput input_;
  queues::ReceiveQueue shared_receives_{32, 4};
  queues::CompletionQueue shared_completions_{256, nullptr};
  queues::CompletionQueue tag_completions_{256, nullptr};
  qp::TagMatcher tags_{16, tag_completions_};
  EndOptions options_;
  TestWorld world_{of_peer(), options_, 1};
  std::array<MemoryKey, 4> keys_;
  wire::Psn psn_{options_.first_psn};
  std::size_t posted_ = 0;
  std::size_t completed_ = 0;
  std::size_t receives_posted_ = 0;
  std::size_t receives_completed_ = 0;
};

}  // namespace verbena::roce
