// SPDX-License-Identifier: MIT
// One connection to a process, and shared receive queues of all processes beside it: a target of
// one of them brings each request to the process whose queue it names
// (docs/decisions/0019-xrc-targets-relay-between-processes.md).
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "xrc_processes.h"

namespace verbena::verbs::testing {
namespace {

// A process that has a shared receive queue.
class Owner {
 public:
  explicit Owner(int file, const char* scene = "HaveAQueue") : process_(scene) {
    process_.talk().say(0, file);
    auto first = process_.talk().hear();
    if (!first) return;
    queue = static_cast<std::uint32_t>(first->number);
    bytes.emplace(std::move(first->fd));
    address = process_.talk().number();
    key = static_cast<std::uint32_t>(process_.talk().number());
  }
  OtherProcess& process() { return process_; }
  void post(std::uint32_t length) {
    tell(QueueTask::kPost, length);
    EXPECT_EQ(1u, process_.talk().number());
  }
  struct Received {
    ibv_wc_status status;
    std::uint32_t length;
    std::uint32_t qp;
    std::uint32_t immediate;
  };
  Received next() {
    tell(QueueTask::kNext);
    return heard();
  }
  void wait_for_event() {
    tell(QueueTask::kWaitFor);
    EXPECT_EQ(1u, process_.talk().number());
  }
  Received heard() {
    const std::uint64_t first = process_.talk().number();
    const std::uint64_t second = process_.talk().number();
    return {static_cast<ibv_wc_status>(upper_of(first)), lower_of(first), upper_of(second),
            lower_of(second)};
  }
  bool has_nothing() {
    tell(QueueTask::kNothing);
    return process_.talk().number() == 1;
  }
  void leave_when_written(std::uint32_t at) { tell(QueueTask::kLeave, at); }
  bool ends_well() {
    tell(QueueTask::kEnd);
    return process_.ended_well();
  }

  std::uint32_t queue = 0;
  std::optional<SharedBytes> bytes;
  std::uint64_t address = 0;
  std::uint32_t key = 0;

 private:
  void tell(QueueTask task, std::uint32_t number = 0) {
    process_.talk().say(in_one(static_cast<std::uint32_t>(task), number));
  }

  OtherProcess process_;
};

// We ask, another process has the target, and others the queues.
class XrcRelay : public XrcProcesses {
 protected:
  void SetUp() override {
    XrcProcesses::SetUp();
    ASSERT_TRUE(file);
    large.resize(SharedBytes::kSize);
    std::iota(large.begin(), large.end(), std::uint8_t{1});
    region.reset(ibv_reg_mr(pd.get(), large.data(), large.size(), kEveryAccess));
    initiator = make_initiator();
    ASSERT_TRUE(region && initiator);
    other.emplace("HaveATarget");
    other->talk().say(0, file.get());
    target = static_cast<std::uint32_t>(other->talk().number());
    other->talk().say(initiator->qp_num);
    ASSERT_EQ(1u, other->talk().number());
    connect_to(initiator.get(), target);
  }
  void end(ibv_qp_state expected = IBV_QPS_RTS) {
    other->talk().say(0);
    EXPECT_EQ(expected, static_cast<ibv_qp_state>(other->talk().number()));
    other->talk().say(0);
    EXPECT_TRUE(other->ended_well());
  }

  ibv_sge part(std::size_t offset, std::uint32_t length) {
    return {.addr = reinterpret_cast<std::uintptr_t>(large.data()) + offset,
            .length = length,
            .lkey = region->lkey};
  }
  void post_send(std::uint32_t queue, std::size_t offset, std::uint32_t length,
                 std::optional<std::uint32_t> immediate = {}) {
    ibv_sge from = part(offset, length);
    ibv_send_wr request = send(from, 1, immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND);
    request.imm_data = immediate.value_or(0);
    post(initiator.get(), request, queue);
  }
  void post_remote(ibv_wr_opcode opcode, const Owner& owner, std::uint32_t at, std::size_t offset,
                   std::uint32_t length) {
    ibv_sge local = part(offset, length);
    ibv_send_wr request = send(local, 2, opcode);
    request.wr.rdma.remote_addr = owner.address + at;
    request.wr.rdma.rkey = owner.key;
    request.imm_data = 77;
    post(initiator.get(), request, owner.queue);
  }
  void post_atomic(ibv_wr_opcode opcode, const Owner& owner, std::uint64_t compare_add,
                   std::uint64_t swap = 0) {
    ibv_sge local = part(0, 8);
    ibv_send_wr request = send(local, 3, opcode);
    request.wr.atomic.remote_addr = owner.address;
    request.wr.atomic.rkey = owner.key;
    request.wr.atomic.compare_add = compare_add;
    request.wr.atomic.swap = swap;
    post(initiator.get(), request, owner.queue);
  }
  std::uint64_t value_here() const {
    std::uint64_t value = 0;
    std::memcpy(&value, large.data(), sizeof value);
    return value;
  }
  bool are_equal(const Owner& owner, std::size_t theirs, std::size_t ours, std::size_t length) {
    return std::memcmp(owner.bytes->data + theirs, large.data() + ours, length) == 0;
  }

  const UniqueFd file{memfd_create("xrc", MFD_CLOEXEC)};
  std::vector<std::uint8_t> large;
  Own<ibv_mr> region;
  Own<ibv_qp> initiator;
  std::optional<OtherProcess> other;
  std::uint32_t target = 0;
};

TEST_F(XrcRelay, AMessageTakesAReceiveOfTheProcessWhoseQueueItNames) {
  Owner owner(file.get());
  owner.post(64);
  post_send(owner.queue, 5, 20, 1234);
  const Owner::Received got = owner.next();
  EXPECT_EQ(IBV_WC_SUCCESS, got.status);
  EXPECT_EQ(20u, got.length);
  EXPECT_EQ(1234u, got.immediate);
  EXPECT_EQ(target, got.qp) << "of the connection, not of what is behind";
  EXPECT_TRUE(are_equal(owner, 0, 5, 20));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, LongMessagesArriveWhole) {
  Owner owner(file.get());
  for (const std::uint32_t length : {1U, 1024U, 1025U, 16384U, 16385U, 200'000U}) {
    owner.post(length + 3);
    post_send(owner.queue, 7, length);
    const Owner::Received got = owner.next();
    EXPECT_EQ(IBV_WC_SUCCESS, got.status);
    EXPECT_EQ(length, got.length);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  }
  EXPECT_TRUE(are_equal(owner, 1 + 1024 + 1025 + 16384 + 16385 + 15, 7, 200'000));
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, AWaitingProcessIsWoken) {
  Owner owner(file.get());
  for (std::uint32_t i = 0; i < 4; ++i) {
    owner.post(64);
    owner.wait_for_event();
    post_send(owner.queue, 0, 8, i);
    EXPECT_EQ(i, owner.heard().immediate);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  }
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, RequestsForSeveralProcessesKeepTheirOrder) {
  Owner first(file.get());
  Owner second(file.get());
  constexpr std::uint32_t kRounds = 40;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    // What one process was written is there when the other one is told.
    large[0] = large[1] = static_cast<std::uint8_t>(round + 1);
    Owner& written = round % 2 == 0 ? first : second;
    Owner& told = round % 2 == 0 ? second : first;
    told.post(16);
    post_remote(IBV_WR_RDMA_WRITE, written, SharedBytes::kSize - 1, 0, 1);
    post_send(told.queue, 0, 2, round);
    EXPECT_EQ(round, told.next().immediate);
    EXPECT_EQ(static_cast<std::uint8_t>(round + 1), written.bytes->data[SharedBytes::kSize - 1]);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  }
  EXPECT_TRUE(first.ends_well());
  EXPECT_TRUE(second.ends_well());
  end();
}

TEST_F(XrcRelay, ManyAtATimeArriveInOrder) {
  Owner first(file.get());
  Owner second(file.get());
  constexpr std::uint32_t kEach = 7;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    first.post(5000);
    second.post(5000);
  }
  for (std::uint32_t i = 0; i < 2 * kEach; ++i)
    post_send(i % 3 == 0 || i >= kEach + 4 ? first.queue : second.queue, i, 5000, i);
  for (std::uint32_t i = 0; i < 2 * kEach; ++i)
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status) << i;
  std::uint32_t of_first = 0;
  std::uint32_t of_second = 0;
  for (std::uint32_t i = 0; i < 2 * kEach; ++i) {
    const bool is_first = i % 3 == 0 || i >= kEach + 4;
    Owner& owner = is_first ? first : second;
    EXPECT_EQ(i, owner.next().immediate);
    EXPECT_TRUE(are_equal(owner, 5000 * (is_first ? of_first++ : of_second++), i, 5000));
  }
  EXPECT_TRUE(first.ends_well());
  EXPECT_TRUE(second.ends_well());
  end();
}

TEST_F(XrcRelay, WithoutAReceiveItIsTriedAgain) {
  Owner owner(file.get());
  post_send(owner.queue, 0, 3000, 1);
  post_send(owner.queue, 3000, 3000, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(no_completion());
  owner.post(4000);
  EXPECT_EQ(1u, owner.next().immediate);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  owner.post(4000);
  EXPECT_EQ(2u, owner.next().immediate);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_TRUE(are_equal(owner, 4000, 3000, 3000));
  EXPECT_TRUE(owner.has_nothing()) << "each came once";
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, MemoryOfTheOtherProcessIsWrittenAndRead) {
  Owner owner(file.get());
  for (const std::uint32_t length : {1U, 1024U, 5000U, 300'000U}) {
    post_remote(IBV_WR_RDMA_WRITE, owner, 100, 11, length);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
    EXPECT_TRUE(are_equal(owner, 100, 11, length));
    post_remote(IBV_WR_RDMA_READ, owner, 100, 400'000, length);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
    EXPECT_TRUE(are_equal(owner, 100, 400'000, length));
    std::ranges::fill(std::span(large).subspan(400'000, length), std::uint8_t{0});
  }
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, AWriteWithImmediateWaitsForItsReceive) {
  Owner owner(file.get());
  post_remote(IBV_WR_RDMA_WRITE_WITH_IMM, owner, 50'000, 0, 40'000);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(no_completion());
  owner.post(1);
  const Owner::Received got = owner.next();
  EXPECT_EQ(77u, got.immediate);
  EXPECT_EQ(40'000u, got.length);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_TRUE(are_equal(owner, 50'000, 0, 40'000));
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, AtomicsAreExecutedThereAndOnce) {
  Owner owner(file.get());
  for (std::uint64_t i = 0; i < 10; ++i) {
    post_atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, owner, 3);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
    EXPECT_EQ(3 * i, value_here());
  }
  post_atomic(IBV_WR_ATOMIC_CMP_AND_SWP, owner, 30, 99);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(30u, value_here());
  std::uint64_t there = 0;
  std::memcpy(&there, owner.bytes->data, sizeof there);
  EXPECT_EQ(99u, there);
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, AllKindsAtATimeComeBackRight) {
  Owner owner(file.get());
  for (std::uint32_t i = 0; i < 3; ++i)
    owner.post(3000);
  post_remote(IBV_WR_RDMA_WRITE, owner, 500'000, 0, 100'000);
  post_remote(IBV_WR_RDMA_READ, owner, 500'000, 200'000, 100'000);
  post_send(owner.queue, 0, 3000, 1);
  post_remote(IBV_WR_RDMA_READ, owner, 500'000, 300'000, 3000);
  post_send(owner.queue, 0, 2999, 2);
  post_remote(IBV_WR_RDMA_READ, owner, 500'000, 400'000, 70'000);
  post_send(owner.queue, 0, 2998, 3);
  for (int i = 0; i < 7; ++i)
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status) << i;
  for (std::uint32_t i = 1; i <= 3; ++i)
    EXPECT_EQ(i, owner.next().immediate);
  EXPECT_EQ(0, std::memcmp(large.data(), large.data() + 200'000, 100'000));
  EXPECT_EQ(0, std::memcmp(large.data(), large.data() + 300'000, 3000));
  EXPECT_EQ(0, std::memcmp(large.data(), large.data() + 400'000, 70'000));
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, AWrongKeyIsRefused) {
  Owner owner(file.get());
  owner.key ^= 0x5500;
  post_remote(IBV_WR_RDMA_WRITE, owner, 0, 0, 8);
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, next_completion().status);
  EXPECT_EQ(IBV_QPS_ERR, state_of(initiator.get()));
  EXPECT_TRUE(owner.ends_well());
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, AReadByAWrongKeyIsRefused) {
  Owner owner(file.get());
  owner.key ^= 0x5500;
  post_remote(IBV_WR_RDMA_READ, owner, 0, 0, 8);
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, next_completion().status);
  EXPECT_TRUE(owner.ends_well());
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, AReceiveThatIsTooShortFailsOnBothSides) {
  Owner owner(file.get());
  owner.post(4000);
  post_send(owner.queue, 0, 4001);
  EXPECT_EQ(IBV_WC_LOC_LEN_ERR, owner.next().status);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
  EXPECT_TRUE(owner.ends_well());
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, AQueueThatIsNotThereIsRefused) {
  Owner owner(file.get());
  post_send(owner.queue ^ 1, 0, 8);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
  EXPECT_EQ(IBV_QPS_ERR, state_of(initiator.get()));
  EXPECT_TRUE(owner.has_nothing());
  EXPECT_TRUE(owner.ends_well());
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, AQueueOfAnotherDomainIsRefused) {
  const UniqueFd another(memfd_create("xrc", MFD_CLOEXEC));
  Owner owner(another.get());
  owner.post(64);
  post_send(owner.queue, 0, 8);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
  EXPECT_TRUE(owner.has_nothing());
  EXPECT_TRUE(owner.ends_well());
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, AProcessThatStandsIsWaitedFor) {
  Owner owner(file.get());
  owner.post(64);
  owner.post(64);
  post_send(owner.queue, 0, 8, 1);
  EXPECT_EQ(1u, owner.next().immediate);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  owner.process().stop();
  post_send(owner.queue, 0, 8, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(no_completion());
  owner.process().go_on();
  EXPECT_EQ(2u, owner.next().immediate);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_TRUE(owner.has_nothing()) << "once, however often it was sent";
  EXPECT_TRUE(owner.ends_well());
  end();
}

TEST_F(XrcRelay, WhoDiesAmidTrafficFailsTheConnection) {
  Owner owner(file.get());
  owner.post(100'000);
  post_send(owner.queue, 0, 100'000);
  EXPECT_EQ(IBV_WC_SUCCESS, owner.next().status);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  owner.process().stop();
  for (int i = 0; i < 8; ++i)
    post_remote(IBV_WR_RDMA_WRITE, owner, 0, 0, 100'000);
  owner.process().kill();
  // Its queue is gone, or with it what had been passed on.
  const ibv_wc_status status = next_completion().status;
  EXPECT_TRUE(status == IBV_WC_REM_OP_ERR || status == IBV_WC_REM_INV_REQ_ERR) << status;
  for (int i = 1; i < 8; ++i)
    EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, next_completion().status);
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, WhoDiesBeforeItIsFoundHasNoQueue) {
  Owner owner(file.get());
  owner.post(64);
  owner.process().stop();
  post_send(owner.queue, 0, 64);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(no_completion());
  owner.process().kill();
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, TheTargetsDeathIsSilence) {
  Owner owner(file.get());
  owner.post(64);
  owner.post(64);
  post_send(owner.queue, 0, 8);
  EXPECT_EQ(IBV_WC_SUCCESS, owner.next().status);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  other->kill();
  post_send(owner.queue, 0, 8);
  EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, next_completion().status);
  // What executed for it is gone without a trace.
  EXPECT_TRUE(owner.has_nothing());
  EXPECT_TRUE(owner.ends_well());
}

// What executes there for both queues was asked for by the one that goes.
TEST_F(XrcRelay, AHandleThatIsClosedTakesNothingFromAnother) {
  Owner owner(file.get(), "HaveTwoQueues");
  const auto first = static_cast<std::uint32_t>(owner.process().talk().number());
  ibv_sge nothing = part(0, 0);
  post(initiator.get(), send(nothing, 1, IBV_WR_RDMA_WRITE), first);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  owner.leave_when_written(SharedBytes::kSize / 2);
  constexpr int kWrites = 12;
  for (int i = 0; i < kWrites; ++i)
    post_remote(IBV_WR_RDMA_WRITE, owner, 0, 0, SharedBytes::kSize);
  for (int i = 0; i < kWrites; ++i)
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status) << i;
  EXPECT_EQ(1u, owner.process().talk().number());
  EXPECT_TRUE(are_equal(owner, 0, 0, SharedBytes::kSize));
  // And what comes when it is gone.
  owner.post(64);
  post_send(owner.queue, 0, 20, 7);
  EXPECT_EQ(7u, owner.next().immediate);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  post_send(first, 0, 20);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
  EXPECT_TRUE(owner.ends_well());
  end(IBV_QPS_ERR);
}

TEST_F(XrcRelay, AQueueThatComesLaterIsFound) {
  {
    Owner before(file.get());
    before.post(64);
    post_send(before.queue, 0, 8, 1);
    EXPECT_EQ(1u, before.next().immediate);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
    EXPECT_TRUE(before.ends_well());
  }
  Owner after(file.get());
  after.post(64);
  post_send(after.queue, 0, 8, 2);
  EXPECT_EQ(2u, after.next().immediate);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_TRUE(after.ends_well());
  end();
}

}  // namespace
}  // namespace verbena::verbs::testing
