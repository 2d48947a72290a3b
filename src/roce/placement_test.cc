// SPDX-License-Identifier: MIT
// FLUSH and ATOMIC WRITE (IBTA vol 1, annex A19) on a reliable connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::CompletionKind;
using queues::SendOpcode;
using queues::Status;
using testing::ElementsAre;

constexpr qp::Flush kGlobally = {.length = 4096, .global_visibility = true};

struct Placement : testing::Test {
  qp::SendRequest remote(SendOpcode opcode, std::size_t offset = 0) {
    return {.opcode = opcode,
            .remote_address = world.far().address(offset),
            .remote_key = world.far().key};
  }
  void post_flush(const qp::Flush& flush, std::size_t offset = 0) {
    auto request = remote(SendOpcode::kFlush, offset);
    request.flush = flush;
    world.near().post(request, 0, 0);
  }
  void post_word(std::uint64_t value, std::size_t offset = 64) {
    std::memcpy(&world.near().memory[1024], &value, sizeof value);
    world.near().post(remote(SendOpcode::kAtomicWrite, offset), 1024, 8);
  }
  std::uint64_t word_there(std::size_t offset = 64) {
    std::uint64_t value = 0;
    std::memcpy(&value, &world.far().memory[offset], sizeof value);
    return value;
  }
  queues::Completion only() {
    world.run(kSoon);
    const auto done = world.near().poll();
    EXPECT_EQ(done.size(), 1u);
    return done.empty() ? queues::Completion{} : done.front();
  }
  TestWorld world{EndOptions{.timeout = 12}};
};

TEST_F(Placement, AnAtomicWritePutsEightBytes) {
  post_word(0x0123456789ABCDEF);
  const auto done = only();
  EXPECT_EQ(done.status, Status::kSuccess);
  EXPECT_EQ(done.kind, CompletionKind::kAtomicWrite);
  EXPECT_EQ(word_there(), 0x0123456789ABCDEF);
  EXPECT_EQ(word_there(72), 0u);
}

TEST_F(Placement, AnAtomicWriteMayBeInline) {
  const std::uint64_t value = 7;
  const Sge sge{reinterpret_cast<std::uintptr_t>(&value), sizeof value, {}};
  auto request = remote(SendOpcode::kAtomicWrite, 64);
  request.flags = queues::kInline;
  request.sges = {&sge, 1};
  ASSERT_TRUE(world.near().pair.post_send(request).has_value());
  EXPECT_EQ(only().status, Status::kSuccess);
  EXPECT_EQ(word_there(), 7u);
}

// What goes over the line, and that the answer is that of a READ of nothing.
TEST_F(Placement, BothAreAnsweredLikeAReadOfNothing) {
  std::vector<std::string> seen;
  std::vector<wire::Head> heads;
  world.link.tap = [&](int, const wire::Packet& packet) {
    seen.push_back(std::string(wire::name_of(packet.opcode)) + ", " +
                   std::to_string(packet.payload.size()));
    heads.push_back(packet);
    return true;
  };
  post_word(1);
  post_flush({.length = 77, .global_visibility = true, .whole_region = true});
  world.run(kSoon);
  EXPECT_THAT(seen, ElementsAre("RC ATOMIC WRITE, 8", "RC FLUSH, 0",
                                "RC RDMA READ Response Only, 0", "RC RDMA READ Response Only, 0"));
  EXPECT_EQ(heads[0].dma_length, 8u);
  EXPECT_EQ(heads[1].dma_length, 77u);
  EXPECT_EQ(heads[1].placement, (wire::Placement{.global_visibility = true}));
  EXPECT_EQ(heads[1].selectivity, wire::Selectivity::kRegion);
  EXPECT_EQ(heads[3].psn, heads[1].psn);
  EXPECT_EQ(heads[3].msn, wire::Msn(2));
}

TEST_F(Placement, AFlushComesBackWhenWhatWasWrittenIsThere) {
  std::memset(world.near().memory.data(), 5, 10'000);
  world.near().post(remote(SendOpcode::kWrite), 0, 10'000);
  post_flush(kGlobally);
  std::vector<queues::Completion> done;
  world.run_until(
      [&] {
        for (const queues::Completion& one : world.near().poll())
          done.push_back(one);
        return done.size() == 2;
      },
      kSoon);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[1].kind, CompletionKind::kFlush);
  EXPECT_EQ(done[1].status, Status::kSuccess);
  EXPECT_EQ(world.far().memory[9'999], std::byte{5});
}

TEST_F(Placement, AFlushOfARegionLooksAtItsKeyOnly) {
  post_flush({.global_visibility = true, .whole_region = true}, 1 << 30);
  EXPECT_EQ(only().status, Status::kSuccess);
}

TEST_F(Placement, AFlushOutsideIsRefused) {
  post_flush(kGlobally, 1 << 30);
  EXPECT_EQ(only().status, Status::kRemoteAccess);
  EXPECT_THAT(world.far().events, ElementsAre(qp::QpEvent::kAccessError));
}

TEST_F(Placement, ARegionSaysWhetherItMayBeFlushed) {
  world.far().key = world.far().add_region(memory::kLocalWrite | memory::kRemoteWrite);
  post_flush(kGlobally);
  EXPECT_EQ(only().status, Status::kRemoteAccess);
}

TEST_F(Placement, NothingOutlivesItsMemory) {
  post_flush({.length = 8, .persistence = true});
  EXPECT_EQ(only().status, Status::kRemoteInvalidRequest);
}

TEST_F(Placement, AFlushToNowhereIsNotSent) {
  post_flush({.length = 8});
  EXPECT_EQ(only().status, Status::kLocalQpOperation);
  EXPECT_EQ(world.link.packets, 0u);
}

TEST_F(Placement, AWordIsEightBytesAtAMultipleOfEight) {
  world.near().post(remote(SendOpcode::kAtomicWrite, 64), 1024, 4);
  EXPECT_EQ(only().status, Status::kLocalLength);
  world.near().connect();
  world.far().connect();
  post_word(1, 68);
  EXPECT_EQ(only().status, Status::kRemoteInvalidRequest);
  EXPECT_EQ(word_there(64), 0u);
}

TEST_F(Placement, AnAtomicWriteIsExecutedOnceWhenItsAnswerIsLost) {
  unsigned lost = 0;
  world.link.tap = [&](int from, const wire::Packet&) {
    if (from != 1 || lost != 0) return true;
    ++lost;
    // The program there has gone on meanwhile.
    const std::uint64_t next = 99;
    std::memcpy(&world.far().memory[64], &next, sizeof next);
    return false;
  };
  post_word(1);
  EXPECT_EQ(only().status, Status::kSuccess);
  EXPECT_EQ(lost, 1u);
  EXPECT_EQ(world.far().rc().responder().counters().duplicates, 1u);
  EXPECT_EQ(word_there(), 99u);
}

TEST(PlacementLimits, CountAgainstWhatTheResponderTakes) {
  TestWorld world(EndOptions{.reads_max = 2});
  unsigned out = 0;
  unsigned most = 0;
  world.link.tap = [&](int from, const wire::Packet&) {
    if (from == 0) most = std::max(most, ++out);
    if (from == 1) --out;
    return true;
  };
  for (int i = 0; i < 20; ++i) {
    world.near().post({.opcode = SendOpcode::kFlush,
                       .remote_key = world.far().key,
                       .flush = {.global_visibility = true, .whole_region = true}},
                      0, 0);
  }
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 20u);
  EXPECT_EQ(most, 2u);
}

}  // namespace
}  // namespace verbena::roce
