// SPDX-License-Identifier: MIT
// Servers that are killed, and what their clients hear.
#include <endian.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/unique_fd.h"
#include "rdmacm/test_ends.h"

namespace verbena::rdmacm {
namespace {

// A descriptor: this process listens, writes the port there, and accepts all.
constexpr const char* kPortTo = "VERBENA_TEST_PORT_TO";

TEST(PeerDeathProcess, Server) {
  const char* const given = std::getenv(kPortTo);
  if (!given) GTEST_SKIP() << "only as a process of the test below";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const UniqueFd told(std::atoi(given));
  const OwnChannel channel(rdma_create_event_channel());
  const OwnId listener = make_id(channel.get());
  ASSERT_EQ(error_of(rdma_bind_addr(listener.get(), raw(loopback()))), 0);
  ASSERT_EQ(error_of(rdma_listen(listener.get(), 0)), 0);
  const std::uint16_t port = be16toh(rdma_get_src_port(listener.get()));
  ASSERT_EQ(write(told.get(), &port, sizeof port), static_cast<ssize_t>(sizeof port));
  for (std::uint32_t qp = 0x222;; ++qp) {
    const Told event = next(channel.get());
    if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) continue;
    rdma_conn_param takes{};
    takes.qp_num = qp;
    ASSERT_EQ(error_of(rdma_accept(event->id, &takes)), 0);
  }
}

class ServerProcess {
 public:
  ServerProcess() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe(ends), 0);
    const UniqueFd from(ends[0]);
    UniqueFd to(ends[1]);
    pid_ = start(to.get());
    to.reset();
    EXPECT_EQ(read(from.get(), &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() { kill(); }

  Address address() const { return loopback(port_); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }

 private:
  static pid_t start(int told) {
    std::string value = kPortTo;
    value += '=';
    value += std::to_string(told);
    const pid_t made = fork();
    if (made != 0) return made;
    const char* words[] = {"rdmacm_test", "--gtest_filter=PeerDeathProcess.Server", nullptr};
    const char* variables[] = {value.c_str(), nullptr};
    execve("/proc/self/exe", const_cast<char**>(words), const_cast<char**>(variables));
    _exit(127);
  }

  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

class PeerDeath : public EndsTest {
 protected:
  static void ask(const OwnId& id, std::uint32_t qp) {
    rdma_conn_param asks = parameters(qp);
    ASSERT_EQ(error_of(rdma_connect(id.get(), &asks)), 0);
    wait_until_readable(id->channel->fd);
  }
  static void expect_soon(rdma_event_channel* channel, rdma_cm_event_type type) {
    ASSERT_NO_FATAL_FAILURE(wait_until_readable(channel->fd));
    expect(channel, type);
  }
};

TEST_F(PeerDeath, IsToldAlsoToWhoFetchesTheAnswerAfterIt) {
  ServerProcess server;
  const OwnId early = resolved(client_channel.get(), server.address());
  ASSERT_NO_FATAL_FAILURE(ask(early, 0x111));
  expect(client_channel.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(error_of(rdma_establish(early.get())), 0);
  const OwnChannel other(rdma_create_event_channel());
  const OwnId late = resolved(other.get(), server.address());
  ASSERT_NO_FATAL_FAILURE(ask(late, 0x112));
  server.kill();
  // What is established has ended when this process has heard of the death.
  ASSERT_NO_FATAL_FAILURE(expect_soon(client_channel.get(), RDMA_CM_EVENT_DISCONNECTED));
  expect(other.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
  ASSERT_EQ(error_of(rdma_establish(late.get())), 0);
  ASSERT_NO_FATAL_FAILURE(expect_soon(other.get(), RDMA_CM_EVENT_DISCONNECTED));
}

}  // namespace
}  // namespace verbena::rdmacm
