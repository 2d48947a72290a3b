// SPDX-License-Identifier: MIT
#include "port/connected_receiver.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>

#include "host/raw_calls.h"
#include "port/socket_group.h"
#include "port/test_packets.h"
#include "port/udp_channel.h"

namespace verbena::port {
namespace {

std::optional<JoinLock> wait_for_lock() {
  std::optional<JoinLock> lock;
  while (!(lock = JoinLock::try_take()))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return lock;
}

// A group of three, of which the first one talks with a peer. The parameter: IPv4.
class ConversationTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr SlotNumber kSeven{7};

  void SetUp() override {
    if (!GetParam() && !has_ipv6_sockets()) GTEST_SKIP() << "this system has no IPv6";
    group = make_group(number, 3);
    steering.set_positions(std::array{kFive, kSix, kSeven, kHere});
    ASSERT_TRUE(attach_steering(group[0].get(), steering.program(0)));
    ASSERT_TRUE(port.add_receiver(kFive, std::move(group[0])));
    ASSERT_TRUE(others.add_receiver(kSix, std::move(group[1])));
    ASSERT_TRUE(others.add_receiver(kSeven, std::move(group[2])));
    for (UdpPort* const each : {&port, &others})
      each->tell({.destinations = false, .marks = false});
    peer = open();
    stranger = open();
    ASSERT_TRUE(peer && stranger);
  }
  std::unique_ptr<UdpChannel> open() { return UdpChannel::open(route, number, counters); }
  static bool send(UdpChannel& from, std::uint32_t which, SlotNumber to = kFive) {
    return from.send(make_packet(to, 60, which));
  }
  // What comes like the next packet of the peer.
  Received like() const {
    return {.from = here, .to = here, .interface = 1, .source_port = peer->source_port()};
  }
  // Somebody else may hold the lock just now, for another port as well.
  bool converse() {
    for (int i = 0; i < 1000; ++i) {
      if (port.converse(like())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  std::vector<std::uint32_t> numbers(Port& from, std::size_t least) {
    std::vector<std::uint32_t> all;
    for (const Kept& each : drain(from, least))
      all.push_back(each.number());
    return all;
  }

  const std::uint16_t number = free_port();
  const Gid here = GetParam() ? kLoopback4 : kLoopback6;
  const Route route{.from = here, .to = here, .slot = kFive};
  Steering steering;
  std::vector<UniqueFd> group;
  UdpPort port{{.port = number}};
  UdpPort others{{.port = number}};
  Counters counters;
  std::unique_ptr<UdpChannel> peer;
  std::unique_ptr<UdpChannel> stranger;
};
INSTANTIATE_TEST_SUITE_P(Families, ConversationTest, ::testing::Bool(),
                         [](const auto& family) { return family.param ? "Ipv4" : "Ipv6"; });

TEST_P(ConversationTest, TakesWhatThePeerSends) {
  ASSERT_TRUE(converse());
  ASSERT_EQ(port.descriptors().size(), 2u);
  for (std::uint32_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(send(*peer, i));
    std::array<std::byte, 100> bytes;
    if (i == 0) {  // it is there, and nowhere else
      EXPECT_EQ(recv(port.descriptors()[0], bytes.data(), bytes.size(), MSG_PEEK), 60);
      EXPECT_EQ(recv(port.descriptors()[1], bytes.data(), bytes.size(), MSG_PEEK), -1);
    }
    const auto came = drain(port, 1);
    ASSERT_EQ(came.size(), 1u);
    EXPECT_EQ(came[0].bytes, make_packet(kFive, 60, i));
    EXPECT_EQ(came[0].head.from, here);
    EXPECT_EQ(came[0].head.to, here);
    EXPECT_EQ(came[0].head.source_port, peer->source_port());
  }
  EXPECT_EQ(port.counters()[Count::kReceivedPackets], 300u);
  EXPECT_EQ(port.counters()[Count::kReceivedBytes], 300u * 60);
}

TEST_P(ConversationTest, WhatCameBeforeComesFirst) {
  for (std::uint32_t i = 0; i < 3; ++i)
    ASSERT_TRUE(send(*peer, i));
  ASSERT_TRUE(converse());
  for (std::uint32_t i = 3; i < 6; ++i)
    ASSERT_TRUE(send(*peer, i));
  EXPECT_EQ(numbers(port, 6), (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
}

TEST_P(ConversationTest, OthersComeAsEver) {
  ASSERT_TRUE(converse());
  for (std::uint32_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(send(*peer, i));
    ASSERT_EQ(numbers(port, 1).size(), 1u);
  }
  ASSERT_TRUE(send(*stranger, 2000));
  const auto came = drain(port, 1);
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].head.source_port, stranger->source_port());
  send_packets(port, route, 20, 700);
  EXPECT_EQ(drain(port, 20).size(), 20u);
}

// The kernel steers by places in the group.
TEST_P(ConversationTest, LeavesTheGroupInItsOrder) {
  const auto expect_all = [&] {
    for (const SlotNumber slot : {kFive, kSix, kSeven})
      ASSERT_TRUE(send(*stranger, slot.value, slot));
    EXPECT_EQ(numbers(port, 1), std::vector<std::uint32_t>{5});
    auto there = numbers(others, 2);
    std::ranges::sort(there);
    EXPECT_EQ(there, (std::vector<std::uint32_t>{6, 7}));
    EXPECT_EQ(others.counters()[Count::kDroppedForeign], 0u);
    EXPECT_EQ(port.counters()[Count::kDroppedForeign], 0u);
  };
  expect_all();
  ASSERT_TRUE(converse());
  expect_all();
  // Who joins gets the next place.
  UdpPort newcomer{{.port = number}};
  ASSERT_TRUE(newcomer.add_receiver(kHere, std::move(make_group(number, 1)[0])));
  ASSERT_TRUE(send(*stranger, 8, kHere));
  EXPECT_EQ(numbers(newcomer, 1), std::vector<std::uint32_t>{8});
  expect_all();
}

TEST_P(ConversationTest, WhatIsForAnotherSlotIsNotTaken) {
  ASSERT_TRUE(converse());
  ASSERT_TRUE(send(*peer, 1, kSix));
  ASSERT_TRUE(send(*peer, 2));
  EXPECT_EQ(numbers(port, 1), std::vector<std::uint32_t>{2});
  EXPECT_EQ(port.counters()[Count::kDroppedNobody], 1u);
}

TEST_P(ConversationTest, IsOverWhenNothingComesForLong) {
  ASSERT_TRUE(converse());
  EXPECT_FALSE(port.converse(like())) << "one at a time";
  std::array<Received, 4> some;
  for (int i = 0; i < 300'000; ++i)
    ASSERT_EQ(port.receive(some, {}), 0u);
  EXPECT_TRUE(port.is_conversation_over());
  ASSERT_TRUE(send(*peer, 0));
  EXPECT_EQ(numbers(port, 1), std::vector<std::uint32_t>{0}) << "until it is ended";
  port.end_conversation();
  ASSERT_EQ(port.descriptors().size(), 1u);
  ASSERT_TRUE(send(*peer, 1));
  EXPECT_EQ(numbers(port, 1), std::vector<std::uint32_t>{1});
  EXPECT_TRUE(converse()) << "and begins again";
  EXPECT_FALSE(port.is_conversation_over());
}

// From a port that sends everything: then it was none.
TEST_P(ConversationTest, IsOverWhenALongPacketComes) {
  ASSERT_TRUE(converse());
  ASSERT_TRUE(peer->send(make_packet(kFive, 512, 1)));
  EXPECT_EQ(numbers(port, 1), std::vector<std::uint32_t>{1});
  EXPECT_FALSE(port.is_conversation_over());
  ASSERT_TRUE(peer->send(make_packet(kFive, 4096 + 16, 2)));
  const auto came = drain(port, 1);
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].bytes, make_packet(kFive, 4096 + 16, 2));
  EXPECT_TRUE(port.is_conversation_over());
}

TEST_P(ConversationTest, AllIsLookedAtWhereOneAsksForIt) {
  ASSERT_TRUE(converse());
  for (std::uint32_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(send(*peer, i));
    ASSERT_EQ(numbers(port, 1).size(), 1u);
  }
  std::array<Received, 4> some;
  for (std::uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(send(*stranger, i));
    port.look_everywhere();
    ASSERT_EQ(port.receive(some, {}), 1u) << i;
  }
}

TEST_P(ConversationTest, IsToldOfBeforeAnythingComes) {
  static int told;
  told = -1;
  const auto hear = [](int fd) {
    told = fd;
    EXPECT_EQ(bound_port(fd), 0);
  };
  std::unique_ptr<ConnectedReceiver> receiver;
  while (!(receiver = ConnectedReceiver::open(like(), number, hear)))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(told, receiver->fd());
}

TEST_P(ConversationTest, BeginsWhenNobodyJoins) {
  const auto lock = wait_for_lock();
  EXPECT_FALSE(port.converse(like()));
  EXPECT_EQ(port.descriptors().size(), 1u);
}

TEST_P(ConversationTest, IsWithAddressesThatTheSystemChooses) {
  const auto lock = wait_for_lock();  // no other test's failure is looked at
  Received other = like();
  other.to = ipv4(127, 0, 0, 7);
  const auto fd = make_receiver({.buffer = 0, .offload = false});
  ASSERT_TRUE(fd && bind_receiver(*fd, number));
  EXPECT_FALSE(connect_receiver(*fd, number, other));
  EXPECT_TRUE(connect_receiver(*fd, number, like()));
  host::raw::close(*fd);
}

TEST_P(ConversationTest, DropsWhatIsTooLong) {
  ASSERT_TRUE(converse());
  ASSERT_TRUE(peer->send(make_packet(kFive, ConnectedReceiver::kBytesMax + 1, 1)));
  ASSERT_TRUE(peer->send(make_packet(kFive, ConnectedReceiver::kBytesMax, 2)));
  EXPECT_EQ(numbers(port, 1), std::vector<std::uint32_t>{2});
  EXPECT_EQ(port.counters()[Count::kTruncated], 1u);
}

TEST_P(ConversationTest, ASocketThatTheProgramClosedIsForgotten) {
  ASSERT_TRUE(converse());
  const int taken = port.descriptors()[0];
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  ASSERT_EQ(dup3(pipe_ends[0], taken, O_CLOEXEC), taken);
  ASSERT_TRUE(send(*peer, 1));
  EXPECT_EQ(numbers(port, 1), std::vector<std::uint32_t>{1});
  EXPECT_EQ(port.check_sockets(), std::nullopt);
  EXPECT_EQ(port.descriptors().size(), 1u);
  EXPECT_EQ(fcntl(taken, F_GETFD), FD_CLOEXEC) << "it is still there";
  for (const int fd : {taken, pipe_ends[0], pipe_ends[1]})
    close(fd);
}

}  // namespace
}  // namespace verbena::port
