// SPDX-License-Identifier: MIT
// Makes connections and takes them down again, and tells what both ends hold then.
//
//   churn CONNECTIONS TIMES PORT
//
// So many times, of which the first ones are a warm-up. Of each connection the client sends a
// message, and both ends take all of it down. After each time both wait until what lingers has
// gone, and print
//   ROLE TIME: CONNECTIONS connections, KIB KiB, DESCRIPTORS descriptors
#include <arpa/inet.h>
#include <dirent.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kWindow = 64;         // at a time
constexpr unsigned kLingering = 3;  // seconds; longer than the time wait of a connection here
constexpr int kMilliseconds = 2000;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "churn: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

void demand(bool holds, const char* what) {
  if (!holds) fail(what);
}

long resident_kib() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  long size = 0;
  long resident = 0;
  demand(file && std::fscanf(file, "%ld %ld", &size, &resident) == 2, "/proc/self/statm");
  std::fclose(file);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

// Of all threads' tables: that of the control thread is another one.
int descriptors() {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  demand(tasks, "/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    char path[300];
    std::snprintf(path, sizeof path, "/proc/self/task/%s/fd", task->d_name);
    DIR* const open = opendir(path);
    if (!open) continue;
    while (readdir(open))
      ++count;
    closedir(open);
  }
  closedir(tasks);
  return count;
}

void tell(const char* role, int time, int connections) {
  sleep(kLingering);
  std::printf("%s %d: %d connections, %ld KiB, %d descriptors\n", role, time, connections,
              resident_kib(), descriptors());
  std::fflush(stdout);
}

class End {
 public:
  End() : events_(rdma_create_event_channel()) { demand(events_, "rdma_create_event_channel"); }

  rdma_cm_id* create() {
    rdma_cm_id* id = nullptr;
    demand(rdma_create_id(events_, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    return id;
  }
  void make_queue_pair(rdma_cm_id* id) {
    // One for each: what a destroyed queue pair has left in a shared one goes with it.
    ibv_cq* const cq = ibv_create_cq(id->verbs, 2, nullptr, nullptr, 0);
    demand(cq, "ibv_create_cq");
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.cap = {.max_send_wr = 1,
                      .max_recv_wr = 1,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_data = 16};
    attributes.qp_type = IBV_QPT_RC;
    attributes.sq_sig_all = 1;
    demand(rdma_create_qp(id, nullptr, &attributes) == 0, "rdma_create_qp");
    if (region_) return;
    region_ = ibv_reg_mr(id->pd, bytes_, sizeof bytes_, int{IBV_ACCESS_LOCAL_WRITE});
    demand(region_, "ibv_reg_mr");
  }
  static void drop(rdma_cm_id* id) {
    ibv_cq* const cq = id->qp->send_cq;
    rdma_destroy_qp(id);
    demand(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
    demand(rdma_destroy_id(id) == 0, "rdma_destroy_id");
  }
  rdma_cm_event* next() {
    rdma_cm_event* event = nullptr;
    demand(rdma_get_cm_event(events_, &event) == 0, "rdma_get_cm_event");
    return event;
  }
  ibv_sge piece() {
    return {.addr = reinterpret_cast<std::uintptr_t>(bytes_), .length = 8, .lkey = region_->lkey};
  }
  static void complete(rdma_cm_id* id) {
    ibv_wc completion{};
    int count = 0;
    while (count == 0)
      count = ibv_poll_cq(id->qp->send_cq, 1, &completion);
    demand(count == 1 && completion.status == IBV_WC_SUCCESS, "a completion");
  }

 private:
  rdma_event_channel* events_;
  ibv_mr* region_ = nullptr;
  char bytes_[64] = {};
};

void serve_one(End& end, int connections) {
  for (int ended = 0; ended < connections;) {
    rdma_cm_event* const event = end.next();
    const rdma_cm_event_type type = event->event;
    rdma_cm_id* const id = event->id;
    demand(event->status == 0, rdma_event_str(type));
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      end.make_queue_pair(id);
      ibv_sge piece = end.piece();
      ibv_recv_wr request{};
      request.sg_list = &piece;
      request.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      demand(ibv_post_recv(id->qp, &request, &bad) == 0, "ibv_post_recv");
      demand(rdma_accept(id, nullptr) == 0, "rdma_accept");
    } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
      End::complete(id);
      rdma_disconnect(id);
      End::drop(id);
      ++ended;
    }
  }
}

void serve(const sockaddr_in& address, int connections, int times, int ready) {
  End end;
  rdma_cm_id* const listener = end.create();
  sockaddr_in copy = address;
  demand(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&copy)) == 0, "rdma_bind_addr");
  demand(rdma_listen(listener, 0) == 0, "rdma_listen");
  demand(write(ready, "r", 1) == 1, "the pipe");
  for (int time = 0; time < times; ++time) {
    serve_one(end, connections);
    tell("server", time, connections);
  }
}

void await(End& end, int count, rdma_cm_event_type wanted) {
  while (count > 0) {
    rdma_cm_event* const event = end.next();
    const rdma_cm_event_type type = event->event;
    demand(event->status == 0, rdma_event_str(type));
    rdma_ack_cm_event(event);
    if (type == RDMA_CM_EVENT_TIMEWAIT_EXIT) continue;
    demand(type == wanted, rdma_event_str(type));
    --count;
  }
}

void connect_some(End& end, const sockaddr_in& to, int count) {
  rdma_cm_id* ids[kWindow];
  for (int i = 0; i < count; ++i) {
    ids[i] = end.create();
    sockaddr_in copy = to;
    auto* const address = reinterpret_cast<sockaddr*>(&copy);
    demand(rdma_resolve_addr(ids[i], nullptr, address, kMilliseconds) == 0, "rdma_resolve_addr");
  }
  await(end, count, RDMA_CM_EVENT_ADDR_RESOLVED);
  for (int i = 0; i < count; ++i)
    demand(rdma_resolve_route(ids[i], kMilliseconds) == 0, "rdma_resolve_route");
  await(end, count, RDMA_CM_EVENT_ROUTE_RESOLVED);
  for (int i = 0; i < count; ++i) {
    end.make_queue_pair(ids[i]);
    demand(rdma_connect(ids[i], nullptr) == 0, "rdma_connect");
  }
  await(end, count, RDMA_CM_EVENT_ESTABLISHED);
  for (int i = 0; i < count; ++i) {
    ibv_sge piece = end.piece();
    ibv_send_wr request{};
    request.opcode = IBV_WR_SEND;
    request.sg_list = &piece;
    request.num_sge = 1;
    ibv_send_wr* bad = nullptr;
    demand(ibv_post_send(ids[i]->qp, &request, &bad) == 0, "ibv_post_send");
  }
  for (int i = 0; i < count; ++i)
    End::complete(ids[i]);
  for (int i = 0; i < count; ++i)
    demand(rdma_disconnect(ids[i]) == 0, "rdma_disconnect");
  await(end, count, RDMA_CM_EVENT_DISCONNECTED);
  for (int i = 0; i < count; ++i)
    End::drop(ids[i]);
}

void call(const sockaddr_in& to, int connections, int times) {
  End end;
  for (int time = 0; time < times; ++time) {
    for (int left = connections; left > 0; left -= kWindow)
      connect_some(end, to, left < kWindow ? left : kWindow);
    tell("client", time, connections);
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    std::fprintf(stderr, "churn CONNECTIONS TIMES PORT\n");
    return 2;
  }
  const int connections = std::atoi(words[1]);
  const int times = std::atoi(words[2]);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htobe16(static_cast<std::uint16_t>(std::atoi(words[3])));
  address.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
  int ready[2];
  demand(pipe(ready) == 0, "pipe");
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(address, connections, times, ready[1]);
    return 0;
  }
  char byte = 0;
  close(ready[1]);
  demand(read(ready[0], &byte, 1) == 1, "the server");
  call(address, connections, times);
  int status = -1;
  waitpid(server, &status, 0);
  return status == 0 ? 0 : 1;
}
