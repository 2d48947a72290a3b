// SPDX-License-Identifier: MIT
// Watches the wire, and knows the specification but none of the code: each packet as it leaves, and
// as a NIC takes it (IBTA vol 1, 9.7 and 9.8; annex A17). Independent of the engines and of what
// the programs want.
//
// Where both ends agreed on selective repeat (docs/decisions/0012) a NAK that names a gap means
// something else; all other rules hold.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/test_clock.h"
#include "wire/packet.h"

namespace verbena::fabric {

// What a requester does as the wire shows it, and what comes to it.
enum class Asking : std::uint8_t { kIdle, kWaiting, kRepeating, kHeldBack, kRefused, kCount };
enum class Answered : std::uint8_t {
  kAll,
  kSome,
  kNothingNew,
  kReadNext,
  kReadAhead,
  kReadOld,
  kAtomic,
  kNotReady,
  kSequence,
  kRefusal,
  kNotification,
  kCount
};
// The same of a responder.
enum class Serving : std::uint8_t { kIdle, kInSend, kInWrite, kGap, kNotReady, kRefused, kCount };
enum class Asked : std::uint8_t {
  kSendStart,
  kSendMore,
  kWriteStart,
  kWriteMore,
  kRead,
  kAtomic,
  kFlush,
  kAgainSend,
  kAgainWrite,
  kAgainRead,
  kAgainAtomic,
  kAgainFlush,
  kAhead,
  kCount
};

// How often each pair of state and event was seen.
template <class State, class Event>
using Coverage = std::array<std::array<std::uint64_t, static_cast<std::size_t>(Event::kCount)>,
                            static_cast<std::size_t>(State::kCount)>;
struct WireCoverage {
  Coverage<Asking, Answered> requester{};
  Coverage<Serving, Asked> responder{};
  void add(const WireCoverage& other);
};

// What both ends told each other before.
struct Connection {
  QpNum requester{};
  QpNum responder{};
  wire::Service service = wire::Service::kRc;
  std::uint32_t first_psn = 0;
  std::uint32_t path_mtu = 256;
  std::uint16_t pkey = wire::kDefaultPkey;
  std::uint32_t reads_max = 1;
  bool keeps_order = true;  // the responder has no buffer for what comes ahead
};

// The requests of one direction, and their answers.
class Direction {
 public:
  Direction(const Connection& connection, sim::Failures& failures, WireCoverage& coverage)
      : connection_(connection), failures_(failures), coverage_(coverage) {}
  bool has_room_for(std::size_t payload) const { return payload <= connection_.path_mtu; }

  void request_sent(const wire::Packet& packet);
  void request_delivered(const wire::Packet& packet, bool is_marked);
  void marked(bool is_marked) { marked_ += is_marked; }
  void response_sent(const wire::Packet& packet);
  // `is_understood`: false where the requester may not know yet what such an answer means.
  void response_delivered(const wire::Packet& packet, bool is_understood = true);
  bool is_next(wire::Psn psn) const { return place_of(psn) == expected_; }
  bool is_in_line(wire::Psn psn) const {
    const auto at = place_of(psn);
    return at && *at < line_.size();
  }
  // Nothing is left to do: everything was executed, and the requester knows it.
  void check_at_rest() const;

 private:
  // A PSN of a request.
  struct Place {
    wire::Opcode opcode{};
    std::uint64_t digest = 0;  // of what must not change when it is sent again
    std::uint32_t offset = 0;  // of an answer's packet in its READ
    std::uint32_t count = 1;   // PSNs of its READ
    std::uint64_t address = 0;
    std::uint32_t length = 0;
    std::uint32_t messages = 0;  // that end up to here
    bool is_answered = false;    // READ, atomic, FLUSH, ATOMIC WRITE
    std::optional<std::uint64_t> original{};
  };

  void check_new(const wire::Packet& packet);
  void check_repeated(const wire::Packet& packet, std::size_t at);
  void check_message(const wire::Packet& packet);
  void append(const wire::Packet& packet);
  void check_held_back(const wire::Packet& packet, std::size_t at);
  void check_acknowledge(const wire::Packet& packet, std::size_t at);
  void check_answer(const wire::Packet& packet, std::size_t at);
  void check_msn(const wire::Packet& packet, std::size_t at);
  void take_acknowledge(const wire::Packet& packet, std::size_t at);
  void take_answer(const wire::Packet& packet, std::size_t at);
  void acknowledge_before(std::size_t at);

  Serving serving() const;
  Asked asked(const wire::Packet& packet, std::size_t at) const;
  Asking asking() const;
  void note(Answered answered);

  // Where a PSN stands in the line; nothing when it is not near.
  std::optional<std::size_t> place_of(wire::Psn psn) const;
  bool is_reliable() const {
    return connection_.service == wire::Service::kRc || connection_.service == wire::Service::kXrc;
  }
  bool is_answer_expected(const Place& place) const;
  bool has_unanswered_before(std::size_t at) const;
  unsigned reads_out() const;
  void fail(const char* what, const wire::Packet& packet) const;

  Connection connection_;
  sim::Failures& failures_;
  WireCoverage& coverage_;

  std::deque<Place> line_;  // every PSN since the beginning: runs are short
  // Requester.
  std::optional<wire::OpcodeShape> message_;  // in progress
  std::uint32_t message_left_ = 0;            // bytes, of a WRITE
  std::size_t acknowledged_ = 0;              // PSNs before this
  std::size_t known_upto_ = 0;                // and the requester knows it, of those before this
  bool is_understood_ = true;                 // the answer that is looked at
  bool is_repeating_ = false;
  bool is_refused_ = false;
  std::optional<std::size_t> held_back_at_;
  Instant held_back_until_;
  // Responder.
  std::size_t expected_ = 0;
  std::size_t farthest_ = 0;  // PSNs delivered
  std::vector<bool> delivered_;
  bool has_gap_ = false;
  bool was_not_ready_ = false;
  bool has_refused_ = false;
  std::uint64_t marked_ = 0;
  std::uint64_t notifications_ = 0;
};

class Watcher {
 public:
  explicit Watcher(sim::Failures& failures) : failures_(failures) {}

  // Both directions of a connection are two calls.
  void watch(const Connection& connection);
  void sent(const wire::Packet& packet);
  void delivered(const wire::Packet& packet, bool is_marked);
  void check_at_rest(QpNum responder) const { ends_.at(responder).requests->check_at_rest(); }
  const WireCoverage& coverage() const { return coverage_; }

  bool is_tracing = false;  // prints every packet

 private:
  void trace(const char* what, const wire::Packet& packet) const;

  // By the queue pair that packets are for: requests of one direction, answers of the other.
  struct Ends {
    Direction* requests = nullptr;
    Direction* responses = nullptr;
    bool has_agreed = false;  // surely: it took a mark where it was its turn
  };

  sim::Failures& failures_;
  WireCoverage coverage_;
  std::vector<std::unique_ptr<Direction>> directions_;
  std::map<QpNum, Ends> ends_;
};

}  // namespace verbena::fabric
