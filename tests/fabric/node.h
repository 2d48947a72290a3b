// SPDX-License-Identifier: MIT
// One host of the fabric: its memory, its regions, its completion queues, and the NIC's part that
// finds the queue pair for a packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/region_table.h"
#include "network.h"
#include "qp/responder.h"
#include "queues/completion_queue.h"
#include "queues/work_queue.h"
#include "roce/wire.h"
#include "wire/ip.h"
#include "workload/receives.h"

namespace verbena::fabric {

using workload::Receives;
using workload::ReceiveSlot;

class Manager;
class Pair;
class World;

inline constexpr std::uint32_t kNodeMemory = 256 * 1024;
inline constexpr std::uint32_t kReserveBytes = 64 * 1024;        // at its end, for what must go on
inline constexpr std::uint32_t kSourceBytes = 16 * 1024;         // at the beginning; never written
inline constexpr std::uint32_t kSharedWord = kSourceBytes + 64;  // atomics of everybody

// Of XRC: shared receive queues are known to the peer by number (annex A14). The last one is of
// another protection domain, and nobody posts to it.
inline constexpr std::uint32_t kFirstQueue = 0x700;
inline constexpr std::uint32_t kQueues = 2;
inline constexpr std::uint32_t kForeignQueue = kFirstQueue + kQueues;
inline constexpr std::uint32_t kUnknownQueue = kForeignQueue + 1;

struct SharedReceives {
  queues::ReceiveQueue queue{256, 2};
  Receives posted{};
};

class Node final : public qp::SharedQueues {
 public:
  Node(World& world, unsigned number);
  ~Node();

  unsigned number() const { return number_; }
  std::uint64_t guid() const { return number_ + 1; }
  static Gid gid_of(unsigned number, bool is_ipv6);
  static std::optional<unsigned> number_of(const Gid& gid);

  // A place that nobody else gets, with a gap before it; nothing when memory is used up.
  enum class Carve : std::uint8_t { kPlain, kReserve };
  std::optional<std::uint32_t> carve(std::uint32_t length, Carve from = Carve::kPlain);
  std::uint64_t address(std::uint32_t place) const { return base_ + place; }
  std::span<std::byte> bytes(std::uint32_t place, std::size_t length) {
    return {memory_.data() + place, length};
  }
  std::span<const std::byte> before(std::uint32_t place, std::size_t length) const {
    return std::span(before_).subspan(place, length);
  }
  // What is there was looked at, and is right. The rest must be as it was.
  void settle(std::uint32_t place, std::size_t length);
  void compare_memory();
  // Deregisters `revocable`. What only that key reaches stays as it is now.
  void revoke();
  bool is_revoked() const { return !at_revocation_.empty(); }
  std::span<const std::byte> at_revocation(std::uint32_t place, std::size_t length) const {
    return std::span(at_revocation_).subspan(place, length);
  }

  void arrived(Frame frame);
  void pause_until(Instant when);
  bool is_paused() const;
  void die();
  bool is_dead() const { return is_dead_; }
  // The program takes what has completed.
  void poll();
  void poll_sometimes();  // seldom, where there is little room for what completes
  bool has_overrun() const { return sends.is_overrun() || receives.is_overrun(); }

  Pair* find(QpNum number) const;
  Result<qp::SharedQueue, qp::Reason> find(std::uint32_t shared_queue) override;
  void add(Pair& pair);

  const PdId pd;
  memory::SectionList sections;  // one thread: nobody to wait for
  memory::RegionTable regions;
  queues::CompletionQueue sends;
  queues::CompletionQueue receives;
  std::array<SharedReceives, kQueues> shared;  // who has no number for them uses the first
  std::unique_ptr<Manager> manager;            // where connections are made by one
  MemoryKey key{};
  MemoryKey revocable{};

  // What everybody's fetch-and-adds on kSharedWord have returned.
  std::vector<std::uint64_t> words_seen;
  std::uint64_t adds_posted = 0;

 private:
  static constexpr std::size_t kBufferedMax = 256;  // frames for a node that is paused

  void take(Frame& frame);
  bool receive_run(const Frame& frame, const wire::Flow& flow);
  void receive(const Frame& frame, const wire::Flow& flow);

  World& world_;
  unsigned number_;
  std::uint64_t base_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> before_;
  std::vector<std::byte> expected_;
  std::vector<std::byte> at_revocation_;
  std::uint32_t next_place_ = kSharedWord + 64;
  std::map<QpNum, Pair*> pairs_;
  queues::ReceiveQueue foreign_{1, 1};
  Instant paused_until_;
  std::deque<Frame> buffered_;
  bool is_dead_ = false;
};

}  // namespace verbena::fabric
