// SPDX-License-Identifier: MIT
// Two queue pairs with engines at the ends of a Link, and their memory. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "memory/region_table.h"
#include "qp/queue_pair.h"
#include "roce/rc_engine.h"
#include "roce/send_at_once.h"
#include "roce/test_link.h"

namespace verbena::roce {

inline constexpr std::uint32_t kTestQkey = 0x1234;
// Of the link's time: more than messages take.
inline constexpr Duration kSoon = Duration::milliseconds(20);

struct EndOptions {
  qp::QpType type = qp::QpType::kRc;
  bool is_xrc = false;  // the first end asks, the other one has the shared receive queues
  std::uint32_t path_mtu = 1024;
  std::size_t memory = 256 * 1024;
  std::uint32_t depth = 64;
  std::uint32_t completions = 4096;
  queues::ReceiveQueue* shared_receives = nullptr;
  qp::TagMatcher* tags = nullptr;
  std::uint32_t first_psn = 0xFFFFF0;  // of both directions: wraps soon
  std::uint8_t timeout = 8;            // 1 ms
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;
  std::uint8_t reads_max = 4;
  std::uint32_t access =
      memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic | memory::kFlushGlobal;
  InFlight in_flight{};
  std::uint16_t pkey = wire::kDefaultPkey;
  std::uint32_t reorder_packets = 0;
  Duration reorder_patience{};
  bool selective = false;
  bool asks_for_agreement = false;
  bool issues_first = false;     // as NICs do: what is owed may go along
  bool posts_at_once = false;    // the same, what can be
  bool receives_at_once = true;  // and what came
  std::function<std::unique_ptr<Congestion>()> congestion = [] { return nullptr; };
  std::function<std::unique_ptr<Congestion>()> when_agreed = [] { return nullptr; };
};

// The shared receive queues of an XRC domain.
class TestQueues final : public qp::SharedQueues {
 public:
  Result<qp::SharedQueue, qp::Reason> find(std::uint32_t number) override {
    const auto found = queues.find(number);
    if (found == queues.end()) return refuse(qp::Reason::kNoSharedQueue);
    return found->second;
  }
  bool is_elsewhere(std::uint32_t number) const override { return elsewhere.contains(number); }
  std::map<std::uint32_t, qp::SharedQueue> queues;
  std::set<std::uint32_t> elsewhere;  // of other processes
};

class TestEnd final : public qp::QpEvents, public Wire, public Paths {
 public:
  TestEnd(int number, Link& link, const EndOptions& options)
      : options_(options),
        number_(number),
        link_(link),
        memory(options.memory),
        completions(options.completions, nullptr),
        receive_completions(options.completions, nullptr),
        pair({.type = options.type,
              .xrc = !options.is_xrc ? qp::Xrc::kNo
                     : number == 0   ? qp::Xrc::kInitiator
                                     : qp::Xrc::kTarget,
              .number = self(),
              .pd = PdId{1},
              .receive_pd = PdId{1},
              .signal_all = true,
              .send_depth = options.depth,
              .send_sge_max = 4,
              .inline_max = 64,
              .receive_depth = options.depth,
              .receive_sge_max = 4,
              .send_completions = &completions,
              .receive_completions = &receive_completions,
              .shared_receives = options.shared_receives,
              .tags = options.tags,
              .shared_queues = &shared_queues,
              .regions = &regions,
              .events = this}),
        congestion_(options.congestion()),
        when_agreed_(options.when_agreed()) {
    key = add_region(memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead |
                     memory::kRemoteAtomic | memory::kFlushGlobal);
    connect();
  }

  QpNum self() const { return {0x100u + static_cast<std::uint32_t>(number_)}; }
  QpNum peer() const { return {0x101u - static_cast<std::uint32_t>(number_)}; }
  // The upper bits of the opcodes of its service.
  std::uint8_t service() const {
    if (options_.is_xrc) return 0xA0;
    const bool is_ud = options_.type == qp::QpType::kUd;
    return options_.type == qp::QpType::kRc ? 0x00 : is_ud ? 0x60 : 0x20;
  }
  static Gid gid_of(int number) {
    return wire::gid_of(
        std::array<std::uint8_t, 4>{10, 0, 0, static_cast<std::uint8_t>(number + 1)});
  }

  MemoryKey add_region(std::uint32_t access, PdId pd = {1}) {
    return *regions.add({.pd = pd,
                         .iova = address(0),
                         .access = access,
                         .extents = {{memory.data(), memory.size()}}});
  }
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.data() + offset);
  }
  Sge sge(std::size_t offset, std::uint32_t length) const { return {address(offset), length, key}; }

  // -- what a program does
  void post(const qp::SendRequest& request, std::size_t offset, std::uint32_t length) {
    const Sge one = sge(offset, length);
    if (options_.posts_at_once && post_at_once(request, one)) return;
    qp::SendRequest full = request;
    full.sges = {&one, 1};
    ASSERT_TRUE(pair.post_send(full).has_value());
  }
  // False: it takes the general way.
  bool post_at_once(const qp::SendRequest& request, const Sge& one) {
    const qp::SmallRequest small{
        .wr_id = request.wr_id, .opcode = request.opcode, .flags = request.flags, .sge = one};
    if (one.length == 0 || !may_be_at_once(pair, small)) return false;
    const std::byte* const payload = memory.data() + (one.address - address(0));
    const bool is_sent = send_at_once(*engine, pair, small, payload, link_.now);
    sent_at_once += is_sent;
    return is_sent;
  }
  void post_receive(std::uint64_t id, std::size_t offset, std::uint32_t length) {
    const Sge one = sge(offset, length);
    ASSERT_TRUE(pair.post_receive(id, {&one, 1}).has_value());
  }
  std::vector<queues::Completion> poll() { return take(completions); }
  std::vector<queues::Completion> poll_receives() { return take(receive_completions); }

  // -- what a NIC does
  void receive(InTransit& packet) {
    const auto parsed = wire::parse(packet.bytes);
    Arrival arrival{.datagram_bytes = packet.bytes.size()};
    arrival.ip.flow.source = gid_of(1 - number_);
    arrival.ip.flow.destination = gid_of(number_);
    arrival.ip.traffic_class = packet.is_marked ? 3 : 2;
    if (options_.receives_at_once && !packet.is_marked &&
        engine->receive_at_once(packet.bytes, arrival.ip.flow.source, pair.window(),
                                pair.responder(), link_.now)) {
      ++received_at_once;
      return;
    }
    if (parsed) return give(*parsed, arrival);
    if (const auto bth = wire::parse_bth(packet.bytes)) {
      engine->receive_broken(*bth, parsed.error(), arrival, pair.responder());
    }
  }
  void give(const wire::Packet& packet, const Arrival& arrival) {
    engine->receive(packet, arrival, pair.window(), pair.responder(), link_.now);
  }
  Arrival from_peer() const {
    Arrival arrival;
    arrival.ip.flow.source = gid_of(1 - number_);
    arrival.ip.flow.destination = gid_of(number_);
    return arrival;
  }
  // True: again, at once.
  bool turn() {
    had_no_room = false;
    qp::Budget answers;
    qp::Budget requests;
    qp::Budget sends;
    engine->collect(pair.window(), answers, link_.now);
    if (options_.issues_first) engine->issue(pair.window(), sends, link_.now);
    const bool more = engine->serve(pair.responder(), requests, link_.now);
    if (!options_.issues_first) engine->issue(pair.window(), sends, link_.now);
    return !had_no_room && (more || sends.spent());
  }
  Instant wake_at() const {
    const Instant deadline = engine->next_deadline().value_or(Instant::never());
    return had_no_room ? std::min(deadline, link_.room_at(number_)) : deadline;
  }

  Sent transmit(const Outgoing& packet, const Path&, PayloadSource payload) override {
    const Sent sent = link_.send(number_, packet, payload);
    had_no_room |= sent == Sent::kNoRoom;
    return sent;
  }
  Sent transmit_alone(const OutgoingSend& packet, const Path& path, PayloadSource payload,
                      bool& is_apart) override {
    // As a channel of the NIC's, whose packets are short.
    is_apart = packet.may_overtake && packet.payload_bytes < 100;
    sent_apart += is_apart;
    return transmit(packet.general(), path, payload);
  }
  std::uint32_t transmit_run(const Outgoing& packet, std::uint32_t most, const Path& path,
                             RunSource payload) override {
    const std::uint32_t count = Wire::transmit_run(packet, most, path, payload);
    sent_in_runs += count;
    return count;
  }
  const Path* path_of(const qp::Operation&) override { return &path_; }
  void qp_event(QpNum, qp::QpEvent event) override { events.push_back(event); }
  RcEngine& rc() { return static_cast<RcEngine&>(*engine); }

  // A new life: RESET, and a new engine.
  void connect() {
    move(qp::QpState::kReset);
    move(qp::QpState::kInit);
    move(qp::QpState::kReadyToReceive);
    path_ = {.source = gid_of(number_), .destination = gid_of(1 - number_)};
    engine = make_engine({.type = options_.type,
                          .is_xrc = options_.is_xrc,
                          .self = self(),
                          .peer = peer(),
                          .pkey = options_.pkey,
                          .path_mtu = options_.path_mtu,
                          .path = path_,
                          .in_flight = options_.in_flight,
                          .reads_in_max = options_.reads_max,
                          .receive_psn = options_.first_psn,
                          .reorder_packets = options_.reorder_packets,
                          .reorder_patience = options_.reorder_patience,
                          .asks_for_agreement = options_.asks_for_agreement,
                          .selective = options_.selective},
                         *this, this, congestion_.get(), when_agreed_.get());
    move(qp::QpState::kReadyToSend);
    engine->start(pair.attributes());
  }

 private:
  static std::vector<queues::Completion> take(queues::CompletionQueue& queue) {
    std::vector<queues::Completion> all;
    std::array<queues::Completion, 64> some;
    while (const std::size_t count = queue.poll(some))
      all.insert(all.end(), some.begin(), some.begin() + count);
    return all;
  }
  void move(qp::QpState to) {
    qp::QpAttributes a;
    a.state = to;
    a.port = 1;
    a.path_mtu = 5;
    a.destination = peer();
    a.access = options_.access;
    a.path.has_grh = true;
    a.path.port = 1;
    a.qkey = kTestQkey;
    a.reads_in_max = a.reads_out_max = options_.reads_max;
    a.timeout = options_.timeout;
    a.retry_count = options_.retry_count;
    a.rnr_retry = options_.rnr_retry;
    a.rnr_timer = 1;
    a.send_psn = a.receive_psn = options_.first_psn;
    ASSERT_TRUE(pair.modify(a, mask_for(to)).has_value());
  }
  std::uint32_t mask_for(qp::QpState to) const {
    const bool is_rc = options_.type == qp::QpType::kRc;
    const bool is_ud = options_.type == qp::QpType::kUd;
    switch (to) {
      case qp::QpState::kInit:
        return qp::kState | qp::kPkeyIndex | qp::kPort | (is_ud ? qp::kQkey : qp::kAccessFlags);
      case qp::QpState::kReadyToReceive:
        if (is_ud) return qp::kState;
        return qp::kState | qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp |
               qp::kReceivePsn | (is_rc ? qp::kReadsInMax | qp::kRnrTimer : 0);
      case qp::QpState::kReadyToSend:
        return qp::kState | qp::kSendPsn |
               (is_rc ? qp::kTimeout | qp::kRetryCount | qp::kRnrRetry | qp::kReadsOutMax : 0);
      case qp::QpState::kReset:
      case qp::QpState::kDrained:
      case qp::QpState::kSendError:
      case qp::QpState::kError: break;
    }
    return qp::kState;
  }

  EndOptions options_;
  int number_;
  Link& link_;

 public:
  std::vector<std::byte> memory;
  SeededRandom random{1};
  memory::SectionList sections;
  memory::RegionTable regions{64, random, sections};
  queues::CompletionQueue completions;
  queues::CompletionQueue receive_completions;
  TestQueues shared_queues;
  qp::QueuePair pair;
  std::unique_ptr<Engine> engine;
  std::vector<qp::QpEvent> events;
  MemoryKey key;
  bool had_no_room = false;
  unsigned sent_at_once = 0;
  unsigned sent_apart = 0;
  unsigned sent_in_runs = 0;
  unsigned received_at_once = 0;

 private:
  std::unique_ptr<Congestion> congestion_;
  std::unique_ptr<Congestion> when_agreed_;
  Path path_;
};

// The memory of two ends.
inline bool equal(const TestEnd& a, std::size_t at, const TestEnd& b, std::size_t there,
                  std::size_t length) {
  return std::memcmp(a.memory.data() + at, b.memory.data() + there, length) == 0;
}

class TestWorld {
 public:
  explicit TestWorld(const EndOptions& options = {}, std::uint64_t seed = 1)
      : TestWorld(options, options, seed) {}
  TestWorld(const EndOptions& first, const EndOptions& second, std::uint64_t seed)
      : link(seed), ends{{TestEnd(0, link, first), TestEnd(1, link, second)}} {}

  TestEnd& near() { return ends[0]; }
  TestEnd& far() { return ends[1]; }
  Instant now() const { return link.now; }

  // Everything that happens until then, or until nothing happens any more.
  void run(Duration most) {
    const Instant end = link.now + most;
    turn_all();
    while (step(end)) {
    }
    if (link.now < end && !link.is_empty()) link.now = end;
  }
  // What is on its way arrives, and nobody does anything about it yet.
  void deliver_all() {
    while (!link.is_empty()) {
      link.now = std::max(link.now, link.next());
      InTransit packet = link.take();
      ends[static_cast<std::size_t>(packet.to)].receive(packet);
    }
  }
  template <class Done>
  bool run_until(Done done, Duration most) {
    const Instant end = link.now + most;
    turn_all();
    while (!done()) {
      if (!step(end)) return done();
    }
    return true;
  }

  Link link;
  std::array<TestEnd, 2> ends;

 private:
  bool step(Instant end) {
    const Instant at = std::min({link.next(), ends[0].wake_at(), ends[1].wake_at()});
    if (at > end || at == Instant::never()) return false;
    // Who wants a turn at once, again and again, would keep a core busy and get nowhere.
    stood_still_ = at > link.now ? 0 : stood_still_ + 1;
    VERBENA_ASSERT(stood_still_ < 10'000);
    link.now = std::max(link.now, at);
    while (link.next() <= link.now) {
      InTransit packet = link.take();
      ends[static_cast<std::size_t>(packet.to)].receive(packet);
      link.give_back(std::move(packet.bytes));
    }
    turn_all();
    return true;
  }
  void turn_all() {
    for (TestEnd& end : ends)
      while (end.turn()) {
      }
  }

  unsigned stood_still_ = 0;  // steps
};

}  // namespace verbena::roce
