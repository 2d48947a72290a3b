// SPDX-License-Identifier: MIT
#include "network.h"

#include <algorithm>
#include <utility>

namespace verbena::fabric {
namespace {

constexpr std::size_t kCongestionByte = 4;  // of the BTH

}  // namespace

Network::Network(const Plan& plan, SeededRandom& random)
    : plan_(plan), random_(random), lines_(plan.nodes), ports_(plan.nodes) {}

Duration Network::time_of(std::size_t bytes) const {
  return Duration::nanoseconds(static_cast<std::int64_t>(bytes * 8 * 1'000 / plan_.megabits));
}

void Network::send(Frame frame, Instant now) {
  Instant& line = lines_[frame.from];
  line = std::max(line, now) + time_of(frame.bytes.size() + kAround);
  const bool is_cut = cut_ && (*cut_ == frame.from || *cut_ == frame.to);
  if (is_cut || chance(plan_.loss)) return give_back(std::move(frame.bytes));
  if (frame.is_ecn_capable && chance(plan_.mark)) frame.is_marked = true;
  Instant at = line + Duration::nanoseconds(plan_.delay_ns / 2);
  if (chance(plan_.reorder)) at = at + Duration::microseconds(plan_.reorder_us);
  if (chance(plan_.duplicate))
    forward(frame, at + Duration::microseconds(static_cast<std::int64_t>(random_.below(3))));
  damage(frame);
  forward(std::move(frame), at);
}

// The port's queue is what it has promised to send.
void Network::forward(Frame frame, Instant at) {
  Instant& port = ports_[frame.to];
  const std::int64_t waiting_ns = port > at ? (port - at).count_nanoseconds() : 0;
  const auto waiting = static_cast<std::uint64_t>(waiting_ns) * plan_.megabits / 8'000;
  if (waiting + frame.bytes.size() > std::uint64_t{plan_.queue_kib} * 1024) {
    ++dropped_;
    return give_back(std::move(frame.bytes));
  }
  port = std::max(port, at) + time_of(frame.bytes.size() + kAround);
  const Instant arrives = port + Duration::nanoseconds(plan_.delay_ns / 2);
  on_way_.push({.at = arrives, .order = order_++, .frame = std::move(frame)});
}

void Network::damage(Frame& frame) {
  if (chance(plan_.corrupt)) {
    const std::uint64_t bit = random_.below(frame.bytes.size() * 8);
    frame.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    // FECN and BECN are for switches to set, and the ICRC leaves them alone.
    if (bit / 8 != kCongestionByte) frame.is_whole = false;
  }
  if (chance(plan_.truncate)) {
    frame.is_whole = false;
    frame.bytes.resize(random_.below(frame.bytes.size()));
  }
}

Frame Network::take() {
  Frame frame = std::move(const_cast<OnWay&>(on_way_.top()).frame);
  on_way_.pop();
  return frame;
}

std::vector<std::byte> Network::spare() {
  if (spare_.empty()) return {};
  std::vector<std::byte> bytes = std::move(spare_.back());
  spare_.pop_back();
  return bytes;
}

}  // namespace verbena::fabric
