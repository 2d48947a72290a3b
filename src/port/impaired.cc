// SPDX-License-Identifier: MIT
#include "port/impaired.h"

#include <algorithm>
#include <mutex>

#include "base/assert.h"

namespace verbena::port {
namespace {

constexpr Duration kTryAgain = Duration::microseconds(10);

Duration line_time(std::size_t bytes, std::uint64_t bytes_per_second) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  return Duration::nanoseconds(static_cast<std::int64_t>(bytes * kSecond / bytes_per_second));
}

}  // namespace

bool Impairment::is_none() const {
  return drop == 0 && duplicate == 0 && corrupt == 0 && reorder == 0 && delay == Duration() &&
         jitter == Duration() && bytes_per_second == 0 && full == 0;
}

// Three numbers are drawn for every packet whatever becomes of it, so that one chance does not
// change what another one hits.
void Impairer::push(std::span<const std::byte> bytes, const Packet& packet, Instant now,
                    Counters& counters) {
  const bool dropped = chance(what_.drop);
  const bool doubled = chance(what_.duplicate);
  const bool damaged = chance(what_.corrupt);
  if (dropped) return counters.add(Count::kLost);
  for (int copies = doubled ? 2 : 1; copies > 0; --copies) {
    if (queued_bytes_ + bytes.size() > what_.queue_bytes_max) {
      counters.add(Count::kQueueDrops);
      continue;
    }
    Packet& stored = store(bytes, packet, due_time(bytes.size(), now, counters));
    if (!damaged || bytes.empty()) continue;
    const std::uint64_t bit = random_.below(bytes.size() * 8);
    stored.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    counters.add(Count::kCorrupted);
  }
  if (doubled) counters.add(Count::kDuplicated);
}

Instant Impairer::due_time(std::size_t size, Instant now, Counters& counters) {
  Instant due = now;
  if (what_.bytes_per_second > 0) {
    line_free_ = std::max(line_free_, now) + line_time(size, what_.bytes_per_second);
    due = line_free_;
  }
  due = due + what_.delay;
  if (what_.jitter > Duration()) {
    const auto range = static_cast<std::uint64_t>(what_.jitter.count_nanoseconds());
    due = due + Duration::nanoseconds(static_cast<std::int64_t>(random_.below(range + 1)));
  }
  if (due > now) counters.add(Count::kDelayed);
  if (chance(what_.reorder)) {
    counters.add(Count::kReordered);
    return due + what_.reorder_by;
  }
  last_due_ = std::max(last_due_, due);
  return last_due_;
}

auto Impairer::store(std::span<const std::byte> bytes, const Packet& packet, Instant due)
    -> Packet& {
  if (free_.empty()) {
    free_.push_back(packets_.size());
    packets_.push_back(std::make_unique<Packet>());
  }
  const std::size_t index = free_.back();
  free_.pop_back();
  Packet& stored = *packets_[index];
  stored.route = packet.route;
  stored.head = packet.head;
  stored.bytes.assign(bytes.begin(), bytes.end());
  stored.head.payload = stored.bytes;
  queued_bytes_ += bytes.size();
  waiting_.push({due, order_++, index});
  return stored;
}

auto Impairer::front(Instant now) -> const Packet* {
  if (now < not_before_ || waiting_.empty() || waiting_.top().due > now) return nullptr;
  return packets_[waiting_.top().packet].get();
}

void Impairer::pop() {
  VERBENA_ASSERT(!waiting_.empty());
  const std::size_t index = waiting_.top().packet;
  waiting_.pop();
  queued_bytes_ -= packets_[index]->bytes.size();
  free_.push_back(index);
}

void Impairer::postpone(Instant until) { not_before_ = until; }

Instant Impairer::next_deadline() const {
  return waiting_.empty() ? Instant::never() : std::max(waiting_.top().due, not_before_);
}

ImpairedPort::ImpairedPort(Port& inner, const ImpairedOptions& options)
    : inner_(inner),
      impairs_out_(!options.out.is_none()),
      impairs_in_(!options.in.is_none()),
      out_(options.out, options.seed),
      in_(options.in, options.seed + 1) {}

Limits ImpairedPort::limits() const {
  Limits limits = inner_.limits();
  if (impairs_out_) {
    limits.segments_max = 1;
    limits.sends_uncopied = false;
  }
  return limits;
}

std::size_t ImpairedPort::send(std::span<const Train> trains, Instant now) {
  if (!impairs_out_) return inner_.send(trains, now);
  const std::lock_guard lock(out_lock_);
  std::size_t taken = 0;
  for (; taken < trains.size() && !out_.is_full(); ++taken) {
    const Train& train = trains[taken];
    for (std::size_t i = 0; i < train.packets(); ++i)
      out_.push(train.packet(i), {.route = train.route}, now, counters_);
  }
  release_out(now);
  return taken;
}

// What is due goes out. What the inner port has no room for waits at the head of the line.
void ImpairedPort::release_out(Instant now) {
  while (const Impairer::Packet* const packet = out_.front(now)) {
    const Train alone{packet->route, packet->bytes,
                      static_cast<std::uint32_t>(packet->bytes.size())};
    if (inner_.send({&alone, 1}, now) == 0) {
      out_.postpone(now + kTryAgain);
      break;
    }
    out_.pop();
  }
  is_underway_.store(out_.next_deadline() != Instant::never(), std::memory_order_relaxed);
}

std::size_t ImpairedPort::receive(std::span<Received> into, Instant now) {
  if (impairs_out_) {
    const std::lock_guard lock(out_lock_);
    release_out(now);
  }
  if (!impairs_in_) return inner_.receive(into, now);
  const std::lock_guard lock(in_lock_);
  const std::size_t came = inner_.receive(into, now);
  for (const Received& packet : into.first(came))
    in_.push(packet.payload, {.head = packet}, now, counters_);
  std::size_t given = 0;
  given_.resize(std::max(given_.size(), into.size()));
  while (given < into.size()) {
    const Impairer::Packet* const packet = in_.front(now);
    if (!packet) break;
    given_[given].assign(packet->bytes.begin(), packet->bytes.end());
    into[given] = packet->head;
    into[given].payload = given_[given];
    in_.pop();
    ++given;
  }
  return given;
}

Instant ImpairedPort::next_deadline() const {
  Instant next = inner_.next_deadline();
  if (impairs_out_) {
    const std::lock_guard lock(out_lock_);
    next = std::min(next, out_.next_deadline());
  }
  if (impairs_in_) {
    const std::lock_guard lock(in_lock_);
    next = std::min(next, in_.next_deadline());
  }
  return next;
}

}  // namespace verbena::port
