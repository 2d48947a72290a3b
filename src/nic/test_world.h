// SPDX-License-Identifier: MIT
// Queue pairs of this very process, connected to each other through the whole NIC: slots, links,
// rings, threads.
#pragma once

#include <gtest/gtest.h>

#include <ctime>
#include <memory>
#include <vector>

#include "base/time.h"
#include "nic/engine.h"
#include "nic/objects.h"

namespace verbena::nic {

inline Device loopback_device() {
  for (const Device& device : devices()) {
    if (device.is_loopback) return device;
  }
  ADD_FAILURE() << "there is always a loopback device";
  return {};
}

// An open loopback device with a domain; takes everything down again.
class World {
 public:
  World() {
    auto opened = Context::open(loopback_device());
    EXPECT_TRUE(opened.has_value());
    context = std::move(*opened);
    pd = *alloc_pd(*context);
  }
  ~World() { EXPECT_TRUE(dealloc_pd(pd).has_value()); }

  std::unique_ptr<Context> context;
  Pd* pd = nullptr;
};

inline constexpr std::uint32_t kEveryAccess =
    memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;

// A queue pair with a completion queue and a piece of registered memory of its own.
class Node {
 public:
  Node(World& owner, qp::QpType type, Channel* channel = nullptr, std::size_t size = 1 << 20)
      : world(owner), memory(size) {
    cq = *create_cq(*world.context, 4096, channel, this);
    auto created = create_qp(*world.pd, {.type = type,
                                         .send_cq = cq,
                                         .receive_cq = cq,
                                         .signal_all = true,
                                         .send_depth = 256,
                                         .send_sge_max = 4,
                                         .inline_max = 64,
                                         .receive_depth = 256,
                                         .receive_sge_max = 4,
                                         .cookie = this});
    EXPECT_TRUE(created.has_value());
    qp = *created;
    mr = *reg_mr(*world.pd, memory.data(), memory.size(), address(), kEveryAccess);
  }
  ~Node() {
    if (qp) {
      EXPECT_TRUE(destroy_qp(qp).has_value());
    }
    EXPECT_TRUE(dereg_mr(mr).has_value());
    EXPECT_TRUE(destroy_cq(cq).has_value());
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory.data()); }
  QpNum number() const { return number_of(*qp); }

  Result<void, Error> move(qp::QpState to, QpNum destination = {}) {
    qp::QpAttributes a;
    a.state = to;
    a.port = 1;
    a.path_mtu = 5;
    a.destination = destination;
    a.access = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
    a.path.has_grh = true;
    a.path.port = 1;
    a.path.destination = world.context->gids().at(0);
    a.reads_in_max = a.reads_out_max = 16;
    a.timeout = timeout;
    a.retry_count = 3;
    a.rnr_retry = 7;
    a.rnr_timer = 1;
    a.qkey = 0x1234;
    const qp::QpType type = config_of(*qp).type;
    std::uint32_t mask = qp::kState;
    if (to == qp::QpState::kInit) {
      mask |= qp::kPkeyIndex | qp::kPort | (type == qp::QpType::kUd ? qp::kQkey : qp::kAccessFlags);
    } else if (to == qp::QpState::kReadyToReceive && type != qp::QpType::kUd) {
      mask |= qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp | qp::kReceivePsn;
      if (type == qp::QpType::kRc) mask |= qp::kReadsInMax | qp::kRnrTimer;
    } else if (to == qp::QpState::kReadyToSend) {
      mask |= qp::kSendPsn;
      if (type == qp::QpType::kRc)
        mask |= qp::kTimeout | qp::kRetryCount | qp::kRnrRetry | qp::kReadsOutMax;
    }
    return modify_qp(*qp, a, mask);
  }
  void ready(QpNum destination = {}) {
    EXPECT_TRUE(move(qp::QpState::kInit).has_value());
    EXPECT_TRUE(move(qp::QpState::kReadyToReceive, destination).has_value());
    EXPECT_TRUE(move(qp::QpState::kReadyToSend, destination).has_value());
  }

  Sge sge(std::uint64_t offset, std::uint32_t length) const {
    return {address() + offset, length, mr->key};
  }
  // A request about `length` bytes of both nodes' memories, at the same offset.
  Result<void, qp::PostError> post(queues::SendOpcode opcode, const Node& peer,
                                   std::uint64_t offset, std::uint32_t length) {
    const Sge local = sge(offset, length);
    qp::SendRequest request;
    request.wr_id = offset;
    request.opcode = opcode;
    request.remote_address = peer.address() + offset;
    request.remote_key = peer.mr->key;
    request.sges = {&local, 1};
    std::size_t posted = 0;
    return post_send(*qp, {&request, 1}, posted);
  }
  void receive(std::uint64_t offset, std::uint32_t length) {
    const Sge local = sge(offset, length);
    EXPECT_TRUE(post_receive(*qp, offset, {&local, 1}).has_value());
  }

  // Polls until `count` completions came; fails the test after a minute of the machine's time.
  std::vector<queues::Completion> wait(std::size_t count) {
    std::vector<queues::Completion> all;
    const Instant limit = clock_now() + Duration::seconds(60);
    while (all.size() < count) {
      queues::Completion one;
      const int taken = cq->poll({&one, 1});
      EXPECT_GE(taken, 0);
      if (taken > 0) all.push_back(one);
      if (taken == 0 && clock_now() > limit) {
        ADD_FAILURE() << "only " << all.size() << " of " << count << " completions";
        break;
      }
    }
    return all;
  }

  World& world;
  std::vector<std::uint8_t> memory;
  Cq* cq = nullptr;
  Qp* qp = nullptr;
  Mr* mr = nullptr;
  // In all half a second: the peer, whose control thread takes our offer, may have to wait for a
  // processor.
  std::uint8_t timeout = 15;
};

}  // namespace verbena::nic
