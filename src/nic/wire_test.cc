// SPDX-License-Identifier: MIT
// Queue pairs of this process that reach each other by RoCEv2 on the loopback interface, whatever
// way the environment asks for.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/sharing.h"
#include "nic/test_world.h"
#include "nic/wire_nic.h"
#include "nic/wire_qp.h"
#include "port/port.h"
#include "wire/bytes.h"
#include "wire/datagram.h"

namespace verbena::nic {
namespace {

using queues::Completion;
using queues::SendOpcode;
using queues::Status;

// Another process of the machine may hold the port: another user's, or the kernel's rxe.
class Wire : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = Nic::current().start_engine();
    ASSERT_TRUE(engine.has_value());
    if (Nic::current().sharing().policy().path != Path::kWire) {
      GTEST_SKIP() << "only with VERBENA_PATH=wire, which the test Environment.* sets";
    }
    wire = (*engine)->wire_for((*engine)->control().first_slot());
    ASSERT_NE(wire, nullptr) << "UDP port 4791 is not to be had";
  }
  WireNic* wire = nullptr;
};

struct Pair {
  explicit Pair(qp::QpType type) : one(world, type), other(world, type) {
    one.timeout = other.timeout = 14;
    one.ready(other.number());
    other.ready(one.number());
  }
  World world;
  Node one;
  Node other;
};

std::vector<int> sockets_of_the_port() {
  std::vector<int> found;
  for (int fd = 3; fd < 1 << 16; ++fd) {
    sockaddr_in6 name{};
    socklen_t size = sizeof name;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) continue;
    const bool is_ip = name.sin6_family == AF_INET6 || name.sin6_family == AF_INET;
    if (is_ip && std::bit_cast<wire::be16>(name.sin6_port).value() == port::kRocePort)
      found.push_back(fd);
  }
  return found;
}

TEST_F(Wire, CarriesAllThatAReliableConnectionDoes) {
  Pair pair(qp::QpType::kRc);
  EXPECT_NE(pair.one.qp->wire(), nullptr);
  EXPECT_EQ(pair.one.qp->ring(), nullptr);
  // No two packets of these sizes have the same bytes.
  for (std::size_t i = 0; i < pair.one.memory.size(); ++i)
    pair.one.memory[i] = static_cast<std::uint8_t>(1 + i % 251);
  pair.other.receive(1000, 5000);
  ASSERT_TRUE(pair.one.post(SendOpcode::kSend, pair.other, 1000, 5000).has_value());
  ASSERT_TRUE(pair.one.post(SendOpcode::kWrite, pair.other, 100'000, 300'000).has_value());
  for (const Completion& each : pair.one.wait(2))
    EXPECT_EQ(each.status, Status::kSuccess);
  EXPECT_EQ(pair.other.wait(1).at(0).status, Status::kSuccess);
  const auto has_come = [&](std::ptrdiff_t from, std::ptrdiff_t to) {
    const auto sent = pair.one.memory.begin();
    return std::equal(sent + from, sent + to, pair.other.memory.begin() + from);
  };
  EXPECT_TRUE(has_come(1000, 6000));
  EXPECT_TRUE(has_come(100'000, 400'000));
  EXPECT_EQ(pair.other.memory[400'000], 0);
  ASSERT_TRUE(pair.other.post(SendOpcode::kRead, pair.one, 500'000, 100'001).has_value());
  EXPECT_EQ(pair.other.wait(1).at(0).status, Status::kSuccess);
  EXPECT_TRUE(has_come(500'000, 600'001));
}

// Of a stream each train waits in memory of ours until the peer has read it.
TEST_F(Wire, SendsLongMessagesWithoutACopyAndNoneOverAnother) {
  if (!wire->port().limits().sends_uncopied) GTEST_SKIP() << "this system sends no pages";
  Pair pair(qp::QpType::kRc);
  constexpr std::uint32_t kMessage = 300'000;
  const std::uint64_t before = wire->port().counters()[port::Count::kSentUncopied];
  for (unsigned round = 0; round < 60; ++round) {
    for (std::uint32_t i = 0; i < kMessage; ++i)
      pair.one.memory[i] = static_cast<std::uint8_t>(round + i % 251);
    ASSERT_TRUE(pair.one.post(SendOpcode::kWrite, pair.other, 0, kMessage).has_value());
    ASSERT_EQ(pair.one.wait(1).at(0).status, Status::kSuccess);
    ASSERT_TRUE(std::equal(pair.one.memory.begin(), pair.one.memory.begin() + kMessage,
                           pair.other.memory.begin()))
        << round;
  }
  EXPECT_GT(wire->port().counters()[port::Count::kSentUncopied] - before, 60u);
}

TEST_F(Wire, CarriesUnreliableMessagesToAReceiverThatIsSlow) {
  Pair pair(qp::QpType::kUc);
  constexpr std::uint32_t kMessage = 1 << 20;
  constexpr unsigned kCount = 64;  // more than any receive buffer holds
  for (unsigned i = 0; i < kCount; ++i)
    pair.other.receive(0, kMessage);
  for (unsigned i = 0; i < kCount; ++i)
    ASSERT_TRUE(pair.one.post(SendOpcode::kSend, pair.other, 0, kMessage).has_value());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (const Completion& each : pair.other.wait(kCount))
    EXPECT_EQ(each.status, Status::kSuccess);
}

TEST_F(Wire, FailsAnOperationThatTheResponderRefuses) {
  Pair pair(qp::QpType::kRc);
  const Sge local = pair.one.sge(0, 100);
  qp::SendRequest request;
  request.opcode = SendOpcode::kWrite;
  request.remote_address = pair.other.address();
  request.remote_key = MemoryKey{pair.other.mr->key.value ^ 0x100};
  request.sges = {&local, 1};
  std::size_t posted = 0;
  ASSERT_TRUE(post_send(*pair.one.qp, {&request, 1}, posted).has_value());
  EXPECT_EQ(pair.one.wait(1).at(0).status, Status::kRemoteAccess);
}

TEST_F(Wire, EndsWithARetryErrorWhenThePeerIsGone) {
  World world;
  Node one(world, qp::QpType::kRc);
  one.timeout = 8;  // a millisecond
  {
    Node other(world, qp::QpType::kRc);
    one.ready(other.number());
    other.ready(one.number());
  }
  const Sge local = one.sge(0, 100);
  qp::SendRequest request;
  request.opcode = SendOpcode::kSend;
  request.sges = {&local, 1};
  std::size_t posted = 0;
  ASSERT_TRUE(post_send(*one.qp, {&request, 1}, posted).has_value());
  EXPECT_EQ(one.wait(1).at(0).status, Status::kRetryExceeded);
}

// The thread of the wire does all of it.
TEST_F(Wire, WorksWhileNobodyPolls) {
  Pair pair(qp::QpType::kRc);
  std::ranges::fill(pair.one.memory, std::uint8_t{9});
  ASSERT_TRUE(pair.one.post(SendOpcode::kWrite, pair.other, 0, 200'000).has_value());
  const Instant limit = clock_now() + Duration::seconds(10);
  const auto* const last = static_cast<volatile std::uint8_t*>(&pair.other.memory[199'999]);
  while (*last != 9 && clock_now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(*last, 9);
}

TEST_F(Wire, GetsItsSocketBackWhenTheProgramClosesIt) {
  // The watcher sleeps without an end while there are no connections.
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  Pair pair(qp::QpType::kRc);
  const std::vector<int> all = sockets_of_the_port();
  EXPECT_FALSE(all.empty());
  for (const int fd : all)
    close(fd);
  ASSERT_TRUE(pair.one.post(SendOpcode::kWrite, pair.other, 0, 200'000).has_value());
  EXPECT_EQ(pair.one.wait(1).at(0).status, Status::kSuccess);
}

// As it comes from another process of this host, to whose socket the kernel brought it.
TEST_F(Wire, TakesAPacketThatIsHandedOver) {
  constexpr std::size_t kPayload = 4096;
  Pair pair(qp::QpType::kUc);
  pair.other.receive(0, kPayload);
  port::Received packet;
  packet.from = packet.to = pair.world.context->gids().at(0);
  packet.source_port = 50'000;
  wire::Head head;
  head.opcode = wire::Opcode::of(wire::Service::kUc, wire::Code::kSendOnly);
  head.dest_qp = pair.other.number();
  std::vector<std::byte> bytes(wire::datagram_bytes(head.opcode, kPayload));
  wire::DatagramBuilder builder(bytes, head, kPayload);
  std::ranges::fill(builder.payload(), std::byte{3});
  wire::FlowIcrc icrc(WireFlows::flow_of(packet));
  builder.finish(icrc);
  packet.payload = bytes;
  const std::vector<std::byte> message = WireNic::wrap(packet);
  ASSERT_FALSE(message.empty());
  ASSERT_TRUE(WireNic::is_handed_over(message));
  wire->take_handed_over(message);
  EXPECT_EQ(pair.other.wait(1).at(0).status, Status::kSuccess);
  EXPECT_EQ(pair.other.memory[kPayload - 1], 3);
}

TEST_F(Wire, LeavesNoSocketToAForkedChild) {
  const Pair pair(qp::QpType::kUc);
  EXPECT_FALSE(sockets_of_the_port().empty());
  const pid_t child = fork();
  if (child == 0) _exit(sockets_of_the_port().empty() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The NIC of a process reads the environment once, so these run again in a process of their own.
// Where a socket is full and has room again a moment later no answer comes that would give an
// unreliable queue pair another turn.
class FullSocket : public Wire, public ::testing::WithParamInterface<qp::QpType> {
 protected:
  void SetUp() override {
    Wire::SetUp();
    if (!IsSkipped() && !std::getenv("VERBENA_FAULT"))
      GTEST_SKIP() << "only with VERBENA_FAULT=full=1%, which the test Environment.* sets";
  }
};

INSTANTIATE_TEST_SUITE_P(, FullSocket, ::testing::Values(qp::QpType::kRc, qp::QpType::kUc));

TEST_P(FullSocket, SendsAListToItsEnd) {
  Pair pair(GetParam());
  constexpr std::size_t kList = 200;
  std::vector<Sge> pieces(kList);
  std::vector<qp::SendRequest> list(kList);
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < kList; ++i) {
      pieces[i] = pair.one.sge(64 * i, 16);
      list[i] = {.wr_id = i,
                 .opcode = SendOpcode::kWrite,
                 .remote_address = pair.other.address() + 64 * i,
                 .remote_key = pair.other.mr->key,
                 .sges = {&pieces[i], 1}};
    }
    std::size_t posted = 0;
    ASSERT_TRUE(post_send(*pair.one.qp, list, posted).has_value());
    ASSERT_EQ(pair.one.wait(kList).size(), kList) << "in round " << round;
  }
}

void run_again(const char* tests, const char* fault) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("VERBENA_PATH", "wire", 1);
    if (fault) setenv("VERBENA_FAULT", fault, 1);
    unsetenv("GTEST_OUTPUT");
    unsetenv("GTEST_TOTAL_SHARDS");
    execl("/proc/self/exe", "nic_test", tests, nullptr);
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Environment, RunsTheTestsOfTheWire) {
  const char* const mode = std::getenv("VERBENA_PATH");
  if (mode && std::string(mode) == "wire") GTEST_SKIP() << "this is that process";
  run_again("--gtest_filter=Wire.*", nullptr);
  run_again("--gtest_filter=*FullSocket.*", "full=1%");
}

}  // namespace
}  // namespace verbena::nic
