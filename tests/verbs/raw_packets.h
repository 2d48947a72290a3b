// SPDX-License-Identifier: MIT
// For the tests of raw packets: frames on the loopback interface, of an EtherType that nobody else
// uses, and what takes them.
#pragma once

#include <endian.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {

struct DestroyRaw {
  void operator()(ibv_flow* p) const { EXPECT_EQ(0, ibv_destroy_flow(p)); }
  void operator()(ibv_counters* p) const { EXPECT_EQ(0, ibv_destroy_counters(p)); }
  void operator()(ibv_wq* p) const { EXPECT_EQ(0, ibv_destroy_wq(p)); }
  void operator()(ibv_rwq_ind_table* p) const { EXPECT_EQ(0, ibv_destroy_rwq_ind_table(p)); }
};
template <class Object>
using OwnRaw = std::unique_ptr<Object, DestroyRaw>;

inline constexpr std::uint16_t kExperimental = 0x88B5;  // IEEE 802: for local experiments
inline constexpr std::size_t kHeader = 14;
inline constexpr std::uint32_t kLength = 60;  // of the shortest frame
inline constexpr std::size_t kThere = 4096;   // where frames come to lie

// The attributes and the specs behind them, as programs lay them out.
template <class... Specs>
struct FlowWish;
template <>
struct FlowWish<> {
  ibv_flow_attr attr;
};
template <class First>
struct FlowWish<First> {
  ibv_flow_attr attr;
  First first;
};
template <class First, class Second>
struct FlowWish<First, Second> {
  ibv_flow_attr attr;
  First first;
  Second second;
};
template <class... Specs>
FlowWish<Specs...> wish(const Specs&... specs) {
  FlowWish<Specs...> made{{}, specs...};
  static_assert(sizeof made == (sizeof(ibv_flow_attr) + ... + sizeof(Specs)));
  made.attr = {};
  made.attr.size = sizeof made;
  made.attr.num_of_specs = sizeof...(Specs);
  made.attr.port = 1;
  return made;
}

// A program in C may put any number there.
template <class Enum>
void put(Enum& to, unsigned number) {
  static_assert(sizeof to == sizeof number);
  std::memcpy(&to, &number, sizeof number);
}

// A destination that no other process uses: this test may run several times at once, and all of
// them hear what is on the interface.
inline void put_mac(std::uint8_t* to, std::uint8_t last) {
  const pid_t self = getpid();
  static_assert(sizeof self == 4);
  to[0] = 0x02;
  std::memcpy(to + 1, &self, sizeof self);
  to[5] = last;
}

inline ibv_flow_spec_eth eth_spec(std::uint8_t last_of_mac, std::uint16_t type = kExperimental) {
  ibv_flow_spec_eth spec{};
  spec.type = IBV_FLOW_SPEC_ETH;
  spec.size = sizeof spec;
  put_mac(spec.val.dst_mac, last_of_mac);
  spec.val.ether_type = htobe16(type);
  std::memset(spec.mask.dst_mac, 0xFF, sizeof spec.mask.dst_mac);
  spec.mask.ether_type = 0xFFFF;
  return spec;
}

class RawPacketTest : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    sender = make_qp(IBV_QPT_RAW_PACKET);
    if (!sender && errno == EPERM) GTEST_SKIP() << "raw packets need CAP_NET_RAW";
    ASSERT_TRUE(sender);
    to_rts(sender.get());
  }
  static void to_rts(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    attributes.port_num = 1;
    attributes.qp_state = IBV_QPS_INIT;
    EXPECT_EQ(0, ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PORT));
    for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
      attributes.qp_state = state;
      EXPECT_EQ(0, ibv_modify_qp(qp, &attributes, IBV_QP_STATE));
    }
  }
  Own<ibv_qp> make_receiver(const Change& change = {}) {
    Own<ibv_qp> qp = make_qp(IBV_QPT_RAW_PACKET, change);
    EXPECT_TRUE(qp);
    if (qp) to_rts(qp.get());
    return qp;
  }
  template <class Wish>
  static OwnRaw<ibv_flow> make_flow(ibv_qp* qp, Wish attributes) {
    return OwnRaw<ibv_flow>(ibv_create_flow(qp, reinterpret_cast<ibv_flow_attr*>(&attributes)));
  }

  // A frame at `offset` of the memory: `length` bytes, each of the payload `fill`.
  ibv_sge frame(std::size_t offset, std::uint8_t last_of_mac, std::uint32_t length,
                std::uint8_t fill, std::uint16_t type = kExperimental) {
    std::uint8_t* const at = memory.data() + offset;
    std::memset(at, 0, kHeader);
    put_mac(at, last_of_mac);
    at[6] = 0x02;
    at[12] = static_cast<std::uint8_t>(type >> 8);
    at[13] = static_cast<std::uint8_t>(type);
    if (length > kHeader) std::memset(at + kHeader, fill, length - kHeader);
    return sge(offset, length);
  }
  void post_receive(ibv_qp* qp, std::size_t offset, std::uint32_t length, std::uint64_t id) {
    ibv_sge piece = sge(offset, length);
    ibv_recv_wr request = receive(piece, id);
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_recv(qp, &request, &bad));
  }
  void post_send(ibv_sge piece, unsigned flags = IBV_SEND_SIGNALED, std::uint64_t id = 1) {
    ibv_send_wr request = send(piece, id);
    request.send_flags = flags;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_send(sender.get(), &request, &bad));
  }
  bool is_frame(std::size_t at, std::size_t of, std::uint32_t length) const {
    return std::equal(memory.begin() + static_cast<std::ptrdiff_t>(at),
                      memory.begin() + static_cast<std::ptrdiff_t>(at + length),
                      memory.begin() + static_cast<std::ptrdiff_t>(of));
  }

  Own<ibv_qp> sender;
};

}  // namespace verbena::verbs::testing
