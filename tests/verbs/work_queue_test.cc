// SPDX-License-Identifier: MIT
// Work queues, tables of them, and receive-side scaling (ibv_create_wq(3),
// ibv_create_rwq_ind_table(3), ibv_create_qp_ex(3)).
#include <map>

#include "raw_packets.h"

namespace verbena::verbs::testing {
namespace {

constexpr std::uint32_t kFrameLength = 64;
constexpr std::uint8_t kMac = 3;

class WorkQueueTest : public RawPacketTest {
 protected:
  void SetUp() override {
    RawPacketTest::SetUp();
    for (std::size_t i = 0; i < key.size(); ++i)
      key[i] = static_cast<std::uint8_t>(0x6d * (i + 3) ^ i << 2);
  }
  OwnRaw<ibv_wq> make_wq(std::uint32_t depth = 64) {
    ibv_wq_init_attr wanted{};
    wanted.wq_type = IBV_WQT_RQ;
    wanted.max_wr = depth;
    wanted.max_sge = 1;
    wanted.pd = pd.get();
    wanted.cq = cq.get();
    return OwnRaw<ibv_wq>(ibv_create_wq(context.get(), &wanted));
  }
  static int move(ibv_wq* wq, ibv_wq_state to) {
    ibv_wq_attr attributes{};
    attributes.attr_mask = IBV_WQ_ATTR_STATE;
    attributes.wq_state = to;
    return ibv_modify_wq(wq, &attributes);
  }
  OwnRaw<ibv_rwq_ind_table> make_table(const std::vector<ibv_wq*>& queues, std::uint32_t log) {
    std::vector<ibv_wq*> copy = queues;
    ibv_rwq_ind_table_init_attr wanted{};
    wanted.log_ind_tbl_size = log;
    wanted.ind_tbl = copy.data();
    return OwnRaw<ibv_rwq_ind_table>(ibv_create_rwq_ind_table(context.get(), &wanted));
  }
  Own<ibv_qp> make_scaling(ibv_rwq_ind_table* table, const Change& change = {}) {
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_type = IBV_QPT_RAW_PACKET;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
    wanted.pd = pd.get();
    wanted.rwq_ind_tbl = table;
    wanted.rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
                           .rx_hash_key_len = static_cast<std::uint8_t>(key.size()),
                           .rx_hash_key = key.data(),
                           .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4};
    if (change) change(wanted);
    return Own<ibv_qp>(ibv_create_qp_ex(context.get(), &wanted));
  }
  int post(ibv_wq* wq, std::uint64_t id, std::uint32_t length = 128) {
    ibv_sge piece = sge(4096, length);
    ibv_recv_wr request = receive(piece, id);
    ibv_recv_wr* bad = nullptr;
    return ibv_post_wq_recv(wq, &request, &bad);
  }
  // An IPv4 packet of no protocol in particular, from 10.0.0.`last` to 10.1.0.1.
  ibv_sge ipv4(std::uint8_t last) {
    const ibv_sge made = frame(0, kMac, kFrameLength, 0, 0x0800);
    std::uint8_t* const ip = memory.data() + kHeader;
    const std::uint8_t head[20] = {0x45, 0, 0,  50, 0, 0,    0,  0, 64, 253,
                                   0,    0, 10, 0,  0, last, 10, 1, 0,  1};
    std::memcpy(ip, head, sizeof head);
    return made;
  }
  // Bit by bit, as the definition has it.
  std::uint32_t hash_of(std::uint8_t last) const {
    const std::uint8_t input[8] = {10, 0, 0, last, 10, 1, 0, 1};
    std::uint32_t hash = 0;
    for (unsigned bit = 0; bit < 64; ++bit) {
      if ((input[bit / 8] >> (7 - bit % 8) & 1) == 0) continue;
      for (unsigned i = 0; i < 32; ++i) {
        const unsigned of_key = bit + i;
        hash ^= static_cast<std::uint32_t>(key[of_key / 8] >> (7 - of_key % 8) & 1) << (31 - i);
      }
    }
    return hash;
  }

  std::array<std::uint8_t, 40> key{};
};

TEST_F(WorkQueueTest, SpreadsFramesByTheirHash) {
  std::vector<OwnRaw<ibv_wq>> queues;
  std::vector<ibv_wq*> entries;
  for (int i = 0; i < 4; ++i) {
    queues.push_back(make_wq());
    ASSERT_TRUE(queues.back());
    ASSERT_EQ(0, move(queues.back().get(), IBV_WQS_RDY));
    entries.push_back(queues.back().get());
    for (int n = 0; n < 40; ++n)
      ASSERT_EQ(0, post(entries.back(), 0));
  }
  const auto table = make_table(entries, 2);
  ASSERT_TRUE(table);
  const Own<ibv_qp> qp = make_scaling(table.get());
  ASSERT_TRUE(qp);
  const auto flow = make_flow(qp.get(), wish(eth_spec(kMac, 0x0800)));
  ASSERT_TRUE(flow);
  std::map<std::uint32_t, int> used;
  for (std::uint8_t last = 1; last <= 32; ++last) {
    post_send(ipv4(last), 0);
    const ibv_wc wc = next_completion();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.byte_len, kFrameLength);
    EXPECT_EQ(wc.qp_num, entries[hash_of(last) % 4]->wq_num) << int{last};
    ++used[wc.qp_num];
  }
  EXPECT_EQ(used.size(), 4u);
}

TEST_F(WorkQueueTest, GivesWhatHasNoHashToTheFirst) {
  const OwnRaw<ibv_wq> first = make_wq();
  const OwnRaw<ibv_wq> second = make_wq();
  for (ibv_wq* const wq : {first.get(), second.get()}) {
    ASSERT_EQ(0, move(wq, IBV_WQS_RDY));
    ASSERT_EQ(0, post(wq, 1));
  }
  const auto table = make_table({first.get(), second.get()}, 1);
  const Own<ibv_qp> qp = make_scaling(table.get());
  ASSERT_TRUE(qp);
  const auto flow = make_flow(qp.get(), wish(eth_spec(kMac)));
  post_send(frame(0, kMac, kFrameLength, 1), 0);
  EXPECT_EQ(next_completion().qp_num, first->wq_num);
}

TEST_F(WorkQueueTest, HasStatesOfItsOwn) {
  const OwnRaw<ibv_wq> wq = make_wq();
  ASSERT_TRUE(wq);
  EXPECT_EQ(wq->state, IBV_WQS_RESET);
  EXPECT_EQ(EINVAL, post(wq.get(), 1)) << "RESET";
  EXPECT_EQ(EINVAL, move(wq.get(), IBV_WQS_ERR));
  ASSERT_EQ(0, move(wq.get(), IBV_WQS_RDY));
  EXPECT_EQ(wq->state, IBV_WQS_RDY);
  EXPECT_EQ(0, post(wq.get(), 2));
  ASSERT_EQ(0, move(wq.get(), IBV_WQS_ERR));
  const ibv_wc wc = next_completion();
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(EINVAL, move(wq.get(), IBV_WQS_RDY));
  ASSERT_EQ(0, move(wq.get(), IBV_WQS_RESET));
  ASSERT_EQ(0, move(wq.get(), IBV_WQS_RDY));
  ibv_wq_attr attributes{};
  attributes.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
  attributes.wq_state = IBV_WQS_RESET;
  attributes.curr_wq_state = IBV_WQS_ERR;
  EXPECT_EQ(EINVAL, ibv_modify_wq(wq.get(), &attributes)) << "it is not in ERR";
  attributes.curr_wq_state = IBV_WQS_RDY;
  EXPECT_EQ(0, ibv_modify_wq(wq.get(), &attributes));
  attributes.attr_mask = IBV_WQ_ATTR_FLAGS;
  attributes.flags = attributes.flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING;
  EXPECT_EQ(EOPNOTSUPP, ibv_modify_wq(wq.get(), &attributes));
  attributes.attr_mask = IBV_WQ_ATTR_RESERVED;
  EXPECT_EQ(EINVAL, ibv_modify_wq(wq.get(), &attributes));
}

TEST_F(WorkQueueTest, FailsAReceiveThatIsTooShort) {
  const OwnRaw<ibv_wq> wq = make_wq();
  ASSERT_EQ(0, move(wq.get(), IBV_WQS_RDY));
  ASSERT_EQ(0, post(wq.get(), 1, kFrameLength - 1));
  const auto table = make_table({wq.get()}, 0);
  const Own<ibv_qp> qp = make_scaling(table.get());
  const auto flow = make_flow(qp.get(), wish(eth_spec(kMac)));
  ASSERT_TRUE(flow);
  post_send(frame(0, kMac, kFrameLength, 1), 0);
  const ibv_wc wc = next_completion();
  EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(wc.qp_num, wq->wq_num);
  ibv_wq_attr attributes{};
  attributes.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
  attributes.wq_state = IBV_WQS_RESET;
  attributes.curr_wq_state = IBV_WQS_ERR;
  EXPECT_EQ(0, ibv_modify_wq(wq.get(), &attributes)) << "it has gone to ERR";
}

TEST_F(WorkQueueTest, KeepsWhatSomethingDependsOn) {
  auto wq = make_wq();
  auto table = make_table({wq.get(), wq.get()}, 1);
  ASSERT_TRUE(table);
  auto qp = make_scaling(table.get());
  ASSERT_TRUE(qp);
  auto flow = make_flow(qp.get(), wish(eth_spec(kMac)));
  ASSERT_TRUE(flow);
  sender.reset();
  mr.reset();
  EXPECT_EQ(EBUSY, ibv_dealloc_pd(pd.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_cq(cq.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_wq(wq.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_rwq_ind_table(table.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_qp(qp.get()));
  flow.reset();
  qp.reset();
  EXPECT_EQ(EBUSY, ibv_destroy_wq(wq.get()));
  table.reset();
  wq.reset();
  EXPECT_EQ(0, ibv_destroy_cq(cq.release()));
}

TEST_F(WorkQueueTest, RefusesWhatCannotBe) {
  ibv_wq_init_attr wanted{};
  const auto refused = [&](int error, auto change) {
    wanted = {};
    wanted.wq_type = IBV_WQT_RQ;
    wanted.max_wr = wanted.max_sge = 1;
    wanted.pd = pd.get();
    wanted.cq = cq.get();
    change(wanted);
    EXPECT_FALSE(ibv_create_wq(context.get(), &wanted));
    EXPECT_EQ(errno, error);
  };
  refused(EINVAL, [](auto& w) { put(w.wq_type, 1); });
  refused(EINVAL, [](auto& w) { w.max_wr = 0; });
  refused(EINVAL, [](auto& w) { w.max_wr = 1u << 31; });
  refused(EINVAL, [](auto& w) { w.max_sge = 1u << 16; });
  refused(EINVAL, [](auto& w) { w.pd = nullptr; });
  refused(EINVAL, [](auto& w) { w.comp_mask = IBV_WQ_INIT_ATTR_RESERVED; });
  refused(EOPNOTSUPP, [](auto& w) {
    w.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
    w.create_flags = IBV_WQ_FLAGS_SCATTER_FCS;
  });
  const auto wq = make_wq();
  EXPECT_FALSE(make_table({nullptr}, 0));
  EXPECT_EQ(errno, EINVAL);
  EXPECT_FALSE(make_table(std::vector<ibv_wq*>(4096, wq.get()), 12)) << "over the limit";
  EXPECT_EQ(errno, EINVAL);
  const auto table = make_table({wq.get()}, 0);
  const auto no_qp = [&](int error, const Change& change) {
    EXPECT_FALSE(make_scaling(table.get(), change));
    EXPECT_EQ(errno, error);
  };
  no_qp(EINVAL, [](auto& w) { w.rwq_ind_tbl = nullptr; });
  no_qp(EINVAL, [](auto& w) { w.comp_mask &= ~unsigned{IBV_QP_INIT_ATTR_RX_HASH}; });
  no_qp(EINVAL, [](auto& w) { w.rx_hash_conf.rx_hash_key_len = 16; });
  no_qp(EINVAL, [&](auto& w) { w.recv_cq = cq.get(); });
  no_qp(EINVAL, [](auto& w) { w.qp_type = IBV_QPT_UD; });
  no_qp(EOPNOTSUPP, [](auto& w) { w.rx_hash_conf.rx_hash_function = 2; });
  no_qp(EOPNOTSUPP, [](auto& w) { w.rx_hash_conf.rx_hash_fields_mask |= IBV_RX_HASH_INNER; });
  const auto qp = make_scaling(table.get());
  ASSERT_TRUE(qp);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  EXPECT_EQ(EOPNOTSUPP, ibv_modify_qp(qp.get(), &attributes, IBV_QP_STATE | IBV_QP_PORT));
  ibv_sge piece = sge(0, 64);
  ibv_recv_wr receiving = receive(piece);
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_recv(qp.get(), &receiving, &bad));
}

TEST_F(WorkQueueTest, TellsWhatTheDeviceCanDo) {
  ibv_device_attr_ex attributes{};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &attributes));
  const ibv_rss_caps& caps = attributes.rss_caps;
  EXPECT_EQ(caps.supported_qpts, 1u << IBV_QPT_RAW_PACKET);
  EXPECT_EQ(caps.rx_hash_function, IBV_RX_HASH_FUNC_TOEPLITZ);
  EXPECT_EQ(caps.rx_hash_fields_mask, 0xFFu);
  EXPECT_GT(attributes.max_wq_type_rq, 0u);
  EXPECT_GT(attributes.orig_attr.max_raw_ethy_qp, 0);
  EXPECT_TRUE(attributes.orig_attr.device_cap_flags & IBV_DEVICE_MANAGED_FLOW_STEERING);
  EXPECT_EQ(attributes.raw_packet_caps, 0u) << "checksums and tags are the program's affair";
  // As many tables as it says, and no more.
  const auto wq = make_wq();
  std::vector<OwnRaw<ibv_rwq_ind_table>> tables;
  for (std::uint32_t i = 0; i < caps.max_rwq_indirection_tables; ++i) {
    tables.push_back(make_table({wq.get()}, 0));
    ASSERT_TRUE(tables.back());
  }
  EXPECT_FALSE(make_table({wq.get()}, 0));
  EXPECT_EQ(errno, ENOMEM);
  const std::vector<ibv_wq*> many(caps.max_rwq_indirection_table_size, wq.get());
  tables.pop_back();
  EXPECT_TRUE(make_table(
      many, static_cast<std::uint32_t>(__builtin_ctz(caps.max_rwq_indirection_table_size))));
}

}  // namespace
}  // namespace verbena::verbs::testing
