// SPDX-License-Identifier: MIT
// For the tests of Extended Reliable Connections: a domain, and what belongs to it.
#pragma once

#include <fcntl.h>

#include <memory>

#include "fixture.h"

namespace verbena::verbs::testing {

struct CloseDomain {
  void operator()(ibv_xrcd* p) const { EXPECT_EQ(0, ibv_close_xrcd(p)); }
};
using Domain = std::unique_ptr<ibv_xrcd, CloseDomain>;

class XrcTest : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    domain = open(-1, O_CREAT);
    ASSERT_TRUE(domain);
  }

  Domain open(int fd, int flags) { return open(fd, flags, context.get()); }
  static Domain open(int fd, int flags, ibv_context* by) {
    ibv_xrcd_init_attr wanted{};
    wanted.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    wanted.fd = fd;
    wanted.oflags = flags;
    return Domain(ibv_open_xrcd(by, &wanted));
  }
  Own<ibv_srq> make_srq(ibv_xrcd* of, ibv_pd* in) { return make_srq(of, in, cq.get()); }
  static Own<ibv_srq> make_srq(ibv_xrcd* of, ibv_pd* in, ibv_cq* completions) {
    ibv_srq_init_attr_ex wanted{};
    wanted.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
    wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                       IBV_SRQ_INIT_ATTR_CQ;
    wanted.srq_type = IBV_SRQT_XRC;
    wanted.pd = in;
    wanted.xrcd = of;
    wanted.cq = completions;
    return Own<ibv_srq>(ibv_create_srq_ex(of->context, &wanted));
  }
  Own<ibv_qp> make_target(ibv_xrcd* of) {
    return make_qp(IBV_QPT_XRC_RECV, [of](ibv_qp_init_attr_ex& wanted) {
      wanted.comp_mask = IBV_QP_INIT_ATTR_XRCD;
      wanted.pd = nullptr;
      wanted.xrcd = of;
      wanted.send_cq = wanted.recv_cq = nullptr;
      wanted.cap = {};
    });
  }
  Own<ibv_qp> make_initiator() {
    return make_qp(IBV_QPT_XRC_SEND, [](ibv_qp_init_attr_ex& wanted) { wanted.recv_cq = nullptr; });
  }
  ibv_qp* open_again(ibv_xrcd* of, std::uint32_t number) {
    ibv_qp_open_attr wanted{};
    wanted.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    wanted.qp_num = number;
    wanted.xrcd = of;
    wanted.qp_type = IBV_QPT_XRC_RECV;
    return ibv_open_qp(context.get(), &wanted);
  }
  static std::uint32_t number_of(ibv_srq* srq) {
    std::uint32_t number = 0;
    EXPECT_EQ(0, ibv_get_srq_num(srq, &number));
    return number;
  }
  void post(ibv_srq* srq, const ibv_sge& to, std::uint64_t wr_id) {
    ibv_sge room = to;
    ibv_recv_wr request = receive(room, wr_id);
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_srq_recv(srq, &request, &bad));
  }
  void post(ibv_qp* qp, ibv_send_wr request, std::uint32_t srq) {
    request.qp_type.xrc.remote_srqn = srq;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_send(qp, &request, &bad));
  }
  void connect_pair(ibv_qp* initiator, ibv_qp* target) {
    connect(target, initiator);
    connect(initiator, target);
  }

  Domain domain;
};

}  // namespace verbena::verbs::testing
