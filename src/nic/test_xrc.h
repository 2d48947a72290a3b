// SPDX-License-Identifier: MIT
// An XRC target and a shared receive queue of one domain, which other processes may have open as
// well. For tests only.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <vector>

#include "nic/test_world.h"
#include "nic/xrc.h"

namespace verbena::nic {

class XrcTarget {
 public:
  // Of `bytes`, the part from `granted` on, of that length, is registered.
  XrcTarget(World& world, std::size_t bytes, std::size_t granted, std::size_t length,
            std::uint8_t fill)
      : memory(bytes, fill), offset_(granted), length_(length) {
    const auto domain = open_xrcd(*world.context, {.file = file()});
    EXPECT_TRUE(domain.has_value());
    xrcd = *domain;
    cq = *create_cq(*world.context, 256, nullptr, this);
    srq = *create_srq(*world.pd, 64, 1, this);
    EXPECT_TRUE(join_domain(*srq, *xrcd, *cq).has_value());
    qp = *create_target(*xrcd, this);
    path = world.context->gids().at(0);
    mr = *reg_mr(*world.pd, memory.data() + granted, length, address(), kEveryAccess);
  }
  XrcTarget(const XrcTarget&) = delete;
  XrcTarget& operator=(const XrcTarget&) = delete;

  // No file of any file system: only the number counts.
  static FileIdentity file() {
    return {.device = 0xF022, .inode = static_cast<std::uint64_t>(getpid())};
  }
  QpNum number() const { return number_of(*qp); }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory.data() + offset_); }
  void connect(QpNum initiator) {
    qp::QpAttributes a;
    a.port = 1;
    a.path_mtu = 5;
    a.destination = initiator;
    a.access = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
    a.path.has_grh = true;
    a.path.port = 1;
    a.path.destination = path;
    a.reads_in_max = 16;
    a.rnr_timer = 1;
    const auto move = [&](qp::QpState to, std::uint32_t mask) {
      a.state = to;
      static_cast<void>(modify_qp(*qp, a, mask | qp::kState));
    };
    move(qp::QpState::kReset, 0);
    move(qp::QpState::kInit, qp::kPkeyIndex | qp::kPort | qp::kAccessFlags);
    move(qp::QpState::kReadyToReceive, qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp |
                                           qp::kReceivePsn | qp::kReadsInMax | qp::kRnrTimer);
  }
  void post(std::uint32_t length) {
    const Sge sge{address(), std::min<std::uint32_t>(length, static_cast<std::uint32_t>(length_)),
                  mr->key};
    static_cast<void>(srq->queue.post(1, {&sge, 1}));
  }

  std::vector<std::uint8_t> memory;
  Xrcd* xrcd = nullptr;
  Cq* cq = nullptr;
  Srq* srq = nullptr;
  Qp* qp = nullptr;
  Mr* mr = nullptr;
  Gid path;

 private:
  std::size_t offset_;
  std::size_t length_;
};

}  // namespace verbena::nic
