// SPDX-License-Identifier: MIT
// A line between two NICs on a virtual clock: a rate, a delay, and all that can happen to a packet.
// Packets go through wire::encode and wire::parse. For tests only.
#pragma once

#include <array>
#include <functional>
#include <queue>
#include <vector>

#include "base/assert.h"
#include "base/random.h"
#include "roce/wire.h"
#include "wire/packet.h"

namespace verbena::roce {

// Chances are in packets of 100,000.
struct LinkOptions {
  std::uint64_t bits_per_second = 25'000'000'000;
  Duration delay = Duration::microseconds(10);
  std::uint32_t loss = 0;
  std::uint32_t duplicate = 0;
  std::uint32_t reorder = 0;
  Duration reorder_by = Duration::microseconds(5);
  std::uint32_t mark = 0;                             // ECN
  Duration backlog_max = Duration::microseconds(20);  // then there is no room
  bool is_cut = false;
};

struct InTransit {
  Instant at{};
  std::uint64_t order = 0;
  int to = 0;
  bool is_ecn_capable = false;
  bool is_marked = false;
  std::vector<std::byte> bytes;
};

inline constexpr std::size_t kAround = 20 + 8 + 38;  // IP, UDP, and what Ethernet puts around it

class Link {
 public:
  // What a test does to a packet, or sees of it; false: it is lost.
  using Tap = std::function<bool(int from, const wire::Packet&)>;

  explicit Link(std::uint64_t seed) : random_(seed) {}

  LinkOptions options;
  Tap tap;
  Instant now;
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;

  // No room: the line is busy for longer than may wait.
  Wire::Sent send(int from, const Outgoing& outgoing, PayloadSource payload) {
    if (has_no_room(from)) return Wire::Sent::kNoRoom;
    const std::size_t headers = wire::shape_of(outgoing.head.opcode).header_bytes;
    std::vector<std::byte> bytes = take_spare();
    bytes.assign(wire::datagram_bytes(outgoing.head.opcode, outgoing.payload_bytes), std::byte{0});
    if (!payload(std::span(bytes).subspan(headers, outgoing.payload_bytes))) {
      return Wire::Sent::kNoPayload;
    }
    wire::Head head = outgoing.head;
    head.pad = wire::pad_of(outgoing.payload_bytes);
    wire::encode(head, bytes);
    ++packets;
    const auto packet = wire::parse(bytes);
    VERBENA_ASSERT(packet.has_value());
    busy_[from] = std::max(busy_[from], now) + time_of(bytes.size() + kAround);
    const bool survives = !tap || tap(from, *packet);
    if (!survives || options.is_cut || chance(options.loss)) {
      ++lost;
      spare_.push_back(std::move(bytes));
      return Wire::Sent::kSent;
    }
    const bool is_marked = outgoing.is_ecn_capable && chance(options.mark);
    const InTransit frame{.to = 1 - from,
                          .is_ecn_capable = outgoing.is_ecn_capable,
                          .is_marked = is_marked,
                          .bytes = {}};
    if (chance(options.duplicate)) enter(frame, std::vector<std::byte>(bytes));
    enter(frame, std::move(bytes));
    return Wire::Sent::kSent;
  }
  bool has_no_room(int from) const { return busy_[from] > now + options.backlog_max; }
  // When an end that found no room may try again.
  Instant room_at(int from) const {
    return Instant::at(busy_[from].nanoseconds() - options.backlog_max.count_nanoseconds());
  }

  bool is_empty() const { return queue_.empty(); }
  Instant next() const { return queue_.empty() ? Instant::never() : queue_.top().at; }
  InTransit take() {
    InTransit packet = std::move(const_cast<InTransit&>(queue_.top()));
    queue_.pop();
    return packet;
  }
  void give_back(std::vector<std::byte>&& bytes) { spare_.push_back(std::move(bytes)); }
  SeededRandom& random() { return random_; }

 private:
  struct Later {
    bool operator()(const InTransit& a, const InTransit& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  bool chance(std::uint32_t of) { return of != 0 && random_.below(100'000) < of; }
  Duration time_of(std::size_t bytes) const {
    return Duration::nanoseconds(
        static_cast<std::int64_t>(bytes * 8 * 1'000'000'000 / options.bits_per_second));
  }
  void enter(InTransit packet, std::vector<std::byte> bytes) {
    packet.at = busy_[1 - packet.to] + options.delay;
    if (chance(options.reorder)) packet.at = packet.at + options.reorder_by;
    packet.order = order_++;
    packet.bytes = std::move(bytes);
    queue_.push(std::move(packet));
  }
  std::vector<std::byte> take_spare() {
    if (spare_.empty()) return {};
    std::vector<std::byte> bytes = std::move(spare_.back());
    spare_.pop_back();
    return bytes;
  }

  SeededRandom random_;
  std::priority_queue<InTransit, std::vector<InTransit>, Later> queue_;
  std::array<Instant, 2> busy_{};
  std::uint64_t order_ = 0;
  std::vector<std::vector<std::byte>> spare_;
};

}  // namespace verbena::roce
