// SPDX-License-Identifier: MIT
// Connections, from the first event to the last, and the ids that have them.
#include <endian.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "rdmacm/manager.h"
#include "rdmacm/test_ends.h"

namespace verbena::rdmacm {
namespace {

class Connections : public EndsTest {};

TEST_F(Connections, TellInOrder) {
  prepare(loopback());
  OwnId server = connect();
  EXPECT_EQ(error_of(rdma_disconnect(client.get())), 0);
  for (rdma_event_channel* each : {client_channel.get(), server_channel.get()}) {
    expect(each, RDMA_CM_EVENT_DISCONNECTED);
    expect(each, RDMA_CM_EVENT_TIMEWAIT_EXIT);
  }
}

TEST_F(Connections, BothEndsNameEachOther) {
  for (const Address& where : {loopback(), loopback_ipv6(), as_gid(loopback())}) {
    Address any = where;
    if (any.is_ib()) any.set_service_mask(RDMA_IB_IP_PS_MASK);
    prepare(any);
    const OwnId server = connect();
    const Id& here = Id::of(client.get());
    const Id& there = Id::of(server.get());
    EXPECT_EQ(there.source().family(), where.family());
    EXPECT_EQ(there.source().gid(), here.destination().gid());
    EXPECT_EQ(there.source().port(), here.destination().port());
    EXPECT_EQ(there.destination().gid(), here.source().gid());
    // A request between GIDs does not say from which port.
    EXPECT_EQ(there.destination().port(), where.is_ib() ? 0 : here.source().port());
    client.reset();
    expect(server_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    listener.reset();
  }
}

// docs/security.md: 24 bits, each a fair coin (seven standard deviations).
TEST_F(Connections, BeginAtPacketsThatNobodyGuesses) {
  constexpr int kConnections = 100;
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < kConnections; ++i) {
    prepare(loopback());
    const OwnId server = connect();
    for (rdma_cm_id* id : {client.get(), server.get()}) {
      ibv_qp_attr attributes{};
      attributes.qp_state = IBV_QPS_RTS;
      int mask = 0;
      ASSERT_EQ(error_of(rdma_init_qp_attr(id, &attributes, &mask)), 0);
      numbers.push_back(attributes.sq_psn);
    }
    client.reset();
    expect(server_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    listener.reset();
  }
  for (unsigned bit = 0; bit < 24; ++bit) {
    const auto ones =
        std::ranges::count_if(numbers, [&](std::uint32_t each) { return (each >> bit & 1) != 0; });
    EXPECT_NEAR(static_cast<double>(ones), kConnections, 7 * 0.5 * 14.2) << bit;
  }
  // Of 200 two are equal in one run of 840; three times that is nobody's luck.
  std::ranges::sort(numbers);
  const auto repeated = std::ranges::unique(numbers);
  EXPECT_LT(repeated.size(), 3U);
}

TEST_F(Connections, HaveAttributesForNoOtherState) {
  prepare(loopback());
  for (const std::uint32_t number : {0u, 4u, 6u, 8u, 0xFFFFFFFFu}) {
    ibv_qp_attr attributes{};
    std::memcpy(&attributes.qp_state, &number, sizeof number);
    int mask = 0;
    EXPECT_EQ(error_of(rdma_init_qp_attr(client.get(), &attributes, &mask)), EINVAL) << number;
  }
}

TEST_F(Connections, CarryWhatTheProgramSays) {
  for (const Address& where : {loopback(), as_gid(loopback())}) {
    Address any = where;
    if (any.is_ib()) any.set_service_mask(RDMA_IB_IP_PS_MASK);
    prepare(any);
    // 92 bytes, of which the header of addresses takes 36 (annex A11).
    const std::uint8_t room = where.is_ib() ? 92 : 56;
    std::vector<std::uint8_t> said(room + 1u);
    for (std::size_t i = 0; i < said.size(); ++i)
      said[i] = static_cast<std::uint8_t>(i + 1);
    rdma_conn_param asks = parameters(0x111);
    asks.private_data = said.data();
    asks.private_data_len = static_cast<std::uint8_t>(room + 1);
    EXPECT_EQ(error_of(rdma_connect(client.get(), &asks)), EINVAL);
    asks.private_data_len = room;
    ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
    Told request = expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_EQ(request->param.conn.private_data_len, room);
    EXPECT_EQ(std::memcmp(request->param.conn.private_data, said.data(), room), 0);
    EXPECT_EQ(request->param.conn.qp_num, 0x111u);
    const OwnId server(request->id);
    request.reset();
    EXPECT_EQ(error_of(rdma_reject(server.get(), said.data(), 9)), 0);
    const Told rejected = expect(client_channel.get(), RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(rejected->status, 28) << "by the consumer";
    EXPECT_EQ(std::memcmp(rejected->param.conn.private_data, said.data(), 9), 0);
    listener.reset();
  }
}

TEST_F(Connections, CallsThatComeTooEarlyOrTwice) {
  prepare(loopback());
  rdma_conn_param asks = parameters(0x111);
  const OwnId fresh = make_id(client_channel.get());
  EXPECT_EQ(error_of(rdma_resolve_route(fresh.get(), 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_connect(fresh.get(), &asks)), EINVAL);
  EXPECT_EQ(error_of(rdma_accept(fresh.get(), &asks)), EINVAL);
  EXPECT_EQ(error_of(rdma_reject(fresh.get(), nullptr, 0)), EINVAL);
  EXPECT_EQ(error_of(rdma_establish(fresh.get())), EINVAL);
  EXPECT_EQ(error_of(rdma_disconnect(fresh.get())), EINVAL);
  EXPECT_EQ(error_of(rdma_bind_addr(listener.get(), raw(loopback()))), EINVAL);
  EXPECT_EQ(error_of(rdma_listen(listener.get(), 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_resolve_addr(client.get(), nullptr, raw(loopback(1)), 1)), EINVAL);
  EXPECT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  EXPECT_EQ(error_of(rdma_connect(client.get(), &asks)), EINVAL);
}

// A queue pair is made while the thread of the events takes the answer: thread sanitizer looks on.
TEST_F(Connections, AQueuePairMayComeLate) {
  prepare(loopback());
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  const OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ASSERT_EQ(error_of(rdma_reject(server.get(), nullptr, 0)), 0);
  ibv_qp_init_attr made = smallest(IBV_QPT_RC);
  EXPECT_EQ(error_of(rdma_create_qp(client.get(), nullptr, &made)), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_REJECTED);
  rdma_destroy_qp(client.get());
}

// The server accepts and leaves at once, and the client looks late.
TEST_F(Connections, WhatHasEndedIsNotEstablished) {
  prepare(loopback());
  ibv_qp_init_attr made = smallest(IBV_QPT_RC);
  ASSERT_EQ(error_of(rdma_create_qp(client.get(), nullptr, &made)), 0);
  rdma_conn_param asks = parameters(0);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  const OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  rdma_conn_param takes = parameters(0x222);
  ASSERT_EQ(error_of(rdma_accept(server.get(), &takes)), 0);
  ASSERT_EQ(error_of(rdma_notify(server.get(), IBV_EVENT_COMM_EST)), 0);
  ASSERT_EQ(error_of(rdma_disconnect(server.get())), 0);
  ASSERT_NO_FATAL_FAILURE(wait_until_waiting(client_channel->fd, 2));
  EXPECT_EQ(expect(client_channel.get(), RDMA_CM_EVENT_CONNECT_ERROR)->status, -ECONNREFUSED);
  expect(client_channel.get(), RDMA_CM_EVENT_DISCONNECTED);
  rdma_destroy_qp(client.get());
}

TEST_F(Connections, AQueuePairIsOfItsIdsKind) {
  for (const rdma_port_space space : {RDMA_PS_TCP, RDMA_PS_UDP}) {
    const OwnId id = make_id(client_channel.get(), space);
    ASSERT_EQ(error_of(rdma_bind_addr(id.get(), raw(loopback()))), 0);
    const ibv_qp_type own = id->qp_type;
    ibv_qp_init_attr other = smallest(own == IBV_QPT_UD ? IBV_QPT_RC : IBV_QPT_UD);
    EXPECT_EQ(error_of(rdma_create_qp(id.get(), nullptr, &other)), EINVAL);
    EXPECT_EQ(id->qp_type, own);
    ibv_qp_init_attr fits = smallest(own);
    EXPECT_EQ(error_of(rdma_create_qp(id.get(), nullptr, &fits)), 0);
    rdma_destroy_qp(id.get());
  }
}

TEST_F(Connections, FamiliesDoNotMix) {
  const OwnId id = make_id(client_channel.get());
  ASSERT_EQ(error_of(rdma_bind_addr(id.get(), raw(loopback()))), 0);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, raw(as_gid(loopback(7))), 1)), EINVAL);
  const OwnId other = make_id(client_channel.get());
  EXPECT_EQ(
      error_of(rdma_resolve_addr(other.get(), raw(loopback(20'100)), raw(loopback_ipv6(7)), 1)),
      EINVAL);
  sockaddr_storage unknown{};
  unknown.ss_family = AF_UNIX;
  auto* const strange = reinterpret_cast<sockaddr*>(&unknown);
  EXPECT_EQ(error_of(rdma_resolve_addr(other.get(), nullptr, strange, 1)), EAFNOSUPPORT);
  EXPECT_EQ(error_of(rdma_bind_addr(other.get(), strange)), EAFNOSUPPORT);
}

// An IPv4 address written as an IPv6 one is IPv4 all the same.
TEST_F(Connections, ABoundIdReachesOnlyItsOwnKind) {
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = htobe16(4242);
  const Gid ipv4 = loopback().gid();
  std::memcpy(&mapped.sin6_addr, ipv4.bytes, sizeof mapped.sin6_addr);
  const OwnId id = make_id(client_channel.get());
  ASSERT_EQ(error_of(rdma_bind_addr(id.get(), raw(loopback_ipv6()))), 0);
  auto* const to = reinterpret_cast<sockaddr*>(&mapped);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, to, 1000)), ENETUNREACH);
  EXPECT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, raw(loopback_ipv6(4242)), 1000)), 0);
}

TEST_F(Connections, NobodyListens) {
  prepare(loopback());
  const Address there = Id::of(listener.get()).source();
  listener.reset();
  OwnId id = make_id(client_channel.get());
  ASSERT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, raw(there), 1)), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_EQ(error_of(rdma_resolve_route(id.get(), 1)), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(id.get(), &asks)), 0);
  EXPECT_EQ(expect(client_channel.get(), RDMA_CM_EVENT_REJECTED)->status, 8);
}

// As the kernel counts: what was not fetched yet.
TEST_F(Connections, TheBacklogIsWhatWaits) {
  prepare(loopback(), RDMA_PS_TCP, 1);
  rdma_conn_param asks = parameters(0x111);
  const OwnId second = resolved();
  const OwnId third = resolved();
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  asks.qp_num = 0x112;
  ASSERT_EQ(error_of(rdma_connect(second.get(), &asks)), 0);
  const Told refused = expect(client_channel.get(), RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(refused->id, second.get());
  EXPECT_EQ(refused->status, 3) << "no resources";
  const OwnId first_server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  asks.qp_num = 0x113;
  ASSERT_EQ(error_of(rdma_connect(third.get(), &asks)), 0);
  const OwnId third_server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
}

// Requests that its program never saw end with it.
TEST_F(Connections, AListenerTakesItsRequestsAlong) {
  prepare(loopback());
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  wait_until_readable(server_channel->fd);
  listener.reset();
  expect(client_channel.get(), RDMA_CM_EVENT_REJECTED);
}

TEST_F(Connections, EventsMoveWithTheirId) {
  prepare(loopback());
  const OwnChannel third(rdma_create_event_channel());
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  wait_until_readable(server_channel->fd);
  ASSERT_EQ(error_of(rdma_migrate_id(listener.get(), third.get())), 0);
  EXPECT_EQ(listener->channel, third.get());
  Told request = expect(third.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_EQ(request->listen_id, listener.get());
  EXPECT_EQ(request->id->channel, third.get()) << "and what it brought";
  const OwnId server(request->id);
  // What comes later comes there as well.
  rdma_conn_param takes = parameters(0x222);
  ASSERT_EQ(error_of(rdma_accept(server.get(), &takes)), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(error_of(rdma_establish(client.get())), 0);
  expect(third.get(), RDMA_CM_EVENT_ESTABLISHED);
  // Channels go last.
  request.reset();
  listener.reset();
}

// Whoever destroys an id knows that nobody holds an event of it any more.
TEST_F(Connections, DestroyingWaitsForWhatWasFetched) {
  prepare(loopback());
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  EXPECT_EQ(error_of(rdma_reject(server.get(), nullptr, 0)), 0);
  Told held = expect(client_channel.get(), RDMA_CM_EVENT_REJECTED);
  std::atomic<bool> is_released{false};
  auto destroyed = std::async(std::launch::async, [&] {
    rdma_destroy_id(client.release());
    return is_released.load();
  });
  std::this_thread::yield();
  is_released = true;
  held.reset();
  EXPECT_TRUE(destroyed.get());
}

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return std::distance(begin(folder), end(folder));
}

// Asks for events until it is cancelled.
class Asking {
 public:
  explicit Asking(rdma_event_channel* channel)
      : thread_([this, channel] {
          id_ = gettid();
          rdma_cm_event* event = nullptr;
          while ((error_ = error_of(rdma_get_cm_event(channel, &event))) == 0)
            rdma_ack_cm_event(event);
        }) {}
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  ~Asking() {
    pthread_cancel(thread_.native_handle());
    thread_.join();
  }
  bool does_sleep() const {
    if (id_ == 0) return false;
    std::ifstream file("/proc/self/task/" + std::to_string(id_) + "/stat");
    std::string all;
    std::getline(file, all);
    const std::size_t name_ends = all.rfind(") ");
    return name_ends != std::string::npos && all.substr(name_ends + 2, 1) == "S";
  }
  int error() const { return error_; }

 private:
  std::atomic<pid_t> id_{0};
  std::atomic<int> error_{0};
  std::thread thread_;
};

// rping: its thread asks for events without end, and its channel is destroyed meanwhile.
TEST_F(Connections, ADestroyedChannelIsAskedAgain) {
  rdma_event_channel* const channel = client_channel.release();
  rdma_destroy_event_channel(channel);
  const Asking asking(channel);
  while (!asking.does_sleep() && asking.error() == 0)
    std::this_thread::yield();
  EXPECT_EQ(asking.error(), 0) << "as if it had come a little earlier";

  rdma_event_channel* const other = server_channel.release();
  ASSERT_EQ(fcntl(other->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_destroy_event_channel(other);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(error_of(rdma_get_cm_event(other, &event)), EBADF);
}

TEST_F(Connections, ChannelsAreDestroyedWhileTheyAreAsked) {
  listener = make_id(server_channel.get());
  const Address somewhere = loopback();
  ASSERT_EQ(error_of(rdma_bind_addr(listener.get(), raw(somewhere))), 0);
  const Address to = Id::of(listener.get()).source();
  const std::ptrdiff_t before = open_descriptors();
  for (int i = 0; i < 300; ++i) {
    rdma_event_channel* const channel = rdma_create_event_channel();
    ASSERT_TRUE(channel) << strerror(errno);
    const Asking asking(channel);
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(error_of(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP)), 0);
    ASSERT_EQ(error_of(rdma_resolve_addr(id, nullptr, raw(to), 1000)), 0);
    // Half of them have just fetched the event.
    while (i % 2 != 0 && Id::of(id).delivered == 0)
      std::this_thread::yield();
    ASSERT_EQ(error_of(rdma_destroy_id(id)), 0);
    rdma_destroy_event_channel(channel);
    EXPECT_EQ(asking.error(), 0);
  }
  EXPECT_LT(open_descriptors(), before + 20) << "also those that a thread slept on";
}

// Whatever they were doing, others go on.
TEST_F(Connections, ThreadsAreCancelledWhereTheyHoldNoLock) {
  prepare(loopback());
  const OwnChannel channel = std::exchange(client_channel, OwnChannel(rdma_create_event_channel()));
  const OwnId other = make_id(channel.get());
  const OwnId connecting = std::move(client);
  const Address to = Id::of(listener.get()).source();
  rdma_conn_param asks = parameters(0x111);
  const auto cancelled_in = [](auto call) {
    std::thread([&] {
      pthread_cancel(pthread_self());
      call();
    }).join();
  };
  // Another address than the last one, to which the way is known.
  const Address elsewhere =
      Address::of(wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 9}), to.port(), 0);
  cancelled_in([&] { rdma_resolve_addr(other.get(), nullptr, raw(elsewhere), 1000); });
  cancelled_in([&] { rdma_connect(connecting.get(), &asks); });
  cancelled_in([&] { rdma_disconnect(connecting.get()); });
  cancelled_in([&] { rdma_listen(listener.get(), 0); });
  client = resolved();
}

TEST_F(Connections, CapabilitiesTravelBothWays) {
  prepare(loopback());
  ibv_ece ours{.vendor_id = 0x15B3, .options = 5, .comp_mask = 0};
  ASSERT_EQ(error_of(rdma_set_local_ece(client.get(), &ours)), 0);
  ibv_ece wrong{.vendor_id = 1, .options = 1, .comp_mask = 1};
  EXPECT_EQ(error_of(rdma_set_local_ece(client.get(), &wrong)), EINVAL);
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  const OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ibv_ece seen{};
  ASSERT_EQ(error_of(rdma_get_remote_ece(server.get(), &seen)), 0);
  EXPECT_EQ(seen.vendor_id, 0x15B3u);
  EXPECT_EQ(seen.options, 5u);
  ibv_ece answer{.vendor_id = 0x15B3, .options = 4, .comp_mask = 0};
  ASSERT_EQ(error_of(rdma_set_local_ece(server.get(), &answer)), 0);
  rdma_conn_param takes = parameters(0x222);
  ASSERT_EQ(error_of(rdma_accept(server.get(), &takes)), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(error_of(rdma_get_remote_ece(client.get(), &seen)), 0);
  EXPECT_EQ(seen.options, 4u);
}

TEST_F(Connections, CapabilitiesCanBeRefused) {
  prepare(loopback());
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  const OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  ASSERT_EQ(error_of(rdma_reject_ece(server.get(), nullptr, 0)), 0);
  EXPECT_EQ(expect(client_channel.get(), RDMA_CM_EVENT_REJECTED)->status, 35);
}

TEST_F(Connections, DatagramsAreResolved) {
  prepare(loopback(), RDMA_PS_UDP);
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  const OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  rdma_conn_param takes = parameters(0x222);
  ASSERT_EQ(error_of(rdma_accept(server.get(), &takes)), 0);
  const Told known = expect(client_channel.get(), RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EQ(known->param.ud.qp_num, 0x222u);
  EXPECT_EQ(known->param.ud.qkey, std::uint32_t{RDMA_UDP_QKEY});
  // The engine remembers for seconds to whom it answered; that this is over is no matter of the id.
  Id& answered = Id::of(server.get());
  cm::Event over;
  over.kind = cm::EventKind::kTimeWaitOver;
  over.id = *answered.comm;
  over.tag = reinterpret_cast<std::uint64_t>(&answered);
  {
    Turn turn(answered.manager);
    tell(turn.engine(), over, turn.now());
  }
  EXPECT_EQ(count_waiting(server_channel->fd), 0);
}

}  // namespace
}  // namespace verbena::rdmacm
