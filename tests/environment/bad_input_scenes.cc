// SPDX-License-Identifier: MIT
// Bad input that takes more than one request.
#include <poll.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "bad_input.h"

namespace probe {
namespace {

// What does not fit is refused at once, names the right request, and harms nothing.
void full_queues(Node& node, Wire& wire) {
  Target memory = Target::make();
  ibv_mr* mr = node.reg(memory.data(), kSize);
  Address peer;
  QpOptions options;
  options.depth = 4;
  ibv_qp* qp = node.create(options);
  ibv_qp_attr state{};
  ibv_qp_init_attr made{};
  require(ibv_query_qp(qp, &state, IBV_QP_CAP, &made) == 0, "ibv_query_qp");
  const std::uint32_t room = state.cap.max_recv_wr;
  for (std::uint32_t i = 0; i < room; ++i)
    require(post_receive(qp, memory.data(), 64, mr->lkey, i) == 0, "receive %u of %u", i, room);
  const int full = post_receive(qp, memory.data(), 64, mr->lkey, room);
  require(full == ENOMEM, "a full receive queue answers %d", full);
  Work send{.opcode = IBV_WR_SEND, .memory = memory.data(), .length = 64, .local_key = mr->lkey};
  require(post(qp, send) == EINVAL, "ibv_post_send before RTS is taken");

  std::vector<ibv_sge> pieces(options.sges + 64);
  for (ibv_sge& piece : pieces)
    piece = {reinterpret_cast<std::uint64_t>(memory.data()), 1, mr->lkey};
  ibv_recv_wr many{};
  ibv_recv_wr* bad_receive = nullptr;
  many.sg_list = pieces.data();
  many.num_sge = static_cast<int>(state.cap.max_recv_sge + 1);
  ibv_qp* empty = node.create(options);
  require(ibv_post_recv(empty, &many, &bad_receive) == EINVAL && bad_receive == &many,
          "too many SGEs of a receive");
  require(ibv_destroy_qp(empty) == 0 && ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");

  qp = node.meet(wire, {}, peer, options);
  // Nobody receives: all that fits stays open.
  require(ibv_query_qp(qp, &state, IBV_QP_CAP, &made) == 0, "ibv_query_qp");
  for (std::uint32_t i = 0; i < state.cap.max_send_wr; ++i) {
    send.id = i;
    require(post(qp, send) == 0, "send %u", i);
  }
  require(post(qp, send) == ENOMEM, "a full send queue takes more");
  ibv_send_wr wide{};
  ibv_send_wr* bad = nullptr;
  wide.sg_list = pieces.data();
  wide.num_sge = static_cast<int>(state.cap.max_send_sge + 1);
  wide.opcode = IBV_WR_SEND;
  require(ibv_post_send(qp, &wide, &bad) != 0 && bad == &wide, "too many SGEs of a send");
  wire.meet();
  for (std::uint32_t i = 0; i < state.cap.max_send_wr; ++i)
    node.wait_success(i);
  Work wide_inline = send;
  wide_inline.length = state.cap.max_inline_data + 1;
  wide_inline.flags |= IBV_SEND_INLINE;
  require(post(qp, wide_inline) != 0, "too much inline is taken");
  wire.meet();
  require(memory.is_untouched(), "own memory changed");
  ibv_destroy_qp(qp);
}

void receive_at_last(Node& node, Wire& wire) {
  Target memory = Target::make();
  ibv_mr* mr = node.reg(memory.data(), kSize);
  Address peer;
  QpOptions options;
  options.depth = 4;
  ibv_qp* qp = node.meet(wire, {}, peer, options);
  wire.meet();
  ibv_qp_attr state{};
  ibv_qp_init_attr made{};
  require(ibv_query_qp(qp, &state, IBV_QP_CAP, &made) == 0, "ibv_query_qp");
  for (std::uint32_t i = 0; i < state.cap.max_send_wr; ++i) {
    require(post_receive(qp, memory.data(), 64, mr->lkey, i) == 0, "ibv_post_recv");
    node.wait_success(i);
  }
  wire.meet();
  ibv_destroy_qp(qp);
}

// A region goes while it is written to: after ibv_dereg_mr has returned, nothing changes any more.
void deregister_under_fire(Node& node, Wire& wire, bool is_target) {
  for (int round = 0; round < 20; ++round) {
    Target memory = Target::make();
    ibv_mr* mr = node.reg(memory.data(), kSize);
    Address peer;
    const Address mine{0, mr->rkey, reinterpret_cast<std::uint64_t>(memory.data()), {}};
    ibv_qp* qp = node.meet(wire, mine, peer);
    if (is_target) {
      while (*reinterpret_cast<volatile std::byte*>(memory.data()) == kCanary)
        ibv_poll_cq(node.cq, 0, nullptr), std::this_thread::yield();
      require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
      std::memset(memory.base, static_cast<int>(kCanary), kSize + 2 * kPage);
      wire.meet();
      require(memory.is_untouched(), "written to after ibv_dereg_mr");
    } else {
      std::memset(memory.data(), round + 1, kSize);
      ibv_wc completion{};
      for (std::uint64_t id = 0, done = 0;;) {
        const Work write{.id = id,
                         .memory = memory.data(),
                         .length = kSize,
                         .local_key = mr->lkey,
                         .remote = peer.memory,
                         .remote_key = peer.key};
        if (id - done < 8 && post(qp, write) == 0) ++id;
        if (ibv_poll_cq(node.cq, 1, &completion) != 1) continue;
        if (completion.status != IBV_WC_SUCCESS) {
          for (++done; done < id; ++done)
            require(node.wait().status == IBV_WC_WR_FLUSH_ERR, "not flushed");
          break;
        }
        ++done;
      }
      require(completion.status == IBV_WC_REM_ACCESS_ERR, "ends with %s",
              ibv_wc_status_str(completion.status));
      wire.meet();
    }
    drain_events(node);
    require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
    if (!is_target) require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    munmap(memory.base, kSize + 2 * kPage);
  }
}

// Datagrams to nobody, and with a wrong key, are lost without a trace.
void stray_datagrams(Node& node, Wire& wire, bool is_target) {
  QpOptions options;
  options.type = IBV_QPT_UD;
  Target memory = Target::make();
  ibv_mr* mr = node.reg(memory.data(), kSize);
  Address peer;
  ibv_qp* qp = node.meet(wire, {}, peer, options);
  if (is_target) {
    require(post_receive(qp, memory.data(), kSize, mr->lkey) == 0, "ibv_post_recv");
    wire.meet();
    const ibv_wc good = node.wait();
    require(good.status == IBV_WC_SUCCESS && good.byte_len == 40 + 32, "the good one");
    require(memory.data()[40] == std::byte{7}, "another one than the good one came");
    require(!node.poll_for(100), "something else came");
  } else {
    wire.meet();
    ibv_ah_attr path{};
    path.is_global = 1;
    path.port_num = 1;
    path.grh.dgid = peer.gid;
    ibv_ah* ah = ibv_create_ah(node.pd, &path);
    require(ah != nullptr, "ibv_create_ah");
    for (int i = 0; i < 3; ++i) {
      std::memset(memory.data(), 5 + i, 32);
      ibv_sge piece{reinterpret_cast<std::uint64_t>(memory.data()), 32, mr->lkey};
      ibv_send_wr request{};
      ibv_send_wr* bad = nullptr;
      request.wr_id = static_cast<std::uint64_t>(i);
      request.sg_list = &piece;
      request.num_sge = 1;
      request.opcode = IBV_WR_SEND;
      request.send_flags = IBV_SEND_SIGNALED;
      request.wr.ud = {ah, i == 0 ? peer.qpn ^ 0x10 : peer.qpn, i == 1 ? 0x999u : kQkey};
      require(ibv_post_send(qp, &request, &bad) == 0, "ibv_post_send");
      node.wait_success(static_cast<std::uint64_t>(i));
    }
  }
  wire.meet();
  ibv_destroy_qp(qp);
}

constexpr Scene kScenes[] = {
    {"full queues, too many SGEs", receive_at_last, full_queues},
    {"a region that goes while it is written to",
     [](Node& node, Wire& wire) { deregister_under_fire(node, wire, true); },
     [](Node& node, Wire& wire) { deregister_under_fire(node, wire, false); }},
    {"stray datagrams", [](Node& node, Wire& wire) { stray_datagrams(node, wire, true); },
     [](Node& node, Wire& wire) { stray_datagrams(node, wire, false); }},
};

}  // namespace

void drain_events(Node& node) {
  pollfd ready{node.context->async_fd, POLLIN, 0};
  while (poll(&ready, 1, 0) == 1) {
    ibv_async_event event;
    if (ibv_get_async_event(node.context, &event) == 0) ibv_ack_async_event(&event);
  }
}

std::span<const Scene> bad_input_scenes() { return kScenes; }

}  // namespace probe
