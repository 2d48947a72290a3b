// SPDX-License-Identifier: MIT
// One thing that a program asks of its queue pair, whoever serves it: the engines of the simulated
// fabric (tests/fabric), or real processes by libibverbs (tests/chaos).
#pragma once

#include <array>
#include <cstdint>

namespace verbena::workload {

enum class Service : std::uint8_t { kReliable, kUnreliable, kDatagrams, kExtended };

constexpr bool is_reliable(Service service) {
  return service == Service::kReliable || service == Service::kExtended;
}

enum class Verb : std::uint8_t {
  kSend,
  kSendWithImmediate,
  kSendWithInvalidate,
  kWrite,
  kWriteWithImmediate,
  kRead,
  kFetchAdd,
  kCompareSwap,
  kFlush,
  kAtomicWrite,
};

constexpr bool is_atomic(Verb verb) {
  return verb == Verb::kFetchAdd || verb == Verb::kCompareSwap;
}
constexpr bool is_write(Verb verb) {
  return verb == Verb::kWrite || verb == Verb::kWriteWithImmediate || verb == Verb::kAtomicWrite;
}
constexpr bool is_send(Verb verb) {
  return verb == Verb::kSend || verb == Verb::kSendWithImmediate ||
         verb == Verb::kSendWithInvalidate;
}
constexpr bool has_immediate(Verb verb) {
  return verb == Verb::kSendWithImmediate || verb == Verb::kWriteWithImmediate;
}
// Eight bytes, aligned.
constexpr bool is_word(Verb verb) { return is_atomic(verb) || verb == Verb::kAtomicWrite; }
constexpr bool takes_receive(Verb verb) {
  return is_send(verb) || verb == Verb::kWriteWithImmediate;
}
constexpr bool comes_back(Verb verb) { return verb == Verb::kRead || is_atomic(verb); }

// What is asked for, besides a good thing.
enum class Spoiled : std::uint8_t {
  kNo,
  kKey,
  kAlignment,
  kMissingQueue,   // XRC: a shared receive queue that is not there
  kAnothersQueue,  // one of a protection domain that may not touch this
};

// What the responder has to say to it.
enum class Refusal : std::uint8_t { kNone, kAccess, kInvalidRequest };

constexpr Refusal refusal_of(Spoiled spoiled) {
  switch (spoiled) {
    case Spoiled::kNo: return Refusal::kNone;
    case Spoiled::kKey:
    case Spoiled::kAnothersQueue: return Refusal::kAccess;
    case Spoiled::kAlignment:
    case Spoiled::kMissingQueue: return Refusal::kInvalidRequest;
  }
  return Refusal::kNone;
}

struct Request {
  static constexpr std::uint32_t kPiecesMax = 3;

  std::uint32_t index = 0;
  Verb verb = Verb::kSend;
  std::uint32_t length = 0;   // bytes
  std::uint64_t content = 0;  // what its bytes are made of, or its operand
  std::uint32_t place = 0;    // of the peer's, where they are numbered
  std::uint32_t queue = 0;    // of the peer's shared receive queues, for XRC
  // Scatter/gather elements: how much of the length each has.
  std::array<std::uint32_t, kPiecesMax> pieces{};
  std::uint32_t piece_count = 1;
  bool is_signaled = true;
  bool is_inline = false;
  bool is_fenced = false;
  bool uses_revocable_here = false;  // a region that is deregistered under traffic
  bool uses_revocable_there = false;
  Spoiled spoiled = Spoiled::kNo;

  // What it asks for is not to be had.
  void make_empty() {
    length = 0;
    pieces = {};
    is_inline = uses_revocable_here = uses_revocable_there = false;
  }
};

}  // namespace verbena::workload
