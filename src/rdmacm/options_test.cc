// SPDX-License-Identifier: MIT
// rdma_set_option(3): what is taken, and when.
#include "rdmacm/test_ends.h"

namespace verbena::rdmacm {
namespace {

class Options : public EndsTest {};

struct Case {
  int level;
  int option;
  std::size_t length;
  int error;
};

TEST_F(Options, AreLookedAt) {
  constexpr int kId = RDMA_OPTION_ID;
  const Case cases[] = {
      {kId, RDMA_OPTION_ID_TOS, 1, 0},
      {kId, RDMA_OPTION_ID_TOS, 4, EINVAL},
      {kId, RDMA_OPTION_ID_REUSEADDR, 4, 0},
      {kId, RDMA_OPTION_ID_REUSEADDR, 1, EINVAL},
      {kId, RDMA_OPTION_ID_AFONLY, 4, 0},
      {kId, RDMA_OPTION_ID_AFONLY, 8, EINVAL},
      {kId, RDMA_OPTION_ID_ACK_TIMEOUT, 1, 0},
      {kId, RDMA_OPTION_ID_ACK_TIMEOUT, 2, EINVAL},
      {kId, 77, 4, ENOSYS},
      {RDMA_OPTION_IB, 77, 4, ENOSYS},
      {RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, 0, EINVAL},
      {RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, 3, EINVAL},
      {77, 0, 4, ENOSYS},
  };
  const OwnId id = make_id(client_channel.get());
  std::uint64_t value = 1;
  for (const Case& each : cases) {
    EXPECT_EQ(error_of(rdma_set_option(id.get(), each.level, each.option, &value, each.length)),
              each.error)
        << each.level << ", " << each.option << ", " << each.length;
  }
  EXPECT_EQ(error_of(rdma_set_option(nullptr, kId, RDMA_OPTION_ID_TOS, &value, 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_set_option(id.get(), kId, RDMA_OPTION_ID_TOS, nullptr, 1)), EINVAL);
}

TEST_F(Options, TimeoutsHaveFiveBits) {
  const OwnId id = make_id(client_channel.get());
  for (const int timeout : {0, 31, 32, 255}) {
    auto value = static_cast<std::uint8_t>(timeout);
    EXPECT_EQ(
        error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &value, 1)),
        timeout > 31 ? EINVAL : 0);
  }
  EXPECT_EQ(Id::of(id.get()).ack_timeout, 31);
}

// How an address is shared is settled when there is one.
TEST_F(Options, SomeComeBeforeTheAddress) {
  const OwnId id = make_id(client_channel.get());
  ASSERT_EQ(error_of(rdma_bind_addr(id.get(), raw(loopback()))), 0);
  int on = 1;
  for (const int option : {RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY}) {
    EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, option, &on, sizeof on)), EINVAL);
  }
  std::uint8_t tos = 0x20;
  EXPECT_EQ(error_of(rdma_set_option(id.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1)), 0);
}

TEST_F(Options, TheServiceTypeReachesThePeer) {
  prepare(loopback());
  std::uint8_t tos = 0x20;
  ASSERT_EQ(error_of(rdma_set_option(client.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1)),
            0);
  const OwnId server = connect();
  EXPECT_EQ(Id::of(server.get()).traffic_class, 0x20);
}

TEST_F(Options, ARouteMayBeTheProgramsOwn) {
  const OwnId id = make_id(client_channel.get());
  ibv_path_data path{};
  path.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  const auto set = [&](std::size_t length) {
    return error_of(rdma_set_option(id.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, length));
  };
  EXPECT_EQ(set(sizeof path), EINVAL) << "an address goes before";
  ASSERT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, raw(loopback(7)), 1)), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  path.flags = IBV_PATH_FLAG_GMP;
  EXPECT_EQ(set(sizeof path), EINVAL);
  path.flags |= IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  EXPECT_EQ(set(sizeof path), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
  EXPECT_EQ(id->route.num_paths, 1);
}

TEST(EventNames, AreAllThere) {
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_ADDR_RESOLVED), "RDMA_CM_EVENT_ADDR_RESOLVED");
  EXPECT_STREQ(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT");
}

}  // namespace
}  // namespace verbena::rdmacm
