// SPDX-License-Identifier: MIT
// A peer that sends anything at any time, on a live connection: nothing crashes, and not a byte is
// written but where the peer may write. `--seed=N` repeats one run.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_seed.h"
#include "roce/test_world.h"

namespace verbena::roce {
namespace {

constexpr std::size_t kOpenFrom = 64 * 1024;
constexpr std::size_t kOpenBytes = 64 * 1024;

// A packet of any opcode, near what is expected, with nonsense in it or without.
class Attacker {
 public:
  Attacker(TestEnd& victim, MemoryKey open, std::uint64_t seed)
      : victim_(victim), open_(open), random_(seed), psn_(0xFFFFF0) {}

  void attack() {
    wire::Head head;
    head.opcode = {opcode()};
    const wire::OpcodeShape& shape = wire::shape_of(head.opcode);
    if (!shape.is_defined) return;
    head.dest_qp = victim_.self();
    const std::int32_t near = static_cast<std::int32_t>(random_.below(40)) - 20;
    head.psn = random_.one_in(2) ? psn_ : psn_ + static_cast<std::uint32_t>(near);
    if (random_.one_in(50)) head.psn = wire::Psn(static_cast<std::uint32_t>(random_.next()));
    head.ack_request = random_.one_in(2);
    head.remote_key =
        random_.one_in(8) ? MemoryKey{static_cast<std::uint32_t>(random_.next())} : open_;
    head.remote_address = victim_.address(kOpenFrom) + random_.below(kOpenBytes);
    if (random_.one_in(8)) head.remote_address = random_.next();
    if (random_.one_in(4)) head.remote_address &= ~std::uint64_t{7};
    head.swap_or_add = random_.next();
    head.syndrome = wire::Syndrome(static_cast<std::uint8_t>(random_.next()));
    if (random_.one_in(2)) head.syndrome = wire::Syndrome::ack();
    head.msn = wire::Msn(static_cast<std::uint32_t>(random_.below(100)));
    head.qkey = random_.one_in(4) ? 1 : kTestQkey;
    send(head, shape);
    if (head.psn == psn_ && random_.one_in(2)) psn_ = psn_.next();
  }

 private:
  std::uint8_t opcode() {
    const auto code = static_cast<std::uint8_t>(random_.below(32));
    if (random_.one_in(16)) return static_cast<std::uint8_t>(random_.next());
    return static_cast<std::uint8_t>(code | victim_.service());
  }
  void send(wire::Head& head, const wire::OpcodeShape& shape) {
    std::size_t length = random_.below(1025);
    if (shape.payload == wire::Payload::kNone) length = 0;
    if (shape.payload == wire::Payload::kFull) length = random_.one_in(4) ? 256 : 1024;
    head.dma_length = static_cast<std::uint32_t>(
        shape.payload == wire::Payload::kAny ? length : length + random_.below(5000));
    if (random_.one_in(16)) head.dma_length = static_cast<std::uint32_t>(random_.next());
    head.pad = wire::pad_of(length);
    InTransit packet;
    packet.bytes.assign(wire::datagram_bytes(head.opcode, length), std::byte{0xEE});
    packet.is_marked = random_.one_in(8);
    wire::encode(head, packet.bytes);
    if (random_.one_in(32)) packet.bytes.resize(packet.bytes.size() - random_.below(8));
    victim_.receive(packet);
  }

  TestEnd& victim_;
  MemoryKey open_;
  SeededRandom random_;
  wire::Psn psn_;
};

void survive(qp::QpType type, std::uint64_t seed) {
  EndOptions options{.type = type, .memory = 192 * 1024};
  SeededRandom random(seed);
  if (random.one_in(2)) {
    options.reorder_packets = 16;
    options.reorder_patience = Duration::microseconds(3);
    options.selective = random.one_in(2);
  }
  TestWorld world(options, seed);
  TestEnd& victim = world.far();
  std::fill(victim.memory.begin(), victim.memory.end(), std::byte{0x11});
  ASSERT_TRUE(victim.regions.remove(victim.key));
  const auto open =
      victim.regions.add({.pd = PdId{1},
                          .iova = victim.address(kOpenFrom),
                          .access = memory::kLocalWrite | memory::kRemoteWrite |
                                    memory::kRemoteRead | memory::kRemoteAtomic,
                          .extents = {{victim.memory.data() + kOpenFrom, kOpenBytes}}});
  ASSERT_TRUE(open.has_value());
  victim.key = *open;
  Attacker attacker(victim, *open, seed);
  for (unsigned i = 0; i < 300; ++i) {
    // In ERR there is little to see: a new life.
    if (victim.pair.state() != qp::QpState::kReadyToSend) victim.connect();
    if (random.one_in(20)) victim.post_receive(i, kOpenFrom + random.below(1000), 3000);
    if (random.one_in(20) && type != qp::QpType::kUd && victim.pair.window().accepts_posts()) {
      const bool reads = type == qp::QpType::kRc && random.one_in(2);
      const Sge sge = victim.sge(kOpenFrom, 3000);
      qp::SendRequest request{
          .opcode = reads ? queues::SendOpcode::kRead : queues::SendOpcode::kWrite,
          .remote_address = 1,
          .sges = {&sge, 1}};
      static_cast<void>(victim.pair.post_send(request));  // the queue may be full
    }
    attacker.attack();
    if (random.one_in(3)) world.run(Duration::microseconds(5));
  }
  for (std::size_t i = 0; i < victim.memory.size(); ++i) {
    const bool is_open = i >= kOpenFrom && i < kOpenFrom + kOpenBytes;
    ASSERT_TRUE(is_open || victim.memory[i] == std::byte{0x11}) << "byte " << i;
  }
}

class Hostile : public testing::TestWithParam<qp::QpType> {};

TEST_P(Hostile, WritesNothingOutside) {
  const std::uint64_t seed = test_seed();
  for (std::uint64_t i = 0; i < 1000 && !HasFailure(); ++i) {
    SCOPED_TRACE("--seed=" + std::to_string(seed + i));
    survive(GetParam(), seed + i);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Hostile,
                         testing::Values(qp::QpType::kRc, qp::QpType::kUc, qp::QpType::kUd));

}  // namespace
}  // namespace verbena::roce
