// SPDX-License-Identifier: MIT
#include "node.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace probe {
namespace {

constexpr int kSkipped = 77;
const char* name_of_process = "process";

using Clock = std::chrono::steady_clock;

void check(int error, const char* what) { require(error == 0, "%s: %s", what, strerror(error)); }

}  // namespace

void fail(const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  // Whoever runs us may have closed or replaced standard output.
  dprintf(2, "FAIL %s: %s\n", name_of_process, text);
  _exit(1);
}

void skip(const char* why) {
  dprintf(2, "SKIP %s\n", why);
  _exit(kSkipped);
}

bool may_write_by_file() {
  if (std::getenv("VERBENA_PATH")) return false;  // the ring, or the wire
#if defined(__x86_64__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kFastShortMoves = 1u << 4;
  const bool copies_in_order =
      __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kFastShortMoves) != 0;
#else
  const bool copies_in_order = false;
#endif
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int file = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  if (file >= 0) close(file);
  return copies_in_order && limit.rlim_cur >= 1024 && file >= 0;
}

void i_am(const char* name) { name_of_process = name; }

void Wire::put_bytes(const void* from, std::size_t size) {
  const ssize_t done = send(fd_, from, size, MSG_NOSIGNAL);
  require(done == static_cast<ssize_t>(size), "the other process is gone");
}

void Wire::get_bytes(void* to, std::size_t size) {
  ssize_t done = 0;
  do {
    done = recv(fd_, to, size, 0);
  } while (done < 0 && errno == EINTR);
  require(done == static_cast<ssize_t>(size), "the other process is gone");
}

Node::Node() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  require(list && count > 0, "no device: %s", strerror(errno));
  context = ibv_open_device(list[0]);
  require(context != nullptr, "ibv_open_device: %s", strerror(errno));
  ibv_free_device_list(list);
  pd = ibv_alloc_pd(context);
  require(pd != nullptr, "ibv_alloc_pd: %s", strerror(errno));
  channel = ibv_create_comp_channel(context);
  require(channel != nullptr, "ibv_create_comp_channel: %s", strerror(errno));
  cq = ibv_create_cq(context, 1024, nullptr, channel, 0);
  require(cq != nullptr, "ibv_create_cq: %s", strerror(errno));
  require(ibv_query_gid(context, 1, 0, &gid) == 0, "ibv_query_gid: %s", strerror(errno));
}

ibv_qp* Node::create(const QpOptions& options) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.qp_type = options.type;
  wanted.cap = {options.depth, options.depth, options.sges, options.sges, options.inline_max};
  ibv_qp* qp = ibv_create_qp(pd, &wanted);
  require(qp != nullptr, "ibv_create_qp: %s", strerror(errno));
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = 1;
  to.qkey = kQkey;
  to.qp_access_flags = options.access;
  if (options.type == IBV_QPT_UC) to.qp_access_flags &= 3;
  const bool is_ud = options.type == IBV_QPT_UD;
  check(ibv_modify_qp(qp, &to,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                          (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
        "INIT");
  return qp;
}

void Node::connect(ibv_qp* qp, const Address& peer, const QpOptions& options) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = IBV_MTU_1024;
  to.dest_qp_num = peer.qpn;
  to.max_dest_rd_atomic = to.max_rd_atomic = 4;
  to.min_rnr_timer = 1;
  to.ah_attr.is_global = 1;
  to.ah_attr.port_num = 1;
  to.ah_attr.grh.dgid = peer.gid;
  to.ah_attr.grh.hop_limit = 1;
  to.timeout = options.timeout;
  to.retry_cnt = options.retries;
  to.rnr_retry = options.rnr_retry;
  int receive = IBV_QP_STATE;
  int send = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (options.type != IBV_QPT_UD) {
    receive |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (options.type == IBV_QPT_RC) {
    receive |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    send |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  check(ibv_modify_qp(qp, &to, receive), "RTR");
  to.qp_state = IBV_QPS_RTS;
  check(ibv_modify_qp(qp, &to, send), "RTS");
}

ibv_qp* Node::meet(Wire& wire, Address mine, Address& peers, const QpOptions& options) {
  ibv_qp* qp = create(options);
  mine.qpn = qp->qp_num;
  mine.gid = gid;
  wire.put(mine);
  peers = wire.get<Address>();
  connect(qp, peers, options);
  wire.meet();
  return qp;
}

ibv_mr* Node::reg(void* memory, std::size_t size, unsigned access) {
  ibv_mr* mr = ibv_reg_mr(pd, memory, size, static_cast<int>(access));
  require(mr != nullptr, "ibv_reg_mr: %s", strerror(errno));
  return mr;
}

std::optional<ibv_wc> Node::poll_for(int milliseconds) {
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  ibv_wc completion{};
  do {
    const int count = ibv_poll_cq(cq, 1, &completion);
    require(count >= 0, "ibv_poll_cq: %d", count);
    if (count == 1) return completion;
    std::this_thread::yield();
  } while (Clock::now() < end);
  return std::nullopt;
}

ibv_wc Node::wait(int seconds) {
  const auto completion = poll_for(seconds * 1000);
  require(completion.has_value(), "no completion in %d s", seconds);
  return *completion;
}

void Node::wait_success(std::uint64_t id) {
  const ibv_wc completion = wait();
  require(completion.wr_id == id && completion.status == IBV_WC_SUCCESS,
          "completion %llu: %s (%u), not success of %llu",
          static_cast<unsigned long long>(completion.wr_id), ibv_wc_status_str(completion.status),
          completion.vendor_err, static_cast<unsigned long long>(id));
}

int post(ibv_qp* qp, const Work& work) {
  ibv_sge piece{reinterpret_cast<std::uint64_t>(work.memory), work.length, work.local_key};
  ibv_send_wr request{};
  ibv_send_wr* bad = nullptr;
  request.wr_id = work.id;
  request.sg_list = &piece;
  request.num_sge = work.memory ? 1 : 0;
  request.opcode = work.opcode;
  request.send_flags = work.flags;
  request.wr.rdma.remote_addr = work.remote;
  request.wr.rdma.rkey = work.remote_key;
  if (work.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || work.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    request.wr.atomic = {work.remote, work.compare_add, work.swap, work.remote_key};
  }
  return ibv_post_send(qp, &request, &bad);
}

int post_receive(ibv_qp* qp, void* memory, std::uint32_t length, std::uint32_t key,
                 std::uint64_t id) {
  ibv_sge piece{reinterpret_cast<std::uint64_t>(memory), length, key};
  ibv_recv_wr request{};
  ibv_recv_wr* bad = nullptr;
  request.wr_id = id;
  request.sg_list = &piece;
  request.num_sge = 1;
  return ibv_post_recv(qp, &request, &bad);
}

std::byte* map_pages(std::size_t size) {
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(at != MAP_FAILED, "mmap: %s", strerror(errno));
  return static_cast<std::byte*>(at);
}

namespace {

pid_t start(const std::function<void()>& body) {
  const pid_t child = fork();
  require(child >= 0, "fork: %s", strerror(errno));
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  exit(0);
}

bool wait_for(pid_t child, const char* name, Clock::time_point end) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > end) {
      dprintf(2, "FAIL %s hangs\n", name);
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) _exit(kSkipped);
  if (WIFSIGNALED(status)) dprintf(2, "FAIL %s: signal %d\n", name, WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

bool run_two(const std::function<void(Wire&)>& one, const std::function<void(Wire&)>& other,
             int seconds) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
  const auto begin = [&](const std::function<void(Wire&)>& body, int mine, int others,
                         const char* name) {
    return start([&, mine, others, name] {
      i_am(name);
      close(others);
      Wire wire(mine);
      body(wire);
    });
  };
  const pid_t first = begin(one, fds[0], fds[1], "one");
  const pid_t second = begin(other, fds[1], fds[0], "other");
  close(fds[0]);
  close(fds[1]);
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  const bool first_is_good = wait_for(first, "one", end);
  return wait_for(second, "other", end) && first_is_good;
}

bool run_one(const std::function<void()>& body, int seconds) {
  return wait_for(start(body), "the child", Clock::now() + std::chrono::seconds(seconds));
}

void talk(Node& node, Wire& wire, unsigned rounds) {
  constexpr std::uint32_t kSize = 6000;
  std::byte* memory = map_pages(4 * 8192);
  std::byte* const inbox = memory;
  std::byte* const outbox = memory + 8192;
  std::byte* const back = memory + 16384;
  std::byte* const receive = memory + 24576;
  ibv_mr* mr = node.reg(memory, 4 * 8192);
  Address peer;
  ibv_qp* qp = node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(inbox), {}}, peer);
  for (unsigned round = 1; round <= rounds; ++round) {
    require(post_receive(qp, receive, kSize, mr->lkey) == 0, "ibv_post_recv");
    wire.meet();
    memset(outbox, static_cast<int>(round & 0xFF), kSize);
    const Work write{.opcode = IBV_WR_RDMA_WRITE,
                     .id = 1,
                     .memory = outbox,
                     .length = kSize,
                     .local_key = mr->lkey,
                     .remote = peer.memory,
                     .remote_key = peer.key};
    Work read = write, send = write;
    read.opcode = IBV_WR_RDMA_READ;
    read.memory = back;
    read.id = 2;
    send.opcode = IBV_WR_SEND;
    send.id = 3;
    require(post(qp, write) == 0 && post(qp, read) == 0 && post(qp, send) == 0, "ibv_post_send");
    std::uint64_t next = 1;
    for (int i = 0; i < 4; ++i) {
      const ibv_wc completion = node.wait();
      require(completion.status == IBV_WC_SUCCESS, "round %u: request %d: %s", round,
              static_cast<int>(completion.wr_id), ibv_wc_status_str(completion.status));
      if (completion.wr_id == 100) continue;
      require(completion.wr_id == next++, "requests complete out of order");
    }
    require(memcmp(back, outbox, kSize) == 0, "round %u: READ brought something else", round);
    require(memcmp(receive, outbox, kSize) == 0, "round %u: another message came", round);
    wire.meet();
    require(memcmp(inbox, outbox, kSize) == 0, "round %u: WRITE left something else", round);
    wire.meet();
  }
  require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
  munmap(memory, 4 * 8192);
}

}  // namespace probe
