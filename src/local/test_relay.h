// SPDX-License-Identifier: MIT
// A process that has shared receive queues of an XRC domain, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "local/ring_responder.h"
#include "memory/region_table.h"

namespace verbena::local {

inline constexpr std::uint32_t kQueue = 0x8123;
inline constexpr std::uint32_t kSecondQueue = 0x8124;
inline constexpr std::uint32_t kElsewhere = 0x9123;

class Domain final : public qp::SharedQueues {
 public:
  Result<qp::SharedQueue, qp::Reason> find(std::uint32_t number) override {
    if (number != kQueue && number != kSecondQueue) return refuse(qp::Reason::kNoSharedQueue);
    return number == kQueue ? found : second;
  }
  bool is_elsewhere(std::uint32_t number) const override { return number == kElsewhere; }
  qp::SharedQueue found;
  qp::SharedQueue second;
};

// The process that has the queue.
class Owner : qp::Responder::Owner {
 public:
  explicit Owner(std::size_t bytes = 400'000) : Owner(bytes, 0, bytes) {}
  // Of so much memory, peers may reach that part.
  Owner(std::size_t bytes, std::size_t offset, std::size_t length) : memory(bytes) {
    region = *regions.add({.pd = PdId{1},
                           .iova = address(offset),
                           .access = memory::kLocalWrite | memory::kRemoteWrite |
                                     memory::kRemoteRead | memory::kRemoteAtomic,
                           .extents = {{memory.data() + offset, length}}});
    domain.found = {&queue, &completions, PdId{1}};
    domain.second = {&second_queue, &completions, PdId{1}};
    qp::QpAttributes attributes;
    attributes.state = qp::QpState::kReadyToReceive;
    attributes.access = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
    attributes.reads_in_max = 16;
    responder.start(attributes);
  }
  std::uint64_t address(std::size_t offset) {
    return reinterpret_cast<std::uint64_t>(memory.data() + offset);
  }
  void post(std::size_t offset, std::uint32_t length) {
    const Sge sge{address(offset), length, region};
    ASSERT_FALSE(queue.post(7, {&sge, 1}));
  }
  void turn() {
    for (bool more = true; more;) {
      qp::Budget budget;
      more = ring.serve(responder, budget);
    }
  }
  std::vector<queues::Completion> poll() {
    std::vector<queues::Completion> all(64);
    all.resize(completions.poll(all));
    return all;
  }

  std::vector<std::byte> memory;
  KernelRandom random;
  memory::SectionList sections;
  memory::RegionTable regions{64, random, sections};
  MemoryKey region;
  queues::ReceiveQueue queue{64, 1};
  queues::ReceiveQueue second_queue{64, 1};
  queues::CompletionQueue completions{64, nullptr};
  Domain domain;
  qp::Responder responder{{.type = qp::QpType::kRc,
                           .xrc = qp::Xrc::kTarget,
                           .is_shared = true,
                           .shared_queues = &domain,
                           .completions = &completions,
                           .regions = &regions,
                           .owner = this}};
  RingResponder ring{qp::QpType::kRc};

 private:
  void responder_failed(qp::ResponderFault) override {}
  void communication_established() override {}
};

}  // namespace verbena::local
