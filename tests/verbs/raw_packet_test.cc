// SPDX-License-Identifier: MIT
// Raw packet queue pairs and flows (ibv_create_qp(3), ibv_create_flow(3)).
#include <linux/capability.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "raw_packets.h"

namespace verbena::verbs::testing {
namespace {

TEST_F(RawPacketTest, BringsAFrameToTheQueuePairWithAFlowForIt) {
  const Own<ibv_qp> receiver = make_receiver();
  const Own<ibv_qp> other = make_receiver();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  const auto of_other = make_flow(other.get(), wish(eth_spec(2)));
  ASSERT_TRUE(flow && of_other);
  post_receive(receiver.get(), kThere, 2000, 7);
  post_receive(other.get(), 0, 64, 8);
  post_send(frame(1024, 1, kLength, 0x5A), 0);
  const ibv_wc wc = next_completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.byte_len, kLength) << "and no GRH before it";
  EXPECT_EQ(wc.wc_flags, 0u);
  EXPECT_EQ(wc.qp_num, receiver->qp_num);
  EXPECT_TRUE(is_frame(kThere, 1024, kLength));
  EXPECT_TRUE(no_completion());
}

TEST_F(RawPacketTest, SendsInlineAndFromSeveralPieces) {
  const Own<ibv_qp> receiver = make_receiver();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  ASSERT_TRUE(flow);
  post_receive(receiver.get(), kThere, 2000, 7);
  post_receive(receiver.get(), kThere + 2000, 2000, 8);
  ibv_sge whole = frame(0, 1, kLength, 0x11);
  post_send(whole, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 1);
  std::memset(memory.data() + kHeader, 0x22, kLength - kHeader);  // it was taken with the post
  ibv_sge pieces[] = {sge(0, 20), sge(20, kLength - 20)};
  ibv_send_wr request = send(pieces[0], 2);
  request.num_sge = 2;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(sender.get(), &request, &bad));
  std::vector<std::uint64_t> received;
  for (int i = 0; i < 4; ++i) {
    const ibv_wc wc = next_completion();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.opcode == IBV_WC_RECV) received.push_back(wc.wr_id);
  }
  EXPECT_EQ(received, (std::vector<std::uint64_t>{7, 8}));
  EXPECT_EQ(memory[kThere + kHeader], 0x11);
  EXPECT_EQ(memory[kThere + 2000 + kLength - 1], 0x22);
}

TEST_F(RawPacketTest, LosesAFrameWithoutAReceive) {
  const Own<ibv_qp> receiver = make_receiver();
  const Own<ibv_qp> witness = make_receiver();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  auto of_witness = make_flow(witness.get(), wish(eth_spec(1)));
  ASSERT_TRUE(flow && of_witness);
  post_receive(witness.get(), kThere, 2000, 6);
  post_send(frame(0, 1, kLength, 0x11), 0);
  EXPECT_EQ(next_completion().qp_num, witness->qp_num);
  EXPECT_TRUE(no_completion());
  of_witness.reset();
  post_receive(receiver.get(), kThere, 2000, 7);
  post_send(frame(0, 1, kLength + 1, 0x22), 0);
  const ibv_wc wc = next_completion();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, kLength + 1) << "the second one";
}

TEST_F(RawPacketTest, FailsAReceiveThatIsTooShort) {
  const Own<ibv_qp> receiver = make_receiver();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  ASSERT_TRUE(flow);
  post_receive(receiver.get(), kThere, kLength - 1, 7);
  post_receive(receiver.get(), kThere, 2000, 8);
  post_send(frame(0, 1, kLength, 0x11), 0);
  const ibv_wc failed = next_completion();
  EXPECT_EQ(failed.status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(failed.wr_id, 7u);
  const ibv_wc flushed = next_completion();
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 8u);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(0, ibv_query_qp(receiver.get(), &attributes, IBV_QP_STATE, &initial));
  EXPECT_EQ(attributes.qp_state, IBV_QPS_ERR);
  EXPECT_EQ(initial.qp_type, IBV_QPT_RAW_PACKET);
}

TEST_F(RawPacketTest, FailsASendThatIsNoFrame) {
  std::vector<std::uint8_t> large(70'000);
  const Own<ibv_mr> region(ibv_reg_mr(pd.get(), large.data(), large.size(), 0));
  const auto at = [&](std::uint32_t length) {
    return ibv_sge{reinterpret_cast<std::uintptr_t>(large.data()), length, region->lkey};
  };
  for (const std::uint32_t length : {0u, 13u, 65'536u + 15, 70'000u}) {
    SCOPED_TRACE(length);
    sender = make_receiver();
    post_send(at(length));
    EXPECT_EQ(next_completion().status, IBV_WC_LOC_LEN_ERR);
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    ASSERT_EQ(0, ibv_query_qp(sender.get(), &attributes, IBV_QP_STATE, &initial));
    EXPECT_EQ(attributes.qp_state, IBV_QPS_SQE);
  }
  sender = make_receiver();
  ibv_sge piece = frame(0, 1, kLength, 0);
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    ibv_send_wr request = send(piece, 1, opcode);
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(EINVAL, ibv_post_send(sender.get(), &request, &bad));
    EXPECT_EQ(bad, &request);
  }
  ibv_send_wr request = send(piece, 1);
  request.send_flags = IBV_SEND_IP_CSUM;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_send(sender.get(), &request, &bad)) << "not among the capabilities";
}

TEST_F(RawPacketTest, TakesTheLongestFrameOfTheInterface) {
  constexpr std::uint32_t kLongest = 65'536 + kHeader;
  std::vector<std::uint8_t> from(kLongest, 0x77);
  std::vector<std::uint8_t> to(kLongest);
  frame(0, 1, kHeader, 0);
  std::copy_n(memory.begin(), kHeader, from.begin());
  const Own<ibv_mr> out(ibv_reg_mr(pd.get(), from.data(), from.size(), 0));
  const Own<ibv_mr> in(ibv_reg_mr(pd.get(), to.data(), to.size(), IBV_ACCESS_LOCAL_WRITE));
  const Own<ibv_qp> receiver = make_receiver();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(to.data()), kLongest, in->lkey};
  ibv_recv_wr request = receive(piece, 7);
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_recv(receiver.get(), &request, &bad));
  post_send({reinterpret_cast<std::uintptr_t>(from.data()), kLongest, out->lkey}, 0);
  EXPECT_EQ(next_completion().byte_len, kLongest);
  EXPECT_EQ(from, to);
}

TEST_F(RawPacketTest, ReceivesOnlyFromReadyToReceiveOnAndWhileTheFlowIsThere) {
  const Own<ibv_qp> receiver = make_qp(IBV_QPT_RAW_PACKET);
  const Own<ibv_qp> witness = make_receiver();
  auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  const auto of_witness = make_flow(witness.get(), wish(eth_spec(1)));
  ASSERT_TRUE(flow && of_witness);
  for (std::uint64_t i = 0; i < 3; ++i)
    post_receive(witness.get(), 2048, 2000, 1);
  ibv_qp_attr attributes{};
  attributes.port_num = 1;
  attributes.qp_state = IBV_QPS_INIT;
  ASSERT_EQ(0, ibv_modify_qp(receiver.get(), &attributes, IBV_QP_STATE | IBV_QP_PORT));
  post_receive(receiver.get(), kThere, 2000, 7);
  post_send(frame(0, 1, kLength, 1), 0);
  EXPECT_EQ(next_completion().wr_id, 1u);
  EXPECT_TRUE(no_completion());
  attributes.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(0, ibv_modify_qp(receiver.get(), &attributes, IBV_QP_STATE));
  post_send(frame(0, 1, kLength + 1, 1), 0);
  const ibv_wc wc = next_completion();
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.byte_len, kLength + 1);
  EXPECT_EQ(next_completion().wr_id, 1u);
  flow.reset();
  post_receive(receiver.get(), kThere, 2000, 8);
  post_send(frame(0, 1, kLength, 1), 0);
  EXPECT_EQ(next_completion().wr_id, 1u);
  EXPECT_TRUE(no_completion());
}

TEST_F(RawPacketTest, TakesReceivesOfASharedQueue) {
  ibv_srq_init_attr wanted{};
  wanted.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
  const Own<ibv_srq> srq(ibv_create_srq(pd.get(), &wanted));
  const Own<ibv_qp> receiver =
      make_receiver([&](ibv_qp_init_attr_ex& of_qp) { of_qp.srq = srq.get(); });
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  ASSERT_TRUE(flow);
  ibv_sge piece = sge(kThere, 2000);
  ibv_recv_wr request = receive(piece, 9);
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_srq_recv(srq.get(), &request, &bad));
  post_send(frame(0, 1, kLength, 1), 0);
  EXPECT_EQ(next_completion().wr_id, 9u);
}

TEST_F(RawPacketTest, ShowsEveryFrameToASniffer) {
  const Own<ibv_qp> receiver = make_receiver();
  const Own<ibv_qp> sniffer = make_receiver();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  auto everything = wish();
  everything.attr.type = IBV_FLOW_ATTR_SNIFFER;
  post_receive(receiver.get(), kThere, 2000, 7);
  for (unsigned i = 0; i < 16; ++i)
    post_receive(sniffer.get(), 2048, 2000, 8);
  const auto sniffing = make_flow(sniffer.get(), everything);
  ASSERT_TRUE(flow && sniffing);
  post_send(frame(0, 1, kLength, 1), 0);
  // Others use the interface as well.
  for (bool to_receiver = false, to_sniffer = false; !to_receiver || !to_sniffer;) {
    const ibv_wc wc = next_completion();
    ASSERT_EQ(wc.opcode, IBV_WC_RECV);
    to_receiver |= wc.wr_id == 7 && wc.byte_len == kLength;
    to_sniffer |= wc.wr_id == 8;
    if (HasFailure()) return;
  }
}

// Nobody polls: the NIC's own thread receives.
TEST_F(RawPacketTest, WakesAProgramThatWaitsForEvents) {
  const Own<ibv_comp_channel> channel(ibv_create_comp_channel(context.get()));
  const Own<ibv_cq> with_events(ibv_create_cq(context.get(), 16, nullptr, channel.get(), 0));
  const Own<ibv_qp> receiver =
      make_receiver([&](ibv_qp_init_attr_ex& wanted) { wanted.recv_cq = with_events.get(); });
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  ASSERT_TRUE(flow);
  for (std::uint64_t round = 0; round < 20; ++round) {
    post_receive(receiver.get(), kThere, 2000, round);
    ASSERT_EQ(0, ibv_req_notify_cq(with_events.get(), 0));
    post_send(frame(0, 1, kLength, 1), 0);
    pollfd waiting{channel->fd, POLLIN, 0};
    ASSERT_EQ(1, poll(&waiting, 1, 20'000)) << "round " << round;
    ibv_cq* which = nullptr;
    void* its_context = nullptr;
    ASSERT_EQ(0, ibv_get_cq_event(channel.get(), &which, &its_context));
    ibv_ack_cq_events(which, 1);
    ibv_wc wc;
    ASSERT_EQ(1, ibv_poll_cq(which, 1, &wc));
    EXPECT_EQ(wc.wr_id, round);
  }
}

TEST_F(RawPacketTest, KeepsAQueuePairThatHasFlows) {
  const Own<ibv_qp> receiver = make_receiver();
  auto first = make_flow(receiver.get(), wish(eth_spec(1)));
  auto second = make_flow(receiver.get(), wish(eth_spec(2)));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(EBUSY, ibv_destroy_qp(receiver.get()));
  first.reset();
  EXPECT_EQ(EBUSY, ibv_destroy_qp(receiver.get()));
}

TEST_F(RawPacketTest, IsForThePrivileged) {
  const Own<ibv_qp> receiver = make_receiver();
  // Capabilities are a thread's.
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    ASSERT_EQ(0, syscall(SYS_capget, &header, data));
    data[0].effective &= ~(1u << CAP_NET_RAW);
    ASSERT_EQ(0, syscall(SYS_capset, &header, data));
    EXPECT_FALSE(make_qp(IBV_QPT_RAW_PACKET));
    EXPECT_EQ(errno, EPERM);
    EXPECT_FALSE(make_flow(receiver.get(), wish(eth_spec(1))));
    EXPECT_EQ(errno, EPERM);
  }).join();
}

TEST_F(RawPacketTest, RefusesFlowsThatCannotBe) {
  const Own<ibv_qp> receiver = make_receiver();
  ibv_flow_spec_ipv4 ipv4{};
  ipv4.type = IBV_FLOW_SPEC_IPV4;
  ipv4.size = sizeof ipv4;
  ibv_flow_spec_ipv4_ext ipv4_ext{};
  ipv4_ext.type = IBV_FLOW_SPEC_IPV4_EXT;
  ipv4_ext.size = sizeof ipv4_ext;
  ibv_flow_spec_tcp_udp tcp{};
  tcp.type = IBV_FLOW_SPEC_TCP;
  tcp.size = sizeof tcp;
  const auto refused = [&](auto attributes, int error) {
    errno = 0;
    EXPECT_FALSE(make_flow(receiver.get(), attributes));
    EXPECT_EQ(errno, error);
  };
  const auto with = [](auto attributes, auto change) {
    change(attributes);
    return attributes;
  };
  const auto eth = wish(eth_spec(1));
  refused(with(eth, [](auto& w) { w.attr.port = 2; }), EINVAL);
  refused(with(eth, [](auto& w) { w.attr.comp_mask = 1; }), EINVAL);
  refused(with(eth, [](auto& w) { w.attr.flags = 1 << 5; }), EINVAL);
  refused(with(eth, [](auto& w) { put(w.attr.type, 4); }), EINVAL);
  refused(with(eth, [](auto& w) { w.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS; }), EOPNOTSUPP);
  refused(with(eth, [](auto& w) { w.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT; }), EINVAL);
  refused(with(eth, [](auto& w) { w.first.size -= 2; }), EINVAL);
  refused(with(eth, [](auto& w) { put(w.first.type, 7); }), EINVAL);
  const auto typed = [&](unsigned type) {
    return with(eth, [type](auto& w) { put(w.first.type, type); });
  };
  refused(typed(IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER), EOPNOTSUPP);
  refused(typed(IBV_FLOW_SPEC_VXLAN_TUNNEL), EOPNOTSUPP);
  refused(typed(IBV_FLOW_SPEC_ACTION_TAG), EOPNOTSUPP);
  refused(wish(eth_spec(1), eth_spec(1)), EINVAL);
  refused(wish(ipv4, ipv4_ext), EINVAL);
  refused(wish(eth_spec(1, 0x86DD), ipv4), EINVAL);
  ipv4_ext.val.proto = 17;
  ipv4_ext.mask.proto = 0xFF;
  refused(wish(ipv4_ext, tcp), EINVAL);
  ipv4_ext.val.proto = 6;
  EXPECT_TRUE(make_flow(receiver.get(), wish(ipv4_ext, tcp)));

  const Own<ibv_qp> ud = make_qp(IBV_QPT_UD);
  EXPECT_FALSE(make_flow(ud.get(), eth));
  EXPECT_EQ(errno, EOPNOTSUPP);
  const Own<ibv_qp> rc = make_qp(IBV_QPT_RC);
  EXPECT_FALSE(make_flow(rc.get(), eth));
  EXPECT_EQ(errno, EINVAL);
}

// Nothing can hold it up: it takes at least so long.
TEST_F(RawPacketTest, KeepsToItsRate) {
  constexpr std::uint32_t kByteAMicrosecond = 8'000;  // kilobits a second
  constexpr std::uint32_t kFrame = 1000;
  constexpr std::uint32_t kBurst = 2000;
  constexpr unsigned kFrames = 20;
  ibv_device_attr_ex device{};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &device));
  EXPECT_TRUE(device.packet_pacing_caps.supported_qpts & 1u << IBV_QPT_RAW_PACKET);
  EXPECT_LE(device.packet_pacing_caps.qp_rate_limit_min, kByteAMicrosecond);
  EXPECT_GE(device.packet_pacing_caps.qp_rate_limit_max, kByteAMicrosecond);
  const Own<ibv_qp> receiver = make_receiver();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  ASSERT_TRUE(flow);
  ibv_qp_rate_limit_attr limit{};
  limit.rate_limit = kByteAMicrosecond;
  limit.max_burst_sz = kBurst;
  ASSERT_EQ(0, ibv_modify_qp_rate_limit(sender.get(), &limit));
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  ASSERT_EQ(0, ibv_query_qp(sender.get(), &attributes, IBV_QP_RATE_LIMIT, &initial));
  EXPECT_EQ(attributes.rate_limit, kByteAMicrosecond);
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < kFrames; ++i) {
    post_receive(receiver.get(), kThere, 2000, 100 + i);
    post_send(frame(0, 1, kFrame, 1), 0);
    // No more than the send queue holds wait.
    ASSERT_EQ(next_completion().wr_id, 100 + i);
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  // The last one leaves when those before it have, but for the burst.
  EXPECT_GE(took, std::chrono::microseconds((kFrames - 1) * kFrame - kBurst));
  // And without a limit, by the other way of saying it.
  attributes.qp_state = IBV_QPS_RTS;
  attributes.rate_limit = 0;
  EXPECT_EQ(0, ibv_modify_qp(sender.get(), &attributes, IBV_QP_STATE | IBV_QP_RATE_LIMIT));
  limit.rate_limit = device.packet_pacing_caps.qp_rate_limit_max + 1;
  EXPECT_EQ(EINVAL, ibv_modify_qp_rate_limit(sender.get(), &limit));
  limit.rate_limit = 1;
  limit.comp_mask = 1;
  EXPECT_EQ(EINVAL, ibv_modify_qp_rate_limit(sender.get(), &limit));
  limit.comp_mask = 0;
  const Own<ibv_qp> early = make_qp(IBV_QPT_RAW_PACKET);
  EXPECT_EQ(EINVAL, ibv_modify_qp_rate_limit(early.get(), &limit)) << "it is in RESET";
}

}  // namespace
}  // namespace verbena::verbs::testing
