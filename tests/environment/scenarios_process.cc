// SPDX-License-Identifier: MIT
// Programs that fork, spawn, start threads and exit.
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "node.h"
#include "scenarios.h"

extern char** environ;

namespace probe {
namespace {

bool ends_well(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool run_pair(void (*body)(Wire&)) { return run_two(body, body); }

bool pair() {
  return run_pair([](Wire& wire) {
    Node node;
    talk(node, wire);
  });
}

bool loopback() {
  return run_one([] {
    Node node;
    std::byte* memory = map_pages(8192);
    ibv_mr* mr = node.reg(memory, 8192);
    ibv_qp* qps[] = {node.create(), node.create()};
    for (int i = 0; i < 2; ++i)
      node.connect(qps[i], {qps[1 - i]->qp_num, 0, 0, node.gid});
    memset(memory, 9, 4096);
    require(post(qps[0], {.memory = memory,
                          .length = 4096,
                          .local_key = mr->lkey,
                          .remote = reinterpret_cast<std::uint64_t>(memory + 4096),
                          .remote_key = mr->rkey}) == 0,
            "ibv_post_send");
    node.wait_success(1);
    require(memcmp(memory, memory + 4096, 4096) == 0, "the content");
  });
}

// What a child has inherited answers EIO, from the data path to the last query.
void try_inherited(Node& node, ibv_qp* qp, ibv_mr* mr, std::byte* memory) {
  require(post(qp, {.memory = memory, .length = 8, .local_key = mr->lkey}) == EIO, "post_send");
  require(post_receive(qp, memory, 8, mr->lkey) == EIO, "post_recv");
  ibv_wc completion{};
  require(ibv_poll_cq(node.cq, 1, &completion) < 0, "poll_cq");
  require(ibv_req_notify_cq(node.cq, 0) == EIO, "req_notify_cq");
  ibv_qp_attr state{};
  ibv_qp_init_attr made{};
  state.qp_state = IBV_QPS_ERR;
  require(ibv_modify_qp(qp, &state, IBV_QP_STATE) == EIO, "modify_qp");
  require(ibv_query_qp(qp, &state, IBV_QP_STATE, &made) == EIO, "query_qp");
  require(!ibv_alloc_pd(node.context) && errno == EIO, "alloc_pd");
  require(!ibv_reg_mr(node.pd, memory, 8, 0) && errno == EIO, "reg_mr");
  require(!ibv_create_cq(node.context, 1, nullptr, nullptr, 0) && errno == EIO, "create_cq");
  require(!ibv_create_comp_channel(node.context) && errno == EIO, "create_comp_channel");
  made.send_cq = made.recv_cq = node.cq;
  made.qp_type = IBV_QPT_RC;
  require(!ibv_create_qp(node.pd, &made) && errno == EIO, "create_qp");
  ibv_async_event event;
  require(ibv_get_async_event(node.context, &event) != 0, "get_async_event");
  // Taking down what is dead works, quietly.
  ibv_destroy_qp(qp);
  ibv_dereg_mr(mr);
  ibv_destroy_cq(node.cq);
  ibv_destroy_comp_channel(node.channel);
  ibv_dealloc_pd(node.pd);
  ibv_close_device(node.context);
}

// The parent talks to a peer; its child finds everything dead, opens the device anew and talks to a
// process that never knew the parent; nothing of it reaches the parent's peer.
void fork_parent(Wire& wire) {
  Node node;
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
  const pid_t third = fork();
  if (third == 0) {
    i_am("third");
    Wire to_child(fds[1]);
    Node fresh;
    talk(fresh, to_child, 20);
    exit(0);
  }
  std::byte* memory = map_pages(8192);
  ibv_mr* mr = node.reg(memory, 8192);
  Address peer;
  ibv_qp* qp = node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer);
  memset(memory, 1, 4096);
  const Work write{.memory = memory,
                   .length = 4096,
                   .local_key = mr->lkey,
                   .remote = peer.memory,
                   .remote_key = peer.key};
  require(post(qp, write) == 0, "ibv_post_send");
  node.wait_success(1);
  const pid_t child = fork();
  if (child == 0) {
    i_am("child");
    memset(memory, 2, 4096);  // its own copy
    try_inherited(node, qp, mr, memory);
    Wire to_third(fds[0]);
    Node fresh;
    talk(fresh, to_third, 20);
    exit(0);
  }
  for (int round = 0; round < 200; ++round) {
    require(post(qp, write) == 0, "ibv_post_send beside a child");
    node.wait_success(1);
  }
  require(ends_well(child), "the child");
  require(ends_well(third), "the third process");
  wire.meet();
  talk(node, wire, 20);
}

void fork_peer(Wire& wire) {
  Node node;
  std::byte* memory = map_pages(8192);
  ibv_mr* mr = node.reg(memory, 8192);
  Address peer;
  node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer);
  wire.meet();
  for (int i = 0; i < 4096; ++i)
    require(memory[i] == std::byte{1}, "the child's bytes came");
  talk(node, wire, 20);
}

bool fork_child() { return run_two(fork_parent, fork_peer); }

// A daemon: it opens the device, forks away from its parent, and then begins.
void daemon_after_open(Wire& wire) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  require(list && list[0], "no device");
  ibv_context* early = ibv_open_device(list[0]);
  require(early != nullptr, "ibv_open_device");
  const pid_t child = fork();  // daemon(3), but its parent waits, so that the result is seen
  if (child != 0) _exit(ends_well(child) ? 0 : 1);
  setsid();
  i_am("daemon");
  ibv_port_attr port{};
  ibv_device_attr attributes{};
  require(ibv_query_device(early, &attributes) == 0, "ibv_query_device");
  require(ibv_query_port(early, 1, &port) == 0, "ibv_query_port");
  ibv_pd* pd = ibv_alloc_pd(early);
  require(pd != nullptr, "ibv_alloc_pd on a device opened before daemon(): %s", strerror(errno));
  require(ibv_dealloc_pd(pd) == 0 && ibv_close_device(early) == 0, "taking it down");
  Node node;
  talk(node, wire, 20);
}

bool daemon() { return run_pair(daemon_after_open); }

// Programs are started while requests are under way; none of it is noticed.
void spawn_while_talking(Wire& wire) {
  Node node;
  std::atomic<bool> is_over{false};
  std::thread spawner([&] {
    char name[] = "/bin/true";
    char* words[] = {name, nullptr};
    for (int i = 0; i < 20; ++i) {
      pid_t child = 0;
      require(posix_spawn(&child, name, nullptr, nullptr, words, environ) == 0, "posix_spawn");
      require(ends_well(child), "posix_spawn's child");
      // NOLINTNEXTLINE(bugprone-unsafe-functions): programs do
      child = vfork();
      if (child == 0) {
        execv(name, words);
        _exit(1);
      }
      require(ends_well(child), "vfork's child");
      child = fork();
      if (child == 0) _exit(0);
      require(ends_well(child), "fork's child");
    }
    is_over = true;
  });
  bool both = false;
  while (!both) {
    talk(node, wire, 5);
    wire.put(is_over.load());
    both = wire.get<bool>() && is_over;
    wire.put(both);
    both = wire.get<bool>() && both;
  }
  spawner.join();
}

bool spawn() { return run_pair(spawn_while_talking); }

// Threads poll without a pause while the program forks: the children end, whatever lock was held.
void fork_among_threads(Wire& wire) {
  Node node;
  std::atomic<bool> is_over{false};
  ibv_cq* idle = ibv_create_cq(node.context, 16, nullptr, nullptr, 0);
  std::vector<std::thread> pollers;
  for (int i = 0; i < 3; ++i) {
    pollers.emplace_back([&] {
      ibv_wc completion{};
      while (!is_over)
        require(ibv_poll_cq(idle, 1, &completion) == 0, "a poller");
    });
  }
  std::vector<pid_t> children;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      ibv_wc completion{};
      require(ibv_poll_cq(idle, 1, &completion) < 0, "poll_cq in a child");
      require(!ibv_alloc_pd(node.context) && errno == EIO, "alloc_pd in a child");
      // The list of devices is nobody's.
      int count = 0;
      ibv_device** list = ibv_get_device_list(&count);
      require(list && count > 0, "no device in a child");
      ibv_context* fresh = ibv_open_device(list[0]);
      require(fresh && ibv_alloc_pd(fresh), "a fresh device in a child");
      _exit(0);
    }
    children.push_back(child);
    talk(node, wire, 1);
  }
  for (const pid_t child : children)
    require(ends_well(child), "a child");
  is_over = true;
  for (std::thread& poller : pollers)
    poller.join();
}

bool fork_threads() { return run_pair(fork_among_threads); }

// Threads come, use the device, and go.
bool thread_exit() {
  return run_pair([](Wire& wire) {
    Node node;
    for (int i = 0; i < 30; ++i) {
      std::thread one([&] { talk(node, wire, 1); });
      one.join();
    }
  });
}

// Verbs in a destructor that runs at exit, after main and after the library's own could have.
struct AtExit {
  Node* node = nullptr;
  ibv_qp* qp = nullptr;
  ~AtExit() {
    if (!node) return;
    ibv_wc completion{};
    require(ibv_poll_cq(node->cq, 1, &completion) == 0, "poll_cq at exit");
    require(ibv_destroy_qp(qp) == 0, "destroy_qp at exit");
    require(ibv_destroy_cq(node->cq) == 0, "destroy_cq at exit");
    require(ibv_destroy_comp_channel(node->channel) == 0, "destroy_comp_channel at exit");
    require(ibv_dealloc_pd(node->pd) == 0, "dealloc_pd at exit");
    require(ibv_close_device(node->context) == 0, "close_device at exit");
  }
};
AtExit at_exit;

bool exit_destructor() {
  return run_pair([](Wire& wire) {
    auto* node = new Node;
    talk(*node, wire, 5);
    at_exit.qp = node->create();
    at_exit.node = node;
    exit(0);
  });
}

}  // namespace

std::vector<Scenario> process_scenarios() {
  return {{"pair", pair},
          {"loopback", loopback},
          {"fork", fork_child},
          {"daemon", daemon},
          {"spawn", spawn},
          {"fork-threads", fork_threads},
          {"thread-exit", thread_exit},
          {"exit-destructor", exit_destructor}};
}

}  // namespace probe
