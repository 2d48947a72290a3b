// SPDX-License-Identifier: MIT
// A queue pair that executes one-sided operations by itself on a Target, for tests. Its lock lies
// in published tables of its own, as the owner sees it.
#pragma once

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>

#include "local/direct.h"
#include "local/test_pair.h"
#include "local/test_target.h"
#include "memory/guarded_copy.h"

namespace verbena::local {

class Initiator {
 public:
  static constexpr QpNum kSelf = QpNum::of({6}, 21);
  static constexpr QpNum kOther = QpNum::of(Target::kSlot, 33);
  static constexpr std::uint64_t kConnection = 0xc0ffee;
  static constexpr std::uint8_t kOperand = 3;

  explicit Initiator(Target& of, const host::MemoryOwner& owner = {})
      : end(qp::QpType::kRc, kSelf),
        memory(owner, requests, end.sections),
        buffer(Target::kSize),
        target_(of) {
    end.sections.add(end.pair.lock());
    end.ready(kOther);
    key_ = end.add(buffer.data(), buffer.size(), memory::kLocalWrite);
    memory.take_tables(of.look());
    direct.attach(memory, kSelf, kOther, conduit.second.header(), kConnection);
  }

  SectionLock& lock() { return end.pair.lock(); }
  qp::SendWindow& window() { return end.pair.window(); }
  void fill(std::uint8_t value) { std::memset(buffer.data(), value, buffer.size()); }

  void grant(std::uint32_t rights = Target::kRights, QpNum to = kSelf,
             std::uint64_t connection = kConnection, PdId pd = Target::kPd) {
    revoke();
    target_.published.grant(kOther,
                            {.pd = pd, .to = to, .rights = rights, .connection = connection});
  }
  void revoke() { target_.published.revoke(kOther); }
  // Everything that it takes.
  void map() {
    grant();
    target_.show();
    memory.map_now(Target::kKey, target_.files);
  }

  // The operation that the window offers now.
  const qp::Operation* begin(queues::SendOpcode opcode, std::uint64_t offset,
                             std::uint32_t length) {
    return begin_at(opcode, target_.address() + offset, length);
  }
  const qp::Operation* begin_at(queues::SendOpcode opcode, std::uint64_t address,
                                std::uint32_t length) {
    const Sge sge{reinterpret_cast<std::uint64_t>(buffer.data()), length, key_};
    qp::SendRequest request;
    request.opcode = opcode;
    request.remote_address = address;
    request.remote_key = Target::kKey;
    request.sges = {&sge, 1};
    request.compare_add = kOperand;
    EXPECT_TRUE(end.pair.post_send(request).has_value());
    return window().next(Now(Instant::at(1)));
  }
  // One operation from begin to end. What cannot be done counts as done otherwise.
  Direct::Outcome execute_at(queues::SendOpcode opcode, std::uint64_t address,
                             std::uint32_t length) {
    const std::lock_guard section(lock());
    const qp::Operation* op = begin_at(opcode, address, length);
    EXPECT_NE(op, nullptr);
    const qp::OpIndex index = op->index;
    Direct::Outcome outcome = Direct::Outcome::kPartly;
    while (outcome == Direct::Outcome::kPartly) {
      qp::Budget budget;
      outcome = direct.execute(window(), *op, budget);
    }
    const Now now(Instant::at(1));
    if (outcome != Direct::Outcome::kEnded) {
      window().issued(now);
      window().answered(index, qp::Answer::kDone, now);
    }
    end.poll();
    return outcome;
  }
  Direct::Outcome execute(queues::SendOpcode opcode, std::uint64_t offset, std::uint32_t length) {
    return execute_at(opcode, target_.address() + offset, length);
  }

  // Inside what was mapped of the target's file, for us.
  bool is_mapping(const std::byte* at, std::size_t length) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(at);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      unsigned long low = 0;
      unsigned long high = 0;
      const bool is_file = line.find("verbena-test") != line.npos;
      if (!is_file || std::sscanf(line.c_str(), "%lx-%lx", &low, &high) != 2) continue;
      if (low == target_.address()) continue;
      if (low <= begin && begin + length <= high) return true;
    }
    return false;
  }

  End end;
  AskedMappings requests;
  PeerMemory memory;
  Direct direct;
  std::vector<std::byte> buffer;
  SharedConduit conduit = make_conduit(kConnection);  // the owner's, and ours

 private:
  Target& target_;
  MemoryKey key_;
};

}  // namespace verbena::local
