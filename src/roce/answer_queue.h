// SPDX-License-Identifier: MIT
// Answers that bring bytes and are not sent yet: of READs, which may be long, and of atomics, in
// the order of their PSNs. Nothing that comes after them may be acknowledged before (IBTA vol 1,
// 9.7.5.1.1: it would say that they are lost).
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "wire/sequence.h"

namespace verbena::roce {

// One of them. `packets` from `psn` on, of which `done` are sent.
struct OwedAnswer {
  wire::Psn psn{};
  wire::Msn msn{};
  std::uint32_t packets = 1;
  std::uint32_t done = 0;
  bool is_again = false;           // does not count against what the peer may ask for
  bool is_gone = false;            // came again, too late: it is refused, and no more
  std::uint32_t shared_queue = 0;  // XRC
  bool is_atomic = false;
  std::uint64_t value = 0;  // of an atomic
  MemoryKey key{};
  std::uint64_t address = 0;
  std::uint32_t length = 0;

  wire::Psn end() const { return psn + packets; }
};

class AnswerQueue {
 public:
  // `most` of requests that come for the first time, and some room for those that come again.
  explicit AnswerQueue(std::uint32_t most);

  bool is_empty() const { return owed_.empty(); }
  OwedAnswer& front() { return owed_.front(); }
  void pop() { owed_.erase(owed_.begin()); }
  void clear() { owed_.clear(); }

  // False: more than the peer may have with us at a time.
  bool add(const OwedAnswer& answer);
  // Asked for again. Instead of the one that it repeats, or the rest of which it asks for; else
  // before those that come later. Dropped when there is no room. What nobody can have had whole is
  // not again: the peer waits for it.
  void add_again(const OwedAnswer& answer);

 private:
  static constexpr std::uint32_t kAgainMost = 16;
  std::uint32_t most_;
  std::vector<OwedAnswer> owed_;
};

// The results of the last atomics, for those that come again: they are never executed twice
// (9.4.5, 9.7.5.1.5).
class AtomicReplay {
 public:
  explicit AtomicReplay(std::uint32_t most) : results_(most == 0 ? 1 : most) {}
  void add(wire::Psn psn, std::uint64_t value) {
    results_[next_++ % results_.size()] = {psn, value, true};
  }
  // Null: not among the last.
  const std::uint64_t* find(wire::Psn psn) const;

 private:
  struct Result {
    wire::Psn psn;
    std::uint64_t value = 0;
    bool is_used = false;
  };
  std::vector<Result> results_;
  std::uint64_t next_ = 0;  // does not wrap: how many there may be is no power of two
};

// The last READs, of which the peer may ask for all or a part again (9.7.5.1.5): as many as it may
// have with us at a time. What it never asked for is no repetition, but somebody's guess.
class ReadHistory {
 public:
  explicit ReadHistory(std::uint32_t most) : reads_(most == 0 ? 1 : most, {.packets = 0}) {}
  void add(const OwedAnswer& read) { reads_[next_++ % reads_.size()] = read; }
  bool has(const OwedAnswer& again, std::uint32_t path_mtu) const;

 private:
  std::vector<OwedAnswer> reads_;
  std::uint64_t next_ = 0;
};

}  // namespace verbena::roce
