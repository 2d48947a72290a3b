// SPDX-License-Identifier: MIT
// Many senders, each on a line of its own, and one receiver behind one port of a switch: its queue
// is finite, and marks packets as it fills (RFC 3168). For tests only.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "roce/test_world.h"

namespace verbena::roce {

struct SwitchOptions {
  std::uint64_t bits_per_second = 25'000'000'000;
  Duration delay = Duration::microseconds(10);
  std::size_t queue_bytes = 1024 * 1024;
  // Marks none below, all above, and in between `mark_most` of 100,000 at the upper end.
  std::size_t mark_from = 100 * 1024;
  std::size_t mark_all_from = 400 * 1024;
  std::uint32_t mark_most = 20'000;
};

// The port that all share.
class SwitchPort {
 public:
  SwitchPort(const SwitchOptions& options, std::uint64_t seed) : options_(options), random_(seed) {}

  struct Forwarded {
    Instant at;
    std::size_t sender;
    InTransit packet;
  };
  void enter(std::size_t sender, InTransit packet, Instant now) {
    const std::size_t bytes = packet.bytes.size() + kAround;
    const std::size_t waiting = queued_bytes(now);
    if (waiting + bytes > options_.queue_bytes) {
      ++dropped_;
      return;
    }
    if (packet.is_ecn_capable && marks(waiting)) packet.is_marked = true;
    busy_ = std::max(busy_, now) + time_of(bytes);
    queue_.push_back({busy_ + options_.delay, sender, std::move(packet)});
  }
  Instant next() const { return queue_.empty() ? Instant::never() : queue_.front().at; }
  Forwarded take() {
    Forwarded first = std::move(queue_.front());
    queue_.pop_front();
    return first;
  }
  std::uint64_t dropped() const { return dropped_; }

 private:
  Duration time_of(std::size_t bytes) const {
    return Duration::nanoseconds(
        static_cast<std::int64_t>(bytes * 8 * 1'000'000'000 / options_.bits_per_second));
  }
  std::size_t queued_bytes(Instant now) const {
    if (busy_ <= now) return 0;
    const auto nanoseconds = static_cast<std::uint64_t>((busy_ - now).count_nanoseconds());
    return nanoseconds * (options_.bits_per_second / 1'000'000) / 8'000;
  }
  bool marks(std::size_t waiting) {
    if (waiting < options_.mark_from) return false;
    if (waiting >= options_.mark_all_from) return true;
    const std::size_t range = options_.mark_all_from - options_.mark_from;
    return random_.below(100'000) < options_.mark_most * (waiting - options_.mark_from) / range;
  }

  SwitchOptions options_;
  SeededRandom random_;
  std::deque<Forwarded> queue_;
  Instant busy_;
  std::uint64_t dropped_ = 0;
};

class Incast {
 public:
  Incast(std::size_t senders, const EndOptions& end, const SwitchOptions& port, std::uint64_t seed)
      : port_(port, seed) {
    for (std::size_t i = 0; i < senders; ++i) {
      flows_.push_back(std::make_unique<Flow>(end, seed + i));
      flows_.back()->link.options.delay = Duration::microseconds(5);
      flows_.back()->link.options.backlog_max = Duration::microseconds(2);
    }
  }

  // The first `busy` send all the time, for so long.
  void run(std::size_t busy, Duration most) {
    const Instant end = now_ + most;
    for (std::size_t i = 0; i < busy; ++i) {
      flows_[i]->is_busy = true;
      flows_[i]->link.now = now_;
      flows_[i]->keep_busy();
      flows_[i]->turn(0);
      flows_[i]->turn(1);
    }
    while (step(end)) {
    }
    now_ = end;
  }
  // Bytes that each sender knows to have arrived, since the last time it was asked.
  std::vector<double> take_sent() {
    std::vector<double> all(flows_.size());
    std::ranges::transform(flows_, all.begin(),
                           [](auto& flow) { return std::exchange(flow->sent, 0); });
    return all;
  }
  double repeated() const {  // of the packets sent
    std::uint64_t repeated = 0;
    std::uint64_t packets = 0;
    for (const auto& flow : flows_) {
      const auto& engine = static_cast<const RcEngine&>(*flow->ends[0].engine);
      repeated += engine.requester().counters().repeated;
      packets += engine.requester().counters().packets;
    }
    return static_cast<double>(repeated) / static_cast<double>(std::max<std::uint64_t>(packets, 1));
  }
  bool has_failed() const {
    return std::ranges::any_of(flows_, [](const auto& flow) { return flow->has_failed; });
  }
  std::uint64_t dropped() const { return port_.dropped(); }

 private:
  static constexpr std::uint32_t kMessage = 64 * 1024;

  struct Flow {
    Flow(const EndOptions& options, std::uint64_t seed)
        : link(seed), ends{{TestEnd(0, link, options), TestEnd(1, link, options)}} {}
    void keep_busy() {
      for (const queues::Completion& done : ends[0].poll()) {
        sent += kMessage;
        --posted;
        has_failed |= done.status != queues::Status::kSuccess;
      }
      for (; is_busy && posted < 8 && !has_failed; ++posted) {
        ends[0].post({.opcode = queues::SendOpcode::kWrite,
                      .remote_address = ends[1].address(0),
                      .remote_key = ends[1].key},
                     0, kMessage);
      }
    }
    void turn(std::size_t end) {
      while (ends[end].turn()) {
      }
    }
    Link link;
    std::array<TestEnd, 2> ends;
    unsigned posted = 0;
    double sent = 0;
    bool is_busy = false;
    bool has_failed = false;
  };

  Instant next() const {
    Instant at = port_.next();
    for (const auto& flow : flows_) {
      at = std::min({at, flow->link.next(), flow->ends[0].wake_at(), flow->ends[1].wake_at()});
    }
    return at;
  }
  bool step(Instant end) {
    const Instant at = next();
    if (at > end || at == Instant::never()) return false;
    now_ = std::max(now_, at);
    for (std::size_t i = 0; i < flows_.size(); ++i)
      step_flow(i);
    while (port_.next() <= now_) {
      SwitchPort::Forwarded one = port_.take();
      Flow& flow = *flows_[one.sender];
      flow.ends[1].receive(one.packet);
      flow.link.give_back(std::move(one.packet.bytes));
      flow.turn(1);
    }
    return true;
  }
  void step_flow(std::size_t i) {
    Flow& flow = *flows_[i];
    flow.link.now = now_;
    bool is_answered = false;
    while (flow.link.next() <= now_) {
      InTransit packet = flow.link.take();
      if (packet.to == 1) {
        port_.enter(i, std::move(packet), now_);
        continue;
      }
      flow.ends[0].receive(packet);
      flow.link.give_back(std::move(packet.bytes));
      is_answered = true;
    }
    if (is_answered) flow.keep_busy();
    if (is_answered || flow.ends[0].wake_at() <= now_) flow.turn(0);
    if (flow.ends[1].wake_at() <= now_) flow.turn(1);
  }

  SwitchPort port_;
  std::vector<std::unique_ptr<Flow>> flows_;
  Instant now_;
};

// Jain's index of fairness: 1 when all have the same, 1/n when one has all.
inline double jain(const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const double squares = std::inner_product(shares.begin(), shares.end(), shares.begin(), 0.0);
  return squares == 0 ? 0 : sum * sum / (static_cast<double>(shares.size()) * squares);
}

}  // namespace verbena::roce
