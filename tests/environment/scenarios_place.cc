// SPDX-License-Identifier: MIT
// Programs with their own ideas about descriptors, memory, signals, and in odd places.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "node.h"
#include "scenarios.h"

namespace probe {
namespace {

std::vector<int> open_descriptors() {
  std::vector<int> all;
  DIR* folder = opendir("/proc/self/fd");
  require(folder != nullptr, "opendir");
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(folder)) all.push_back(fd);
  }
  closedir(folder);
  return all;
}

// Closes all descriptors that the program does not know, as careful programs do, and opens files in
// their places.
std::vector<int> replace_unknown(const Node& node, const Wire& wire) {
  const int known[] = {0, 1, 2, node.context->async_fd, node.channel->fd, wire.fd()};
  std::vector<int> places;
  for (const int fd : open_descriptors()) {
    if (std::find(std::begin(known), std::end(known), fd) == std::end(known)) places.push_back(fd);
  }
  for (int fd = 3; fd < 1024; ++fd) {
    if (std::find(std::begin(known), std::end(known), fd) == std::end(known)) close(fd);
  }
  const int first = open("/tmp", O_TMPFILE | O_RDWR, 0600);
  require(first >= 0, "a temporary file: %s", strerror(errno));
  std::vector<int> files;
  for (int i = 0; i < 64; ++i)
    files.push_back(open("/tmp", O_TMPFILE | O_RDWR, 0600));
  for (const int place : places)
    files.push_back(dup2(first, place));
  files.push_back(first);
  return files;
}

void require_empty(const std::vector<int>& files) {
  for (const int fd : files) {
    struct stat status{};
    require(fstat(fd, &status) == 0, "descriptor %d of the program was closed", fd);
    require(S_ISREG(status.st_mode) && status.st_size == 0, "descriptor %d was written to", fd);
    require(lseek(fd, 0, SEEK_CUR) == 0, "descriptor %d was moved", fd);
  }
}

void close_before(Wire& wire) {
  Node node;
  const std::vector<int> files = replace_unknown(node, wire);
  talk(node, wire, 20);
  require_empty(files);
}

void close_after(Wire& wire) {
  Node node;
  talk(node, wire, 5);
  ibv_qp* kept = node.create();
  const std::vector<int> files = replace_unknown(node, wire);
  talk(node, wire, 20);
  require(ibv_destroy_qp(kept) == 0, "ibv_destroy_qp");
  require_empty(files);
}

// Everything, what the program knows too; another file lies in each place. Events are lost then;
// bytes are not.
void close_all(Wire& wire) {
  Node node;
  talk(node, wire, 5);
  const int event_fds[] = {node.context->async_fd, node.channel->fd};
  std::vector<int> files = replace_unknown(node, wire);
  for (const int fd : event_fds)
    files.push_back(dup2(files.back(), fd));
  require(ibv_req_notify_cq(node.cq, 0) == 0, "ibv_req_notify_cq");
  talk(node, wire, 20);
  require_empty(files);
}

// What was connected goes on, or ends with an error where our descriptors lie in the program's
// table (a filter wants it so). Nothing hangs, and no byte goes astray.
void close_while_connected(Wire& wire) {
  Node node;
  std::byte* memory = map_pages(8192);
  ibv_mr* mr = node.reg(memory, 8192);
  Address peer;
  ibv_qp* qp = node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer);
  const std::vector<int> files = replace_unknown(node, wire);
  wire.meet();
  bool is_good = true;
  for (int i = 0; i < 150; ++i) {
    const Work write{.memory = memory + 4096,
                     .length = 64,
                     .local_key = mr->lkey,
                     .remote = peer.memory,
                     .remote_key = peer.key};
    require(post(qp, write) == 0, "ibv_post_send");
    const ibv_wc completion = node.wait();
    const bool is_fair = completion.status == IBV_WC_SUCCESS ||
                         completion.status == IBV_WC_RETRY_EXC_ERR ||
                         (!is_good && completion.status == IBV_WC_WR_FLUSH_ERR);
    require(is_fair, "ends with %s", ibv_wc_status_str(completion.status));
    is_good = completion.status == IBV_WC_SUCCESS;
    usleep(10'000);
  }
  require_empty(files);
  wire.meet();
  require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  require_empty(files);
}

bool closed_connected() { return run_two(close_while_connected, close_while_connected); }
bool closed_before() { return run_two(close_before, close_before); }
bool closed_after() { return run_two(close_after, close_after); }
bool closed_all() { return run_two(close_all, close_all); }

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void require_idle(const char* when) {
  usleep(200'000);  // what was under way comes to rest
  const double before = processor_seconds();
  usleep(2'000'000);
  const double used = processor_seconds() - before;
  require(used < 0.010, "%s: %.1f ms of processor time in 2 s", when, used * 1e3);
}

void be_idle(Wire& wire) {
  Node node;
  std::byte* memory = map_pages(4096);
  ibv_mr* mr = node.reg(memory, 4096);
  Address peer;
  ibv_qp* qp = node.meet(wire, {}, peer);
  for (int i = 0; i < 8; ++i)
    require(post_receive(qp, memory, 64, mr->lkey) == 0, "ibv_post_recv");
  require(ibv_req_notify_cq(node.cq, 0) == 0, "ibv_req_notify_cq");
  wire.meet();
  require_idle("connected");
  wire.meet();
  // Much polling, then none.
  talk(node, wire, 20);
  ibv_wc completion{};
  for (int i = 0; i < 100'000; ++i)
    ibv_poll_cq(node.cq, 1, &completion);
  wire.meet();
  require_idle("after polling");
  wire.meet();
}

bool idle() { return run_two(be_idle, be_idle); }

// With a request that the peer cannot answer yet: no receive is posted, for long.
void wait_idly(Wire& wire, bool is_sender) {
  Node node;
  std::byte* memory = map_pages(4096);
  ibv_mr* mr = node.reg(memory, 4096);
  Address peer;
  ibv_qp* qp = node.meet(wire, {}, peer);
  // One of the peer's requests and none of ours: only it takes time.
  if (is_sender) {
    for (std::uint32_t i = 0; i < 8; ++i)
      require(post_receive(qp, memory, 64, mr->lkey) == 0, "ibv_post_recv");
  }
  wire.meet();
  require_idle("waiting");
  wire.meet();
}

bool idle_one_side() {
  return run_two([](Wire& wire) { wait_idly(wire, true); },
                 [](Wire& wire) { wait_idly(wire, false); });
}

sigjmp_buf own_fault;
volatile sig_atomic_t own_faults = 0;
void on_own_fault(int) {
  own_faults = own_faults + 1;
  siglongjmp(own_fault, 1);
}

// Where nothing is mapped; the compiler must not see it, or it refuses.
volatile int* nowhere() {
  volatile std::uintptr_t address = 8;
  return reinterpret_cast<volatile int*>(address);
}

void fault_once() {
  if (sigsetjmp(own_fault, 1) == 0) *nowhere() = 1;
}

// The program's own handler of faults, installed before or after ours, gets its own faults only.
void handle_faults(Wire& wire, bool is_before) {
  const auto install = [] { std::signal(SIGSEGV, on_own_fault); };
  if (is_before) install();
  Node node;
  talk(node, wire, 5);
  if (!is_before) install();
  for (int i = 0; i < 3; ++i) {
    fault_once();
    talk(node, wire, 2);
  }
  require(own_faults == 3, "the program's handler saw %d of 3 faults",
          static_cast<int>(own_faults));
}

bool fault_handler_before() {
  const auto body = [](Wire& wire) { handle_faults(wire, true); };
  return run_two(body, body);
}
bool fault_handler_after() {
  const auto body = [](Wire& wire) { handle_faults(wire, false); };
  return run_two(body, body);
}

// A fault that nobody handles kills the program, as it would have without us.
bool fault_kills() {
  const pid_t child = fork();
  if (child == 0) {
    Node node;
    node.create();
    *nowhere() = 1;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

void enter_empty_root() {
  if (geteuid() != 0) skip("chroot needs root");
  char folder[] = "/tmp/verbena-root-XXXXXX";
  require(mkdtemp(folder) != nullptr, "mkdtemp");
  require(chdir(folder) == 0 && rmdir(folder) == 0 && chroot(".") == 0, "chroot");
}

// No /proc, no /sys, no /dev.
bool empty_root() {
  const auto body = [](Wire& wire) {
    enter_empty_root();
    Node node;
    talk(node, wire, 20);
  };
  return run_two(body, body);
}

// Each in a pid namespace of its own, both in one network namespace.
bool pid_namespaces() {
  if (geteuid() != 0) skip("pid namespaces need root");
  const auto body = [](Wire& wire) {
    require(unshare(CLONE_NEWPID) == 0, "unshare: %s", strerror(errno));
    const pid_t child = fork();
    if (child != 0) {
      int status = 0;
      waitpid(child, &status, 0);
      _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    require(getpid() == 1, "not the first of its namespace");
    Node node;
    talk(node, wire, 20);
  };
  return run_two(body, body);
}

// Processes of different users see silence, as if nobody were there.
bool other_user() {
  if (geteuid() != 0) skip("other users need root");
  const auto body_of = [](uid_t user) {
    return [user](Wire& wire) {
      require(setresuid(user, user, user) == 0, "setresuid");
      Node node;
      std::byte* memory = map_pages(4096);
      ibv_mr* mr = node.reg(memory, 4096);
      Address peer;
      QpOptions options;
      options.timeout = 10;  // 4 ms
      options.retries = 3;
      ibv_qp* qp = node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer,
                             options);
      memory[0] = std::byte{5};
      require(post(qp, {.memory = memory,
                        .length = 1,
                        .local_key = mr->lkey,
                        .remote = peer.memory + 8,
                        .remote_key = peer.key}) == 0,
              "ibv_post_send");
      const ibv_wc completion = node.wait();
      require(completion.status == IBV_WC_RETRY_EXC_ERR, "ends with %s",
              ibv_wc_status_str(completion.status));
      wire.meet();
      require(memory[8] == std::byte{0}, "the other user's byte came");
    };
  };
  return run_two(body_of(65533), body_of(65532));
}

// A program with 256 descriptors, soft and hard, and this many peers at a time. Each of its own
// wires to them takes one, too.
constexpr int kPeers = 230;

void be_one_of_many(Wire& wire) {
  wire.meet();  // one after the other
  Node node;
  talk(node, wire, 2);
  wire.meet();
}

bool many_peers() {
  std::vector<int> wires;
  for (int i = 0; i < kPeers; ++i) {
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
    if (fork() == 0) {
      for (const int fd : wires)
        close(fd);
      close(fds[0]);
      i_am("a peer");
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Wire wire(fds[1]);
      be_one_of_many(wire);
      _exit(0);
    }
    close(fds[1]);
    wires.push_back(fds[0]);
  }
  i_am("the hub");
  const rlimit limit{256, 256};
  require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  Node node;
  for (const int fd : wires) {
    Wire wire(fd);
    wire.meet();
    talk(node, wire, 2);
  }
  for (const int fd : wires)
    Wire(fd).meet();
  int status = 0;
  for (int i = 0; i < kPeers; ++i)
    require(wait(&status) > 0 && status == 0, "a peer ends with %d", status);
  return true;
}

// How one small WRITE to the peer ends, from both sides at a time.
ibv_wc_status try_write(Node& node, Wire& wire) {
  std::byte* memory = map_pages(4096);
  ibv_mr* mr = node.reg(memory, 4096);
  Address peer;
  QpOptions options;
  // A peer that is not connected yet counts as silence.
  options.timeout = 17;
  options.retries = 2;
  ibv_qp* qp =
      node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer, options);
  require(post(qp, {.memory = memory,
                    .length = 8,
                    .local_key = mr->lkey,
                    .remote = peer.memory,
                    .remote_key = peer.key}) == 0,
          "ibv_post_send");
  const ibv_wc completion = node.wait();
  wire.meet();
  require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
  munmap(memory, 4096);
  return completion.status;
}

// With more peers than descriptors the last ones find nobody; the first ones do not notice; when
// some leave, others have room.
bool too_many_peers() {
  const char* const path = std::getenv("VERBENA_PATH");
  if (path && std::strcmp(path, "wire") == 0) skip("by the wire a peer takes no descriptor");
  constexpr int kLimit = 24, kTried = 26;
  std::vector<int> wires;
  for (int i = 0; i < kTried; ++i) {
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
    // Out of the way of the limit to come.
    const int wire_fd = fcntl(fds[0], F_DUPFD, 200);
    close(fds[0]);
    if (fork() == 0) {
      for (const int fd : wires)
        close(fd);
      close(wire_fd);
      i_am("a peer");
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Wire wire(fds[1]);
      wire.meet();
      Node node;
      while (wire.get<bool>())
        wire.put(try_write(node, wire));
      _exit(0);
    }
    close(fds[1]);
    wires.push_back(wire_fd);
  }
  i_am("the hub");
  const rlimit limit{kLimit, kLimit};
  require(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  Node node;
  const auto attempt = [&](int fd) {
    Wire wire(fd);
    wire.put(true);
    const ibv_wc_status ours = try_write(node, wire);
    const auto theirs = wire.get<ibv_wc_status>();
    for (const ibv_wc_status status : {ours, theirs}) {
      require(status == IBV_WC_SUCCESS || status == IBV_WC_RETRY_EXC_ERR, "a WRITE ends with %s",
              ibv_wc_status_str(status));
    }
    require(ours == theirs, "one side succeeds, the other does not");
    return ours == IBV_WC_SUCCESS;
  };
  std::size_t linked = 0;
  for (; linked < wires.size(); ++linked) {
    Wire(wires[linked]).meet();
    if (!attempt(wires[linked])) break;
  }
  require(linked >= kLimit / 2, "only %zu peers with %d descriptors", linked, kLimit);
  require(linked < wires.size(), "all peers found a place: this shows nothing");
  require(attempt(wires[0]) && attempt(wires[linked - 1]), "the first ones notice");
  for (int i = 0; i < 4; ++i)
    Wire(wires[static_cast<std::size_t>(i)]).put(false);
  for (int i = 0; i < 4; ++i)
    wait(nullptr);
  require(attempt(wires[linked]), "there is room again, but not for the one who waits");
  return true;
}

}  // namespace

std::vector<Scenario> descriptor_scenarios() {
  return {{"closed-before", closed_before},
          {"closed-after", closed_after},
          {"closed-all", closed_all},
          {"closed-connected", closed_connected},
          {"idle", idle},
          {"idle-one-side", idle_one_side},
          {"fault-handler-before", fault_handler_before},
          {"fault-handler-after", fault_handler_after},
          {"fault-kills", fault_kills},
          {"empty-root", empty_root},
          {"pid-namespaces", pid_namespaces},
          {"other-user", other_user},
          {"many-peers", many_peers},
          {"too-many-peers", too_many_peers}};
}

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> all = process_scenarios();
  for (const Scenario& each : descriptor_scenarios())
    all.push_back(each);
  for (const Scenario& each : reach_scenarios())
    all.push_back(each);
  return all;
}

}  // namespace probe
