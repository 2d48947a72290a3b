// SPDX-License-Identifier: MIT
// Requests that a program has not accepted yet, and what becomes of them.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "rdmacm/test_ends.h"

namespace verbena::rdmacm {
namespace {

class PendingRequests : public EndsTest {
 protected:
  // Clients of the listener; their requests wait in its channel.
  std::vector<OwnId> request(int count) {
    const int before = count_waiting(server_channel->fd);
    std::vector<OwnId> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(resolved());
      rdma_conn_param asks = parameters(next_qp_++);
      EXPECT_EQ(error_of(rdma_connect(clients.back().get(), &asks)), 0);
    }
    wait_until_waiting(server_channel->fd, before + count);
    return clients;
  }
  static int accept(const OwnId& server) {
    rdma_conn_param takes = parameters(0x222);
    return error_of(rdma_accept(server.get(), &takes));
  }

 private:
  std::uint32_t next_qp_ = 0x1000;
};

// The client gives up before its request is fetched; wherever the listener has gone by then.
TEST_F(PendingRequests, TellNothingOfTheirIdsBeforeTheyAreAccepted) {
  const OwnChannel third(rdma_create_event_channel());
  for (rdma_event_channel* const to : {third.get(), server_channel.get()}) {
    prepare(loopback());
    request(1).clear();
    // The end of the first came before this.
    std::vector<OwnId> other = request(1);
    ASSERT_EQ(error_of(rdma_migrate_id(listener.get(), to)), 0);
    const OwnId gone(expect(to, RDMA_CM_EVENT_CONNECT_REQUEST)->id);
    const OwnId server(expect(to, RDMA_CM_EVENT_CONNECT_REQUEST)->id);
    EXPECT_EQ(accept(gone), EINVAL);
    EXPECT_EQ(accept(server), 0);
    EXPECT_EQ(count_waiting(server_channel->fd), 0);
    EXPECT_EQ(count_waiting(third->fd), 0);
    other.clear();
    EXPECT_EQ(expect(to, RDMA_CM_EVENT_REJECTED)->id, server.get());
    listener.reset();
  }
}

TEST_F(PendingRequests, MayEndBetweenFetchingAndAccepting) {
  prepare(loopback());
  std::vector<OwnId> clients = request(1);
  const OwnId server(expect(server_channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST)->id);
  clients.clear();
  for (int i = 0; Id::of(server.get()).stage != Stage::kOver; ++i) {
    ASSERT_LT(i, 20'000) << "the client's end is not known";
    usleep(1'000);
  }
  EXPECT_EQ(count_waiting(server_channel->fd), 0);
  EXPECT_EQ(accept(server), EINVAL);
}

TEST_F(PendingRequests, AreFetchedWhileTheirListenerGoes) {
  constexpr int kRequests = 300;
  prepare(loopback());
  request(kRequests).clear();
  const std::vector<OwnId> other = request(1);
  ASSERT_EQ(fcntl(server_channel->fd, F_SETFL, O_NONBLOCK), 0);
  std::atomic<bool> is_begun{false};
  std::atomic<bool> is_gone{false};
  std::vector<OwnId> fetched;
  unsigned others = 0;
  std::thread fetching([&] {
    while (!is_begun) {
    }
    while (!is_gone) {
      rdma_cm_event* event = nullptr;
      if (rdma_get_cm_event(server_channel.get(), &event) != 0) continue;
      if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        fetched.emplace_back(event->id);
      } else {
        ++others;
      }
      rdma_ack_cm_event(event);
    }
  });
  is_begun = true;
  listener.reset();
  is_gone = true;
  fetching.join();
  EXPECT_EQ(others, 0u) << "of ids that nobody knows";
  EXPECT_EQ(count_waiting(server_channel->fd), 0);
  fetched.clear();
  EXPECT_EQ(expect(client_channel.get(), RDMA_CM_EVENT_REJECTED)->id, other.front().get());
}

// Whoever fetched from the new channel may wait for the thread that moves the id there.
TEST_F(PendingRequests, MoveWithoutWaitingForWhoeverFetchesThem) {
  const OwnChannel third(rdma_create_event_channel());
  prepare(loopback());
  const std::vector<OwnId> clients = request(300);
  Told held;
  std::thread fetching([&] { held = next(third.get()); });
  auto moved = std::async(std::launch::async,
                          [&] { return error_of(rdma_migrate_id(listener.get(), third.get())); });
  fetching.join();
  EXPECT_EQ(moved.wait_for(std::chrono::seconds(3)), std::future_status::ready);
  const OwnId server(held->id);
  held.reset();
  EXPECT_EQ(moved.get(), 0);
  listener.reset();
}

// An id without a channel needs a descriptor for what it is told.
TEST_F(PendingRequests, AreRefusedWithoutADescriptor) {
  listener = make_id(nullptr);
  ASSERT_EQ(error_of(rdma_bind_addr(listener.get(), raw(loopback()))), 0);
  ASSERT_EQ(error_of(rdma_listen(listener.get(), 0)), 0);
  client = resolved();
  rdma_conn_param asks = parameters(0x111);
  ASSERT_EQ(error_of(rdma_connect(client.get(), &asks)), 0);
  ASSERT_NO_FATAL_FAILURE(wait_until_readable(listener->channel->fd));
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  rdma_cm_id* server = nullptr;
  const int error = error_of(rdma_get_request(listener.get(), &server));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_EQ(error, EMFILE);
  EXPECT_EQ(server, nullptr);
  ASSERT_NO_FATAL_FAILURE(wait_until_readable(client_channel->fd));
  expect(client_channel.get(), RDMA_CM_EVENT_REJECTED);
}

}  // namespace
}  // namespace verbena::rdmacm
