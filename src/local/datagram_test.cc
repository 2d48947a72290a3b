// SPDX-License-Identifier: MIT
// Datagrams whose way is not open yet, or whose receiver does not take them.
#include "local/datagram.h"

#include <gtest/gtest.h>

#include "local/test_pair.h"

namespace verbena::local {
namespace {

constexpr QpNum kSelf{0x4005};
constexpr QpNum kPeer{0x8007};

class Datagrams : public ::testing::Test, public DatagramPaths {
 protected:
  Datagrams() : end(qp::QpType::kUd, kSelf), carrier(kSelf, *this) {
    key = end.add(payload.data(), payload.size(), memory::kLocalWrite);
    qp::QpAttributes a;
    a.port = 1;
    move(a, qp::QpState::kInit, qp::kPkeyIndex | qp::kPort | qp::kQkey);
    move(a, qp::QpState::kReadyToReceive, 0);
    move(a, qp::QpState::kReadyToSend, qp::kSendPsn);
    path.state = Path::State::kOpening;
    path.opening_since = now;
  }
  void move(qp::QpAttributes& a, qp::QpState to, std::uint32_t mask) {
    a.state = to;
    EXPECT_TRUE(end.pair.modify(a, mask | qp::kState).has_value());
  }
  Path path_of(const qp::Operation&) override { return path; }

  void post(std::uint32_t length = 4096) {
    const Sge sge{reinterpret_cast<std::uint64_t>(payload.data()), length, key};
    qp::SendRequest r;
    r.remote_qp = kPeer;
    r.sges = {&sge, 1};
    ASSERT_TRUE(end.pair.post_send(r).has_value());
  }
  std::size_t completed() {
    qp::Budget budget;
    carrier.issue(end.pair.window(), budget, now);
    return end.poll().size();
  }
  // A ring that nobody reads, full.
  void open_and_fill() {
    SharedConduit conduit = make_conduit(1);
    sender = std::make_unique<DatagramSender>(std::move(conduit.first), PeerBell{&end.doorbell, 0},
                                              room_wanted);
    receiver =
        std::make_unique<DatagramReceiver>(std::move(conduit.second), PeerBell{&end.doorbell, 0});
    path.state = Path::State::kOpen;
    path.sender = sender.get();
    do {
      post();
    } while (completed() == 1);
  }

  std::vector<std::uint8_t> payload = std::vector<std::uint8_t>(4096);
  End end;
  DatagramCarrier carrier;
  MemoryKey key;
  Path path;
  Instant now = Instant::at(1'000'000'000);
  std::atomic<bool> room_wanted{false};
  std::unique_ptr<DatagramSender> sender;
  std::unique_ptr<DatagramReceiver> receiver;
};

TEST_F(Datagrams, WaitForTheirWayAndAreLostWhenItTakesTooLong) {
  post();
  post();
  EXPECT_EQ(completed(), 0u);
  ASSERT_TRUE(carrier.next_deadline().has_value());
  now = *carrier.next_deadline();
  EXPECT_EQ(completed(), 2u) << "the second has waited as long as the first";
  EXPECT_FALSE(carrier.next_deadline().has_value());
  post();
  EXPECT_EQ(completed(), 1u) << "nobody waits again for a way that does not open";
}

TEST_F(Datagrams, ThatAreFlushedLeaveNoTimer) {
  post();
  EXPECT_EQ(completed(), 0u);
  qp::QpAttributes a;
  move(a, qp::QpState::kError, 0);
  EXPECT_EQ(completed(), 1u);
  EXPECT_FALSE(carrier.next_deadline().has_value());
}

TEST_F(Datagrams, WaitForRoomOnce) {
  open_and_fill();
  EXPECT_TRUE(room_wanted);
  EXPECT_EQ(completed(), 0u);
  now = *carrier.next_deadline();
  EXPECT_EQ(completed(), 1u) << "a receiver that takes nothing loses some";
  for (int i = 0; i < 5; ++i) {
    post();
    EXPECT_EQ(completed(), 1u) << "and no sender waits for it again";
  }
  // Until it takes something.
  receiver->take(1000, [](const DatagramRecord&, std::span<const std::byte>) {});
  EXPECT_TRUE(end.doorbell.any_ready()) << "senders hear of the room";
  std::size_t sent = 0;
  do {
    post();
  } while (completed() == 1 && ++sent < 100);
  EXPECT_GT(sent, 10u);
  EXPECT_LT(sent, 100u);
  EXPECT_TRUE(carrier.next_deadline().has_value());
}

TEST_F(Datagrams, RubbishIsNoDatagram) {
  SharedConduit conduit = make_conduit(1);
  RingWriter writer = conduit.first.request_writer();
  DatagramReceiver broken(std::move(conduit.second), PeerBell{&end.doorbell, 0});
  auto* record = reinterpret_cast<RecordHead*>(writer.reserve(1));
  writer.publish(1, kDatagram, 0);
  record->extent = 0;
  EXPECT_TRUE(broken.has_datagram());
  broken.take(10, [](const DatagramRecord&, std::span<const std::byte>) { ADD_FAILURE(); });
  EXPECT_FALSE(broken.has_datagram());
}

}  // namespace
}  // namespace verbena::local
