// SPDX-License-Identifier: MIT
// Ids of this process that connect to each other on the loopback interface. For tests only.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "rdmacm/address.h"
#include "rdmacm/border.h"
#include "rdmacm/id.h"
#include "wire/ip.h"

namespace verbena::rdmacm {

inline Address loopback(std::uint16_t port = 0) {
  return Address::of(wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 1}), port, 0);
}
inline Address loopback_ipv6(std::uint16_t port = 0) {
  Gid gid;
  gid.bytes[15] = 1;
  return Address::of(gid, port, 0);
}
inline Address as_gid(const Address& address, rdma_port_space space = RDMA_PS_TCP) {
  return Address::of_service(address.gid(), std::uint64_t{space} << 16 | address.port(), 0);
}
// The functions take addresses that they do not change.
inline sockaddr* raw(const Address& address) { return const_cast<sockaddr*>(address.get()); }

// 0, or errno of a call that gives -1.
inline int error_of(int result) { return result == 0 ? 0 : errno; }

struct Channels {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
};
struct Ids {
  void operator()(rdma_cm_id* id) const { EXPECT_EQ(rdma_destroy_id(id), 0); }
};
using OwnChannel = std::unique_ptr<rdma_event_channel, Channels>;
using OwnId = std::unique_ptr<rdma_cm_id, Ids>;

inline OwnId make_id(rdma_event_channel* channel, rdma_port_space space = RDMA_PS_TCP) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel, &id, nullptr, space), 0) << strerror(errno);
  return OwnId(id);
}

inline ibv_qp_init_attr smallest(ibv_qp_type type) {
  ibv_qp_init_attr made{};
  made.qp_type = type;
  made.cap = {.max_send_wr = 1,
              .max_recv_wr = 1,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  return made;
}

// An event that is acknowledged when it goes.
struct Acknowledged {
  void operator()(rdma_cm_event* event) const { rdma_ack_cm_event(event); }
};
using Told = std::unique_ptr<rdma_cm_event, Acknowledged>;

inline Told next(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(channel, &event), 0);
  return Told(event);
}

// Waits for it, and fails the test when it is another.
inline Told expect(rdma_event_channel* channel, rdma_cm_event_type type) {
  Told event = next(channel);
  EXPECT_STREQ(rdma_event_str(event->event), rdma_event_str(type));
  return event;
}

// An event waits, and is left there.
inline void wait_until_readable(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&waiting, 1, 20'000), 1) << "nothing is told";
}

// How many events wait: what its descriptor counts.
inline int count_waiting(int fd) {
  std::ifstream said("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string word; said >> word;) {
    if (word == "eventfd-count:")
      return said >> std::hex >> word ? std::stoi(word, nullptr, 16) : -1;
  }
  return -1;
}
inline void wait_until_waiting(int fd, int count) {
  for (int i = 0; count_waiting(fd) < count; ++i) {
    ASSERT_LT(i, 20'000) << "less is told";
    usleep(1'000);
  }
}

class EndsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_channel.reset(rdma_create_event_channel());
    client_channel.reset(rdma_create_event_channel());
    ASSERT_TRUE(server_channel && client_channel) << strerror(errno);
  }

  // A listener, and a client that knows the way to it.
  void prepare(const Address& where, rdma_port_space space = RDMA_PS_TCP, int backlog = 0) {
    listener = make_id(server_channel.get(), space);
    ASSERT_EQ(error_of(rdma_bind_addr(listener.get(), raw(where))), 0);
    ASSERT_EQ(error_of(rdma_listen(listener.get(), backlog)), 0);
    client = resolved(space);
  }
  OwnId resolved(rdma_port_space space = RDMA_PS_TCP) {
    return resolved(client_channel.get(), Id::of(listener.get()).source(), space);
  }
  static OwnId resolved(rdma_event_channel* channel, const Address& to,
                        rdma_port_space space = RDMA_PS_TCP) {
    OwnId id = make_id(channel, space);
    EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, raw(to), 1000)), 0);
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_EQ(error_of(rdma_resolve_route(id.get(), 1000)), 0);
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
  }
  static rdma_conn_param parameters(std::uint32_t qp) {
    rdma_conn_param made{};
    made.qp_num = qp;
    made.responder_resources = made.initiator_depth = 1;
    made.retry_count = made.rnr_retry_count = 7;
    return made;
  }
  // Without queue pairs: all that is told is said here.
  OwnId connect() {
    rdma_conn_param asks = parameters(0x111);
    EXPECT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
    OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
    rdma_conn_param takes = parameters(0x222);
    EXPECT_EQ(error_of(rdma_accept(server.get(), &takes)), 0);
    expect(client_channel.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
    EXPECT_EQ(error_of(rdma_establish(client.get())), 0);
    expect(server_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
    return server;
  }

  OwnChannel server_channel;
  OwnChannel client_channel;
  OwnId listener;
  OwnId client;
};

}  // namespace verbena::rdmacm
