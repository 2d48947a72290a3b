// SPDX-License-Identifier: MIT
// Two queue pairs in one process, joined by the ring carrier or by hand, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"
#include "host/process_page.h"
#include "local/ring_tiny.h"
#include "memory/region_table.h"
#include "qp/queue_pair.h"

namespace verbena::local {

// The two, and what their memory may be used for.
inline constexpr QpNum kA{0x4005};
inline constexpr QpNum kB{0x8007};
inline constexpr std::uint32_t kAll =
    memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;

// One end: everything that a queue pair needs, and a page for its doorbell.
class End : public qp::QpEvents {
 public:
  End(qp::QpType type, QpNum number, std::uint32_t depth = 64)
      : completions(4096, nullptr),
        page(static_cast<host::ProcessPage*>(std::calloc(1, sizeof(host::ProcessPage)))),
        doorbell(*page),
        pair({.type = type,
              .number = number,
              .pd = PdId{1},
              .receive_pd = PdId{1},
              .signal_all = true,
              .send_depth = depth,
              .send_sge_max = 4,
              .inline_max = 256,
              .receive_depth = depth,
              .receive_sge_max = 4,
              .send_completions = &completions,
              .receive_completions = &completions,
              .shared_receives = nullptr,
              .regions = &regions,
              .events = this}),
        carrier(type, &glance) {}
  ~End() { std::free(page); }

  void qp_event(QpNum, qp::QpEvent event) override { events.push_back(event); }
  void qp_flushes(QpNum) override { carrier.take_back_lent(); }

  MemoryKey add(void* address, std::size_t length, std::uint32_t access) {
    auto key = regions.add({.pd = PdId{1},
                            .iova = reinterpret_cast<std::uint64_t>(address),
                            .access = access,
                            .extents = {{static_cast<std::byte*>(address), length}}});
    EXPECT_TRUE(key.has_value());
    return key ? *key : MemoryKey{};
  }

  void move(QpNum destination, qp::QpState to, std::uint8_t rnr_retry = 7) {
    qp::QpAttributes a;
    a.state = to;
    a.port = 1;
    a.path_mtu = 5;
    a.destination = destination;
    a.access = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
    a.path.has_grh = true;
    a.path.port = 1;
    a.reads_in_max = 16;
    a.reads_out_max = 16;
    a.timeout = 10;
    a.retry_count = 2;
    a.rnr_retry = rnr_retry;
    a.rnr_timer = 1;
    const bool is_rc = pair.config().type == qp::QpType::kRc;
    std::uint32_t mask = qp::kState;
    switch (to) {
      case qp::QpState::kInit: mask |= qp::kPkeyIndex | qp::kPort | qp::kAccessFlags; break;
      case qp::QpState::kReadyToReceive:
        mask |= qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp | qp::kReceivePsn;
        if (is_rc) mask |= qp::kReadsInMax | qp::kRnrTimer;
        break;
      case qp::QpState::kReadyToSend:
        mask |= qp::kSendPsn;
        if (is_rc) mask |= qp::kTimeout | qp::kRetryCount | qp::kRnrRetry | qp::kReadsOutMax;
        break;
      case qp::QpState::kReset:
      case qp::QpState::kDrained:
      case qp::QpState::kSendError:
      case qp::QpState::kError: break;
    }
    EXPECT_TRUE(pair.modify(a, mask).has_value());
    if (to == qp::QpState::kReadyToSend) carrier.set_timeout(qp::ack_timeout(a.timeout));
  }
  void ready(QpNum destination, std::uint8_t rnr_retry = 7) {
    move(destination, qp::QpState::kInit);
    move(destination, qp::QpState::kReadyToReceive);
    move(destination, qp::QpState::kReadyToSend, rnr_retry);
  }

  // As the NIC does it, where somebody polls every other time.
  bool turn(Instant now) {
    if (takes_small && ++turns % 2 != 0) {
      const std::uint32_t most = 1 + turns % 5;
      if (most != 1 || !carrier.take_tiny(pair.responder(), pair.window()))
        carrier.take_small(pair.responder(), pair.window(), most, now);
    }
    qp::Budget answers;
    qp::Budget requests;
    qp::Budget sends;
    carrier.collect(pair.window(), answers, now);
    bool more = carrier.serve(pair.responder(), requests, now);
    carrier.issue(pair.window(), sends, now);
    if (pair.state() == qp::QpState::kError) carrier.close();
    carrier.ring_if_needed();
    carrier.show();
    return more || answers.spent() || sends.spent();
  }
  std::vector<queues::Completion> poll() {
    std::vector<queues::Completion> taken(256);
    taken.resize(completions.poll(taken));
    return taken;
  }

  KernelRandom random;
  memory::SectionList sections;
  memory::RegionTable regions{1024, random, sections};
  queues::CompletionQueue completions;
  host::ProcessPage* page;
  host::Doorbell doorbell;
  qp::QueuePair pair;
  Glance glance;
  RingCarrier carrier;
  std::vector<qp::QpEvent> events;
  bool takes_small = true;
  std::uint32_t turns = 0;
};

// The memory of a conduit, mapped twice, as two processes would.
struct SharedConduit {
  Conduit first;
  Conduit second;
};
inline SharedConduit make_conduit(std::uint64_t id) {
  auto created = host::SharedMemory::create(kConduitSize, host::Backing::kWhenTouched);
  EXPECT_TRUE(created.has_value());
  auto again = host::SharedMemory::adopt(created->fd, kConduitSize);
  EXPECT_TRUE(again.has_value());
  SharedConduit made;
  made.first = Conduit::prepare(std::move(created->memory), id);
  made.second = Conduit::accept(std::move(*again), id);
  EXPECT_TRUE(static_cast<bool>(made.second));
  return made;
}

// Both directions.
// Where the requests to `b` lie.
inline std::byte* connect(End& a, End& b) {
  SharedConduit to_b = make_conduit(1);
  SharedConduit to_a = make_conduit(2);
  auto* const requests = reinterpret_cast<std::byte*>(&to_b.first.header()) + kRingsOffset;
  b.carrier.offer(std::move(to_b.first), {&a.doorbell, a.pair.config().number.index()});
  a.carrier.offer(std::move(to_a.first), {&b.doorbell, b.pair.config().number.index()});
  a.carrier.attach(std::move(to_b.second));
  b.carrier.attach(std::move(to_a.second));
  return requests;
}

}  // namespace verbena::local
