// SPDX-License-Identifier: MIT
#include "verbs/post.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace verbena::verbs {
namespace {

TEST(Post, EveryOpcodeOfOursHasOneOfTheirs) {
  std::set<queues::SendOpcode> reached;
  for (int number = 0; number <= IBV_WR_ATOMIC_WRITE; ++number) {
    ibv_wr_opcode opcode{};
    std::memcpy(&opcode, &number, sizeof opcode);
    const auto ours = opcode_from(opcode);
    if (!ours) continue;
    EXPECT_TRUE(reached.insert(*ours).second) << number;
  }
  EXPECT_EQ(11u, reached.size());
}

TEST(Post, OpcodesThatAreNotOursAreRefused) {
  for (const int number : {int{IBV_WR_TSO}, int{IBV_WR_DRIVER1}, 12, 13, 14, 16, 0x7fffffff, -1}) {
    ibv_wr_opcode opcode{};
    std::memcpy(&opcode, &number, sizeof opcode);
    EXPECT_FALSE(opcode_from(opcode)) << number;
  }
}

TEST(Post, FlagsKeepTheirMeaning) {
  EXPECT_EQ(0, flags_from(0));
  EXPECT_EQ(queues::kFence, flags_from(IBV_SEND_FENCE));
  EXPECT_EQ(queues::kSignaled, flags_from(IBV_SEND_SIGNALED));
  EXPECT_EQ(queues::kSolicited, flags_from(IBV_SEND_SOLICITED));
  EXPECT_EQ(queues::kInline, flags_from(IBV_SEND_INLINE));
  EXPECT_EQ(queues::kFence | queues::kSignaled | queues::kSolicited | queues::kInline,
            flags_from(0xffffffff));
}

TEST(Post, SgesLieAsTheyAre) {
  const ibv_sge theirs[] = {{.addr = 1, .length = 2, .lkey = 3},
                            {.addr = 4, .length = 0, .lkey = 6}};
  const auto ours = sges_from(theirs, 2);
  EXPECT_EQ(1u, ours[0].address);
  EXPECT_EQ(2u, ours[0].length);
  EXPECT_EQ(3u, ours[0].key.value);
  EXPECT_EQ(0u, ours[1].length);  // no bytes, not 2^31 as in the format of old adapters
}

}  // namespace
}  // namespace verbena::verbs
