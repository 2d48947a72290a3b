// SPDX-License-Identifier: MIT
// Bugs that other software NICs have had, one test each: what they broke holds here.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "roce/test_world.h"
#include "wire/datagram.h"
#include "wire/icrc.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;

constexpr Duration kSoon = Duration::milliseconds(20);

qp::SendRequest remote(const TestEnd& to, std::size_t offset, SendOpcode opcode) {
  return {.opcode = opcode, .remote_address = to.address(offset), .remote_key = to.key};
}

// Without the pad a message that is no multiple of four fails against hardware: any two bytes of a
// pad give two different ICRCs.
TEST(KnownBugs, TheIcrcCoversThePad) {
  const wire::Flow flow{.source = TestEnd::gid_of(0), .destination = TestEnd::gid_of(1)};
  for (std::size_t length : {1u, 2u, 3u, 5u, 1021u}) {
    wire::Head head;
    head.opcode = wire::Opcode::of(wire::Service::kRc, wire::Code::kSendOnly);
    std::vector<std::byte> bytes(wire::datagram_bytes(head.opcode, length));
    wire::DatagramBuilder builder(bytes, head, length);
    std::ranges::fill(builder.payload(), std::byte{0xAB});
    wire::FlowIcrc icrc(flow);
    ASSERT_EQ(builder.finish(icrc), bytes.size());
    ASSERT_TRUE(icrc.verify(bytes, 0));
    const std::size_t pad_at = bytes.size() - wire::kIcrcBytes - 1;
    bytes[pad_at] ^= std::byte{1};
    EXPECT_FALSE(wire::FlowIcrc(flow).verify(bytes, 0)) << length;
  }
}

// Hardware drops packets that say 0 there, or takes a slow path.
TEST(KnownBugs, EveryPacketSaysThatItsPathHasMigrated) {
  TestWorld world;
  std::map<std::uint8_t, unsigned> seen;
  world.link.tap = [&](int, const wire::Packet& packet) {
    EXPECT_TRUE(packet.is_migrated) << int{packet.opcode.value};
    ++seen[packet.opcode.value];
    return true;
  };
  world.far().post_receive(1, 0, 4096);
  world.near().post({.opcode = SendOpcode::kSend}, 0, 3000);
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 3000);
  world.near().post(remote(world.far(), 0, SendOpcode::kRead), 0, 3000);
  world.near().post(remote(world.far(), 0, SendOpcode::kFetchAdd), 0, 8);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 4u);
  EXPECT_GE(seen.size(), 12u) << "first, middle and last of three; the answers";
}

TEST(KnownBugs, AMessageInWhichAQueuePairFailsCompletesOnce) {
  TestWorld world;
  bool has_begun = false;
  world.link.tap = [&](int from, const wire::Packet&) {
    const bool passes = from == 1 || !has_begun;
    has_begun = true;
    return passes;  // the first packet only
  };
  world.far().post_receive(1, 0, 4096);
  world.near().post({.opcode = SendOpcode::kSend}, 0, 4096);
  world.run(Duration::microseconds(50));
  EXPECT_TRUE(world.far().poll_receives().empty());
  qp::QpAttributes error;
  error.state = qp::QpState::kError;
  for (TestEnd& each : world.ends)
    ASSERT_TRUE(each.pair.modify(error, qp::kState).has_value());
  world.link.tap = nullptr;
  world.run(kSoon);
  const auto sent = world.near().poll();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].status, Status::kFlushed);
  const auto received = world.far().poll_receives();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].status, Status::kFlushed);
}

// Writes of 2 MiB and more collapsed to a fraction: here they take the time of the line.
TEST(KnownBugs, LongWritesKeepTheRateOfTheLine) {
  for (const std::size_t length : {std::size_t{2} << 20, std::size_t{16} << 20}) {
    TestWorld world(EndOptions{.memory = length, .completions = 64});
    const Instant begin = world.now();
    world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0,
                      static_cast<std::uint32_t>(length));
    std::vector<queues::Completion> done;
    ASSERT_TRUE(world.run_until(
        [&] {
          done = world.near().poll();
          return !done.empty();
        },
        Duration::seconds(1)));
    EXPECT_EQ(done[0].status, Status::kSuccess);
    const double line_seconds = static_cast<double>(length) * 8 / 25e9;
    const double seconds = static_cast<double>((world.now() - begin).count_nanoseconds()) * 1e-9;
    EXPECT_LT(seconds, 2 * line_seconds) << length;
  }
}

// What a peer sends packet by packet.
class PacketByPacket : public testing::Test {
 protected:
  PacketByPacket() {
    world.link.tap = [this](int from, const wire::Packet& packet) {
      if (from == 1) answers.push_back(packet.opcode.value);
      return false;
    };
  }
  wire::Packet packet(wire::Code code, std::uint32_t dma_length = 0) {
    wire::Packet one;
    one.opcode = wire::Opcode::of(wire::Service::kRc, code);
    one.shape = &wire::shape_of(one.opcode);
    one.psn = psn;
    one.remote_address = world.far().address(0);
    one.remote_key = world.far().key;
    one.dma_length = dma_length;
    return one;
  }
  void give(const wire::Packet& one) {
    world.far().give(one, world.far().from_peer());
    world.run(Duration::microseconds(1));
  }

  TestWorld world;
  wire::Psn psn{0xFFFFF0};
  std::vector<std::uint8_t> answers;
};

// rxe checked the range of a READ when it came first, and not when it came again.
TEST_F(PacketByPacket, ARepeatedReadIsHeldAgainstItsRegionAgain) {
  give(packet(wire::Code::kReadRequest, 64));
  const std::size_t of_first = answers.size();
  EXPECT_GE(of_first, 1u);
  wire::Packet again = packet(wire::Code::kReadRequest, 4096);
  again.remote_address = ~std::uint64_t{0} - 100;  // wraps
  give(again);
  again.remote_address = world.far().address(0) - 4096;
  give(again);
  again.remote_address = world.far().address(world.far().memory.size() - 1);
  give(again);
  for (std::size_t i = of_first; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i], wire::Opcode::of(wire::Service::kRc, wire::Code::kAcknowledge).value)
        << "data of a range that is not of the region";
  }
}

// The limit of READs at a time changed under those that were on their way.
TEST(KnownBugs, ReadsOutliveAChangeOfTheirLimit) {
  TestWorld world(EndOptions{.reads_max = 4});
  for (int i = 0; i < 8; ++i)
    world.near().post(remote(world.far(), 0, SendOpcode::kRead), 4096, 2000);
  world.run(Duration::microseconds(15));  // some are on their way
  qp::QpAttributes change;
  change.state = qp::QpState::kReadyToSend;
  change.reads_in_max = change.reads_out_max = 1;
  for (TestEnd& each : world.ends) {
    EXPECT_FALSE(
        each.pair.modify(change, qp::kState | qp::kReadsInMax | qp::kReadsOutMax).has_value())
        << "not in RTS (IBTA vol 1, 11.2.5.2)";
  }
  change.state = qp::QpState::kDrained;
  ASSERT_TRUE(world.near().pair.modify(change, qp::kState).has_value());
  static_cast<void>(
      world.near().pair.modify(change, qp::kState | qp::kReadsOutMax));  // in SQD it may be refused
  world.near().engine->start(world.near().pair.attributes());
  world.run(kSoon);
  change.state = qp::QpState::kReadyToSend;
  ASSERT_TRUE(world.near().pair.modify(change, qp::kState).has_value());
  world.near().engine->start(world.near().pair.attributes());
  world.run(kSoon);
  const auto done = world.near().poll();
  ASSERT_EQ(done.size(), 8u);
  for (const queues::Completion& each : done)
    EXPECT_EQ(each.status, Status::kSuccess);
}

memory::WindowBinding binding(TestEnd& end, MemoryKey window) {
  return {.key = window,
          .region = end.add_region(memory::kLocalWrite | memory::kWindowBind),
          .address = end.address(0),
          .length = 64,
          .access = memory::kRemoteWrite};
}

TEST(KnownBugs, AWindowWhoseRangeWrapsIsNotBound) {
  TestWorld world;
  auto& windows = world.far().regions.windows();
  const auto window = windows.add(PdId{1}, memory::WindowType::kTwo);
  ASSERT_TRUE(window.has_value());
  auto wanted = binding(world.far(), *window);
  wanted.length = ~std::uint64_t{0} - 10;  // address + length is below the region's end
  const memory::RemoteUser user{PdId{1}, world.far().self()};
  EXPECT_EQ(windows.bind(user, wanted), memory::WindowRefusal::kRegion);
  wanted.length = 64;
  wanted.address = world.far().address(0) - 10;
  EXPECT_EQ(windows.bind(user, wanted), memory::WindowRefusal::kRegion);
}

// A message whose acknowledgement is lost comes again: the window that it took away is gone then.
TEST(KnownBugs, AnInvalidationThatComesAgainIsNoMistake) {
  TestWorld world;
  auto& windows = world.far().regions.windows();
  const auto window = windows.add(PdId{1}, memory::WindowType::kTwo);
  ASSERT_TRUE(window.has_value());
  ASSERT_FALSE(windows.bind({PdId{1}, world.far().self()}, binding(world.far(), *window)));
  unsigned lost = 0;
  world.link.tap = [&](int from, const wire::Packet&) { return from == 0 || lost++ >= 2; };
  for (int i = 0; i < 2; ++i)
    world.far().post_receive(1, 0, 4096);
  qp::SendRequest request{.opcode = SendOpcode::kSendWithInvalidate};
  request.immediate = window->value;  // in the same place
  world.near().post(request, 0, 10);
  world.run(kSoon);
  EXPECT_GE(lost, 2u);
  EXPECT_EQ(world.near().poll().at(0).status, Status::kSuccess);
  EXPECT_EQ(world.far().poll_receives().size(), 1u);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kReadyToSend);
}

}  // namespace
}  // namespace verbena::roce
