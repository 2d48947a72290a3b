// SPDX-License-Identifier: MIT
// Multicast groups of an id.
#include <thread>

#include "rdmacm/test_ends.h"

namespace verbena::rdmacm {
namespace {

class Groups : public EndsTest {};

Address group(std::uint8_t number) {
  return Address::of(wire::gid_of(std::array<std::uint8_t, 4>{239, 1, 3, number}), 0, 0);
}

// One thread joins, and another fetches that it has joined, which attaches the queue pair.
TEST_F(Groups, AreAttachedWhileOthersAreJoined) {
  constexpr std::uint8_t kGroups = 16;
  constexpr int kRounds = 8;
  prepare(loopback(), RDMA_PS_UDP);
  for (int round = 0; round < kRounds; ++round) {
    const OwnId id = resolved(RDMA_PS_UDP);
    ibv_qp_init_attr made = smallest(IBV_QPT_UD);
    ASSERT_EQ(error_of(rdma_create_qp(id.get(), nullptr, &made)), 0);
    std::thread fetching([&] {
      for (int i = 0; i < kGroups; ++i)
        expect(client_channel.get(), RDMA_CM_EVENT_MULTICAST_JOIN);
    });
    for (std::uint8_t i = 1; i <= kGroups; ++i)
      EXPECT_EQ(error_of(rdma_join_multicast(id.get(), raw(group(i)), nullptr)), 0);
    fetching.join();
    EXPECT_EQ(Id::of(id.get()).groups.size(), kGroups);
    for (const Membership& each : Id::of(id.get()).groups)
      EXPECT_TRUE(each.is_attached);
    for (std::uint8_t i = 1; i <= kGroups; ++i)
      EXPECT_EQ(error_of(rdma_leave_multicast(id.get(), raw(group(i)))), 0);
    rdma_destroy_qp(id.get());
  }
}

}  // namespace
}  // namespace verbena::rdmacm
