// SPDX-License-Identifier: MIT
// One NIC of the simulated world: its memory with a shadow, regions, completion queues, a shared
// receive queue.
//
// The shadow is what memory must look like. It changes only where the model says that a byte
// arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/test_clock.h"
#include "memory/region_table.h"
#include "queues/completion_queue.h"
#include "queues/work_queue.h"
#include "receive_ledger.h"

namespace verbena::sim {

inline constexpr std::uint32_t kMemorySize = 64 * 1024;
// The parts of an endpoint's memory. What lies between and around them must never change.
struct Part {
  std::uint32_t begin;
  std::uint32_t size;
};
inline constexpr Part kSource{0x0100, 0x3000};   // never written
inline constexpr Part kTarget{0x4000, 0x3000};   // WRITEs and READs of the peer
inline constexpr Part kAtomics{0x8000, 0x0100};  // atomics of the peer
inline constexpr Part kLanding{0x9000, 0x3800};  // answers of our READs and atomics
inline constexpr Part kReceives{0xD000, 0x2E00};

inline constexpr std::uint32_t kAllAccess =
    memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;

struct Region {
  PdId pd{};
  std::uint32_t access = 0;
  bool is_there = true;
};

class Endpoint final : public queues::CompletionEvents {
 public:
  Endpoint(unsigned number, SeededRandom& random, Failures& failures, std::uint32_t completions);

  MemoryKey add_region(PdId pd, std::uint32_t access);
  void revoke();  // deregisters `revocable`
  std::uint64_t address(std::uint64_t offset) const { return base_ + offset; }
  std::span<std::byte> bytes(std::uint64_t offset, std::size_t length) {
    return {memory_.data() + offset, length};
  }

  // What the one check of a remote request must say.
  bool may_touch(MemoryKey key, PdId pd, std::uint64_t address, std::uint64_t length,
                 std::uint32_t access) const;
  std::vector<std::byte> shadow_at(std::uint64_t address, std::size_t length) const;
  void shadow_write(std::uint64_t address, std::span<const std::byte> bytes);
  void shadow_scatter(std::span<const Sge> sges, std::uint64_t offset,
                      std::span<const std::byte> bytes);
  void compare_memory();

  void completion_event(queues::CompletionQueue&) override {}
  void overrun_event(queues::CompletionQueue&) override { ++overruns; }

  const PdId pd;
  const PdId other_pd;
  memory::SectionList sections;  // one thread: nobody to wait for
  memory::RegionTable table;
  queues::CompletionQueue sends;
  queues::CompletionQueue receives;
  queues::ReceiveQueue shared{32, 4};
  PostedReceives shared_posted;
  MemoryKey key{};        // all rights
  MemoryKey revocable{};  // all rights, until deregistered
  MemoryKey no_rights{};
  MemoryKey foreign{};  // of another domain
  unsigned overruns = 0;
  bool is_dead = false;
  bool is_revoked = false;
  bool overrun_seen = false;

 private:
  Failures& failures_;
  std::uint64_t base_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> shadow_;
  std::map<MemoryKey, Region> regions_;
};

}  // namespace verbena::sim
