// SPDX-License-Identifier: MIT
// What the tests of this folder share: registered memory, completion queues, and each half of a
// queue pair with an owner that writes down what it hears. For tests only.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.h"
#include "base/random.h"
#include "memory/region_table.h"
#include "qp/queue_pair.h"
#include "qp/responder.h"
#include "qp/send_window.h"

namespace verbena::qp {

inline constexpr PdId kTestPd{7};
inline constexpr PdId kOtherPd{8};
inline constexpr QpNum kTestQp{0x123456};
inline constexpr std::uint32_t kAllAccess =
    memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;

// 64 KiB of memory, registered as a whole with all rights; more regions on top as a test wants
// them.
class TestMemory {
 public:
  TestMemory() { key = add(kTestPd, kAllAccess); }

  MemoryKey add(PdId pd, std::uint32_t access) {
    const auto added = table.add({.pd = pd,
                                  .iova = address(0),
                                  .access = access,
                                  .extents = {{bytes.data(), bytes.size()}}});
    VERBENA_ASSERT(added.has_value());
    return *added;
  }
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(bytes.data() + offset);
  }
  Sge sge(std::size_t offset, std::uint32_t length) const { return {address(offset), length, key}; }
  void fill(std::size_t offset, std::size_t length, std::uint8_t value) {
    std::memset(bytes.data() + offset, value, length);
  }
  bool holds(std::size_t offset, std::size_t length, std::uint8_t value) const {
    for (std::size_t i = offset; i < offset + length; ++i)
      if (bytes[i] != std::byte{value}) return false;
    return true;
  }

  alignas(64) std::array<std::byte, 64 * 1024> bytes{};
  SeededRandom random{1};
  memory::SectionList sections;
  memory::RegionTable table{64, random, sections};
  MemoryKey key;
};

inline std::vector<queues::Completion> poll_all(queues::CompletionQueue& queue) {
  std::vector<queues::Completion> all;
  std::array<queues::Completion, 16> some;
  while (const std::size_t count = queue.poll(some))
    all.insert(all.end(), some.begin(), some.begin() + count);
  return all;
}

inline std::vector<std::uint64_t> ids(const std::vector<queues::Completion>& completions) {
  std::vector<std::uint64_t> result;
  for (const auto& completion : completions)
    result.push_back(completion.wr_id);
  return result;
}

inline std::vector<queues::Status> statuses(const std::vector<queues::Completion>& completions) {
  std::vector<queues::Status> result;
  for (const auto& completion : completions)
    result.push_back(completion.status);
  return result;
}

struct Posting {
  queues::SendOpcode opcode = queues::SendOpcode::kWrite;
  std::uint8_t flags = queues::kSignaled;
  std::vector<Sge> sges = {};
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
};

struct WindowOptions {
  QpType type = QpType::kRc;
  bool signal_all = false;
  std::uint32_t depth = 16;
  std::uint32_t sge_max = 4;
  std::uint32_t inline_max = 64;
  std::uint32_t completions = 64;
  std::uint32_t in_flight_max = 128;
  std::uint8_t retry_count = 3;
  std::uint8_t rnr_retry = 2;
  std::uint8_t reads_out_max = 4;
};

// A window in RTS. Work requests have the ids 0, 1, 2 ... in the order of posting.
class WindowBench final : public SendWindow::Owner {
 public:
  explicit WindowBench(WindowOptions options = {})
      : queue(options.depth, options.sge_max, options.inline_max),
        completions(options.completions, nullptr),
        window({.type = options.type,
                .qp = kTestQp,
                .pd = kTestPd,
                .signal_all = options.signal_all,
                .queue = &queue,
                .completions = &completions,
                .regions = &memory.table,
                .owner = this,
                .in_flight_max = options.in_flight_max}) {
    attributes.state = QpState::kReadyToSend;
    attributes.retry_count = options.retry_count;
    attributes.rnr_retry = options.rnr_retry;
    attributes.reads_out_max = options.reads_out_max;
    window.start(attributes);
  }

  // Writes into the stride as a program may that knows its layout.
  queues::SendWqe& post(const Posting& posting) {
    queues::SendWqe* wqe = queue.room();
    VERBENA_ASSERT(wqe != nullptr);
    *wqe = {};
    wqe->wr_id = posted++;
    wqe->opcode = static_cast<std::uint8_t>(posting.opcode);
    wqe->flags = posting.flags;
    wqe->sge_count = static_cast<std::uint16_t>(posting.sges.size());
    wqe->atomic = {posting.compare_add, posting.swap};
    std::copy(posting.sges.begin(), posting.sges.end(), queues::SendQueue::sge_room(*wqe));
    queue.post();
    return *wqe;
  }
  queues::SendWqe& post_write(std::uint8_t flags = queues::kSignaled) {
    return post({.flags = flags, .sges = {memory.sge(0, 16)}});
  }
  queues::SendWqe& post_read(std::uint8_t flags = queues::kSignaled) {
    return post({.opcode = queues::SendOpcode::kRead, .flags = flags, .sges = {memory.sge(0, 16)}});
  }

  // Issues what the window offers; the numbers of it.
  std::vector<std::uint32_t> issue(unsigned most = 100) {
    std::vector<std::uint32_t> numbers;
    while (most-- > 0) {
      const Operation* op = window.next(now);
      if (!op) break;
      numbers.push_back(op->index.value());
      window.issued(now);
    }
    return numbers;
  }
  void answer(std::uint32_t upto, Answer with, std::uint8_t rnr_timer = 0) {
    window.answered(OpIndex(upto), with, now, rnr_timer);
  }
  std::vector<queues::Completion> poll() { return poll_all(completions); }

  void window_failed(WindowFault fault) override { faults.push_back(fault); }
  void window_flushes() override {
    if (before_flush) before_flush();
  }
  void window_drained() override { ++drained; }

  TestMemory memory;
  queues::SendQueue queue;
  queues::CompletionQueue completions;
  QpAttributes attributes;
  SendWindow window;
  Instant now = Instant::at(1'000'000);
  std::uint64_t posted = 0;
  std::vector<WindowFault> faults;
  std::function<void()> before_flush;
  unsigned drained = 0;
};

struct ResponderOptions {
  QpType type = QpType::kRc;
  bool is_shared = false;
  queues::Takers takers = queues::Takers::kMany;
  std::uint32_t completions = 64;
  std::uint32_t access = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
  std::uint8_t reads_in_max = 4;
  QpState state = QpState::kReadyToSend;
};

// A responder; its owner does as a queue pair does: ERR, so flush.
class ResponderBench final : public Responder::Owner, public queues::CompletionEvents {
 public:
  explicit ResponderBench(ResponderOptions options = {})
      : queue(16, 4, nullptr, options.takers),
        completions(options.completions, this),
        responder({.type = options.type,
                   .qp = kTestQp,
                   .pd = kTestPd,
                   .queue = &queue,
                   .is_shared = options.is_shared,
                   .receive_pd = kTestPd,
                   .completions = &completions,
                   .regions = &memory.table,
                   .owner = this}) {
    attributes.state = options.state;
    attributes.access = options.access;
    attributes.reads_in_max = options.reads_in_max;
    attributes.qkey = 0x1111;
    attributes.rnr_timer = 12;
    responder.start(attributes);
  }

  // Receives have the ids 100, 101 ...
  void post(std::vector<Sge> sges) {
    VERBENA_ASSERT(!queue.post(100 + posted++, sges).has_value());
  }
  std::vector<queues::Completion> poll() { return poll_all(completions); }
  // A whole message of `length` bytes of `value`; where it was refused, the refusal.
  std::optional<Refusal> send(std::size_t length, std::uint8_t value, const Arrived& arrived = {}) {
    const std::vector<std::byte> payload(length, std::byte{value});
    if (auto begun = responder.begin_receive(length); !begun) return begun.error();
    if (auto placed = responder.place(0, payload); !placed) return placed.error();
    if (auto done = responder.finish_receive(arrived); !done) return done.error();
    return std::nullopt;
  }

  void responder_failed(ResponderFault fault) override {
    faults.push_back(fault);
    responder.flush();
  }
  void communication_established() override { ++established; }
  void completion_event(queues::CompletionQueue&) override { ++events; }
  void overrun_event(queues::CompletionQueue&) override {}

  TestMemory memory;
  queues::ReceiveQueue queue;
  queues::CompletionQueue completions;
  QpAttributes attributes;
  Responder responder;
  std::uint64_t posted = 0;
  std::vector<ResponderFault> faults;
  unsigned established = 0;
  unsigned events = 0;
};

}  // namespace verbena::qp
