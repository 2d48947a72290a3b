// SPDX-License-Identifier: MIT
// What the calls of the data path cost where no processor waits for another: both ends are queue
// pairs of this process, and one thread plays both parts. For the times between processes there is
// scripts/bench.
#include <benchmark/benchmark.h>
#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "queues/completion_queue.h"
#include "queues/receive_queue.h"

namespace {

using verbena::Sge;
using namespace verbena::queues;

void require(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "data_path: %s\n", what);
  std::exit(1);
}

// The loopback device: it is always there, and last in the list.
struct World {
  World() {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    require(list && count > 0, "no device");
    context = ibv_open_device(list[count - 1]);
    require(context, "the device does not open");
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    require(pd && ibv_query_gid(context, 1, 0, &gid) == 0, "no domain or no address");
  }
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_gid gid{};
};

constexpr int kDepth = 128;

struct End {
  explicit End(World& owner) : world(owner) {
    send_cq = ibv_create_cq(world.context, kDepth, nullptr, nullptr, 0);
    receive_cq = ibv_create_cq(world.context, kDepth, nullptr, nullptr, 0);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = send_cq;
    wanted.recv_cq = receive_cq;
    wanted.cap = {kDepth, kDepth, 1, 1, 64};
    wanted.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(world.pd, &wanted);
    require(send_cq && receive_cq && qp, "no queue pair");
    const int access = IBV_ACCESS_LOCAL_WRITE;
    mr = ibv_reg_mr(world.pd, memory.data(), memory.size(), access);
    require(mr, "no region");
  }
  ~End() {
    ibv_destroy_qp(qp);
    ibv_destroy_cq(send_cq);
    ibv_destroy_cq(receive_cq);
    ibv_dereg_mr(mr);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void connect(const End& peer) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    const int start = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    require(ibv_modify_qp(qp, &a, start) == 0, "INIT");
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_4096;
    a.dest_qp_num = peer.qp->qp_num;
    a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.grh.dgid = world.gid;
    a.ah_attr.port_num = 1;
    const int receive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    require(ibv_modify_qp(qp, &a, receive) == 0, "RTR");
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 7;
    a.max_rd_atomic = 1;
    const int send = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    require(ibv_modify_qp(qp, &a, send) == 0, "RTS");
  }
  ibv_sge sge(std::uint32_t length) {
    return {reinterpret_cast<std::uintptr_t>(memory.data()), length, mr->lkey};
  }
  void receive() {
    ibv_sge list = sge(64);
    ibv_recv_wr request{};
    request.sg_list = &list;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    require(ibv_post_recv(qp, &request, &bad) == 0, "ibv_post_recv");
  }
  void send(std::uint32_t length, bool is_signaled) {
    ibv_sge list = sge(length);
    ibv_send_wr request{};
    request.sg_list = &list;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_INLINE | (is_signaled ? unsigned{IBV_SEND_SIGNALED} : 0);
    ibv_send_wr* bad = nullptr;
    require(ibv_post_send(qp, &request, &bad) == 0, "ibv_post_send");
  }
  static int poll(ibv_cq* cq, int most) {
    std::array<ibv_wc, 16> out;
    const int got = ibv_poll_cq(cq, most, out.data());
    for (int i = 0; i < got; ++i)
      require(out[static_cast<std::size_t>(i)].status == IBV_WC_SUCCESS, "a failed completion");
    return got;
  }
  static void wait(ibv_cq* cq, int count) {
    while (count > 0)
      count -= poll(cq, count < 16 ? count : 16);
  }

  World& world;
  std::array<std::byte, 64> memory{};
  ibv_cq* send_cq = nullptr;
  ibv_cq* receive_cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
};

struct Pair {
  Pair() {
    a.connect(b);
    b.connect(a);
    // Once there and back: whatever begins later has begun.
    a.receive(), b.receive();
    a.send(8, true), b.send(8, true);
    for (End* end : {&a, &b})
      End::wait(end->receive_cq, 1), End::wait(end->send_cq, 1);
  }
  World world;
  End a{world};
  End b{world};
};

Pair& pair() {
  static Pair& the_pair = *new Pair;
  return the_pair;
}

void empty_poll(benchmark::State& state) {
  End& end = pair().a;
  for (auto _ : state)
    benchmark::DoNotOptimize(End::poll(end.receive_cq, 1));
}

void send_and_receive(benchmark::State& state) {
  End& a = pair().a;
  End& b = pair().b;
  for (auto _ : state) {
    b.receive();
    a.send(8, true);
    End::wait(b.receive_cq, 1);
    End::wait(a.send_cq, 1);
  }
}

// As two programs that answer each other, and ask for a completion of their own now and then.
void ping_pong(benchmark::State& state) {
  constexpr unsigned kBetweenSignals = 32;
  End& a = pair().a;
  End& b = pair().b;
  a.receive(), b.receive();
  a.send(8, false);
  unsigned rounds = 0;
  for (auto _ : state) {
    const bool is_signaled = ++rounds % kBetweenSignals == 0;
    End::wait(b.receive_cq, 1);
    b.receive();
    b.send(8, is_signaled);
    End::wait(a.receive_cq, 1);
    a.receive();
    a.send(8, is_signaled);
    if (is_signaled) End::wait(b.send_cq, 1);
    if (rounds > kBetweenSignals && rounds % kBetweenSignals == 1) End::wait(a.send_cq, 1);
  }
  End::wait(b.receive_cq, 1);
  b.send(8, false);
  End::wait(a.receive_cq, 1);
  if (rounds != 0 && rounds % kBetweenSignals == 0) End::wait(a.send_cq, 1);
}

// 32 messages at a time: what each costs the sender and the receiver.
void stream(benchmark::State& state) {
  constexpr int kBatch = 32;
  End& a = pair().a;
  End& b = pair().b;
  for (auto _ : state) {
    for (int i = 0; i < kBatch; ++i)
      b.receive();
    for (int i = 0; i < kBatch; ++i)
      a.send(8, i + 1 == kBatch);
    End::wait(b.receive_cq, kBatch);
    End::wait(a.send_cq, 1);
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}

void push_and_poll(benchmark::State& state) {
  const auto pushers = static_cast<Pushers>(state.range(0));
  CompletionQueue queue(kDepth, nullptr, pushers);
  Completion completion;
  std::array<Completion, 1> out;
  for (auto _ : state) {
    ++completion.wr_id;
    benchmark::DoNotOptimize(queue.push(completion, false));
    benchmark::DoNotOptimize(queue.poll(out));
  }
}

void post_and_take(benchmark::State& state) {
  ReceiveQueue queue(kDepth, 1, nullptr, static_cast<Takers>(state.range(0)));
  const Sge sge{};
  Receive receive;
  for (auto _ : state) {
    benchmark::DoNotOptimize(queue.post(1, {&sge, 1}));
    benchmark::DoNotOptimize(queue.take(receive));
  }
}

BENCHMARK(empty_poll);
BENCHMARK(send_and_receive);
BENCHMARK(ping_pong);
BENCHMARK(stream);
BENCHMARK(push_and_poll)
    ->Arg(static_cast<int>(Pushers::kAny))
    ->Arg(static_cast<int>(Pushers::kOneAtATime));
BENCHMARK(post_and_take)
    ->Arg(static_cast<int>(Takers::kMany))
    ->Arg(static_cast<int>(Takers::kOneAtATime));

}  // namespace

BENCHMARK_MAIN();
