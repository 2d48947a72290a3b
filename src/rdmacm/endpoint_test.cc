// SPDX-License-Identifier: MIT
// rdma_getaddrinfo(3), and ids that are made from what it gives.
#include <netdb.h>

#include <string>
#include <thread>

#include "rdmacm/test_ends.h"

namespace verbena::rdmacm {
namespace {

struct Freed {
  void operator()(rdma_addrinfo* info) const { rdma_freeaddrinfo(info); }
};
using Answer = std::unique_ptr<rdma_addrinfo, Freed>;

Answer ask(const char* node, const char* service, rdma_addrinfo hints, int error = 0) {
  rdma_addrinfo* found = nullptr;
  EXPECT_EQ(rdma_getaddrinfo(node, service, &hints, &found), error);
  return Answer(found);
}

rdma_addrinfo hints_for(int flags, int family = 0, int space = RDMA_PS_TCP) {
  rdma_addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_family = family;
  hints.ai_port_space = space;
  return hints;
}

TEST(AddressInfo, WhereToAndFromWhere) {
  const Answer active = ask("127.0.0.1", "7471", hints_for(RAI_NUMERICHOST));
  EXPECT_EQ(active->ai_family, AF_INET);
  EXPECT_EQ(active->ai_port_space, RDMA_PS_TCP);
  EXPECT_EQ(active->ai_qp_type, IBV_QPT_RC);
  EXPECT_EQ(active->ai_src_addr, nullptr);
  ASSERT_TRUE(active->ai_dst_addr);
  EXPECT_EQ(Address::from(active->ai_dst_addr)->port(), 7471);
  const Answer passive = ask("127.0.0.1", "7471", hints_for(RAI_NUMERICHOST | RAI_PASSIVE));
  EXPECT_EQ(passive->ai_dst_addr, nullptr);
  ASSERT_TRUE(passive->ai_src_addr);
  EXPECT_EQ(Address::from(passive->ai_src_addr)->gid(), loopback().gid());
}

TEST(AddressInfo, GidsAreWrittenAsAddresses) {
  struct Case {
    const char* text;
    Gid gid;
  };
  const Case cases[] = {{"::1", loopback_ipv6().gid()},
                        {"::ffff:127.0.0.1", loopback().gid()},
                        {"127.0.0.1", loopback().gid()}};
  for (const Case& each : cases) {
    const Answer found =
        ask(each.text, "7471", hints_for(RAI_NUMERICHOST | RAI_FAMILY, AF_IB, RDMA_PS_TCP));
    EXPECT_EQ(found->ai_family, AF_IB);
    EXPECT_EQ(found->ai_dst_len, sizeof(sockaddr_ib));
    ASSERT_TRUE(found->ai_dst_addr);
    const auto to = Address::from(found->ai_dst_addr);
    EXPECT_EQ(to->family(), AF_IB);
    EXPECT_EQ(to->gid(), each.gid);
    EXPECT_EQ(to->service(), RDMA_IB_IP_PS_TCP + 7471);
  }
  const Answer any = ask(nullptr, "0", hints_for(RAI_PASSIVE | RAI_FAMILY, AF_IB, RDMA_PS_IB));
  const auto from = Address::from(any->ai_src_addr);
  EXPECT_TRUE(from->is_any());
  EXPECT_TRUE(from->is_port_open());
  EXPECT_EQ(from->service(), std::uint64_t{RDMA_PS_IB} << 16);
}

TEST(AddressInfo, WhatCannotBeResolved) {
  ask("nonsense", "1", hints_for(RAI_NUMERICHOST), EAI_NONAME);
  ask("::1", "1", hints_for(RAI_NUMERICHOST, AF_INET), EAI_ADDRFAMILY);
  rdma_addrinfo* found = nullptr;
  EXPECT_EQ(rdma_getaddrinfo(nullptr, nullptr, nullptr, &found), EAI_NONAME);
}

// The hints say all where nothing else does.
TEST(AddressInfo, HintsAreCopied) {
  const Address to = loopback(7);
  rdma_addrinfo hints = hints_for(0);
  hints.ai_dst_addr = raw(to);
  hints.ai_dst_len = to.size();
  const Answer found = ask(nullptr, nullptr, hints);
  ASSERT_TRUE(found->ai_dst_addr);
  EXPECT_NE(found->ai_dst_addr, hints.ai_dst_addr);
  EXPECT_EQ(Address::from(found->ai_dst_addr)->port(), 7);
}

class EndPoints : public ::testing::TestWithParam<int> {};

// Ids without a channel, whose calls wait for what they begin.
TEST_P(EndPoints, Connect) {
  const int family = GetParam();
  const char* const where = family == AF_INET6 ? "::1" : "127.0.0.1";
  const int flags = RAI_NUMERICHOST | RAI_FAMILY;
  const Answer passive = ask(where, "0", hints_for(flags | RAI_PASSIVE, family));
  ibv_qp_init_attr attributes{};
  attributes.cap = {4, 4, 1, 1, 0};
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_ep(&listener, passive.get(), nullptr, &attributes), 0) << strerror(errno);
  EXPECT_EQ(listener->qp, nullptr) << "what comes gets one";
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  const std::string port = std::to_string(be16toh(rdma_get_src_port(listener)));
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_get_request(listener, &id), 0) << strerror(errno);
    EXPECT_NE(id->qp, nullptr);
    ASSERT_EQ(rdma_accept(id, nullptr), 0) << strerror(errno);
    rdma_disconnect(id);
    rdma_destroy_ep(id);
  });
  const Answer active = ask(where, port.c_str(), hints_for(flags, family));
  rdma_cm_id* client = nullptr;
  ibv_qp_init_attr again{};
  again.cap = attributes.cap;
  ASSERT_EQ(rdma_create_ep(&client, active.get(), nullptr, &again), 0) << strerror(errno);
  EXPECT_EQ(rdma_connect(client, nullptr), 0) << strerror(errno);
  server.join();
  rdma_disconnect(client);
  rdma_destroy_ep(client);
  rdma_destroy_ep(listener);
}
INSTANTIATE_TEST_SUITE_P(Families, EndPoints, ::testing::Values(AF_INET, AF_INET6, AF_IB));

// Nobody gets to know the id of a request whose queue pair cannot be made.
TEST(EndPointsOfTemplates, RefuseARequestThatGetsNoQueuePair) {
  const int flags = RAI_NUMERICHOST;
  const Answer passive = ask("127.0.0.1", "0", hints_for(flags | RAI_PASSIVE));
  ibv_qp_init_attr attributes{};
  attributes.cap = {4, 4, 1 << 20, 1, 0};
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_ep(&listener, passive.get(), nullptr, &attributes), 0);
  ASSERT_EQ(rdma_listen(listener, 1), 0);
  const std::string port = std::to_string(be16toh(rdma_get_src_port(listener)));
  std::thread server([&] {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_get_request(listener, &id), -1);
    EXPECT_EQ(errno, EINVAL);
  });
  const Answer active = ask("127.0.0.1", port.c_str(), hints_for(flags));
  rdma_cm_id* client = nullptr;
  ibv_qp_init_attr small{};
  small.cap = {4, 4, 1, 1, 0};
  ASSERT_EQ(rdma_create_ep(&client, active.get(), nullptr, &small), 0);
  EXPECT_EQ(rdma_connect(client, nullptr), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  server.join();
  rdma_destroy_ep(client);
  rdma_destroy_ep(listener);
}

class Requests : public EndsTest {};

TEST_F(Requests, AreForListenersThatWait) {
  prepare(loopback());
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(error_of(rdma_get_request(listener.get(), &id)), EINVAL) << "it has a channel";
  EXPECT_EQ(error_of(rdma_get_request(nullptr, &id)), EINVAL);
}

}  // namespace
}  // namespace verbena::rdmacm
