// SPDX-License-Identifier: MIT
#include "verbs/translate.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "base/test_seed.h"

namespace verbena::verbs {
namespace {

// Everything that a mask can name except capabilities and the alternate path, which are not ours.
constexpr std::uint32_t kAll = 0x1fffff & ~(IBV_QP_CAP | IBV_QP_ALT_PATH);

std::uint8_t byte(SeededRandom& random) { return static_cast<std::uint8_t>(random.next()); }
std::uint32_t word(SeededRandom& random) { return static_cast<std::uint32_t>(random.next()); }

ibv_ah_attr some_path(SeededRandom& random) {
  ibv_ah_attr path = {};
  for (std::uint8_t& part : path.grh.dgid.raw)
    part = byte(random);
  path.grh.flow_label = word(random);
  path.grh.sgid_index = byte(random);
  path.grh.hop_limit = byte(random);
  path.grh.traffic_class = byte(random);
  path.dlid = static_cast<std::uint16_t>(random.next());
  path.sl = byte(random);
  path.src_path_bits = byte(random);
  path.static_rate = byte(random);
  path.is_global = random.one_in(2);
  path.port_num = byte(random);
  return path;
}

ibv_qp_attr some_attributes(SeededRandom& random) {
  ibv_qp_attr some = {};
  some.qp_state = some.cur_qp_state = static_cast<ibv_qp_state>(random.below(IBV_QPS_ERR + 1));
  some.path_mtu = static_cast<ibv_mtu>(1 + random.below(5));
  some.path_mig_state = static_cast<ibv_mig_state>(random.below(3));
  some.qkey = word(random);
  some.rq_psn = word(random);
  some.sq_psn = word(random);
  some.dest_qp_num = word(random);
  some.qp_access_flags = word(random);
  some.ah_attr = some_path(random);
  some.pkey_index = static_cast<std::uint16_t>(random.next());
  some.en_sqd_async_notify = random.one_in(2);
  some.max_rd_atomic = byte(random);
  some.max_dest_rd_atomic = byte(random);
  some.min_rnr_timer = byte(random);
  some.port_num = byte(random);
  some.timeout = byte(random);
  some.retry_cnt = byte(random);
  some.rnr_retry = byte(random);
  return some;
}

TEST(Translate, APathComesBackAsItWas) {
  SeededRandom random(test_seed());
  for (int i = 0; i < 100; ++i) {
    const ibv_ah_attr path = some_path(random);
    const ibv_ah_attr back = path_to(path_from(path));
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): both were zeroed, padding too
    EXPECT_EQ(0, std::memcmp(&path, &back, sizeof path));
  }
}

TEST(Translate, AttributesComeBackAsTheyWere) {
  SeededRandom random(test_seed());
  for (int i = 0; i < 100; ++i) {
    const ibv_qp_attr some = some_attributes(random);
    const auto ours = attributes_from(some, kAll);
    ASSERT_TRUE(ours);
    ibv_qp_attr back = attributes_to(*ours, {});
    EXPECT_EQ(back.qp_state, back.cur_qp_state);
    back.cap = {};
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): both were zeroed, padding too
    EXPECT_EQ(0, std::memcmp(&some, &back, sizeof some));
  }
}

// Whatever a program leaves in the fields that it does not name, they are not looked at.
TEST(Translate, OnlyNamedFieldsAreRead) {
  ibv_qp_attr garbage;
  std::memset(&garbage, 0xa5, sizeof garbage);
  garbage.qkey = 7;
  const auto ours = attributes_from(garbage, IBV_QP_QKEY);
  ASSERT_TRUE(ours);
  EXPECT_EQ(7u, ours->qkey);
  EXPECT_EQ(0u, ours->access);
  EXPECT_EQ(qp::QpState::kReset, ours->state);
  EXPECT_EQ(0, ours->port);
}

TEST(Translate, NumbersOutsideTheirEnumerationAreRefused) {
  for (const std::uint32_t mask :
       {IBV_QP_STATE, IBV_QP_CUR_STATE, IBV_QP_PATH_MTU, IBV_QP_PATH_MIG_STATE}) {
    ibv_qp_attr garbage;
    std::memset(&garbage, 0xa5, sizeof garbage);
    EXPECT_FALSE(attributes_from(garbage, mask)) << mask;
  }
  ibv_qp_attr attributes = {};  // an MTU of 0 is none
  EXPECT_FALSE(attributes_from(attributes, IBV_QP_PATH_MTU));
  attributes.qp_state = IBV_QPS_UNKNOWN;
  EXPECT_FALSE(attributes_from(attributes, IBV_QP_STATE));
}

TEST(Translate, NoDriverHasTypesOfItsOwn) {
  EXPECT_EQ(qp::QpType::kRc, type_from(IBV_QPT_RC));
  EXPECT_EQ(qp::QpType::kUc, type_from(IBV_QPT_UC));
  EXPECT_EQ(qp::QpType::kUd, type_from(IBV_QPT_UD));
  EXPECT_EQ(qp::QpType::kRawPacket, type_from(IBV_QPT_RAW_PACKET));
  EXPECT_FALSE(type_from(IBV_QPT_DRIVER));
}

TEST(Translate, AQueuePairOnASharedQueueHasNoReceives) {
  qp::QpConfig config;
  config.send_depth = 3;
  config.receive_depth = 5;
  config.receive_sge_max = 2;
  EXPECT_EQ(5u, capabilities_of(config).max_recv_wr);
  EXPECT_EQ(2u, capabilities_of(config).max_recv_sge);
  queues::ReceiveQueue shared(1, 1);
  config.shared_receives = &shared;
  EXPECT_EQ(3u, capabilities_of(config).max_send_wr);
  EXPECT_EQ(0u, capabilities_of(config).max_recv_wr);
  EXPECT_EQ(0u, capabilities_of(config).max_recv_sge);
}

}  // namespace
}  // namespace verbena::verbs
