// SPDX-License-Identifier: MIT
// A peer process that writes whatever it likes into the conduits that it shares with us, while our
// queue pair posts and serves: nothing outside the granted region is touched, and every request
// that was posted completes once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/assert.h"
#include "base/test_input.h"
#include "local/datagram.h"
#include "local/test_hostile.h"
#include "local/test_pair.h"

namespace verbena::local {
namespace {

constexpr QpNum kVictim{0x4005};
constexpr QpNum kPeer{0x8007};
constexpr std::size_t kPage = 4096;
constexpr std::byte kAround{0x5a};
constexpr std::uint32_t kOutboundId = 2;

class RingRun {
 public:
  explicit RingRun(TestInput input)
      : input_(input),
        type_(static_cast<qp::QpType>(2 + input_.below(3))),
        victim_(type_, kVictim, 16) {
    std::ranges::fill(memory_, kAround);
    region_ = victim_.add(granted(), kPage,
                          memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead |
                              memory::kRemoteAtomic | memory::kFlushGlobal);
    secret_ = victim_.add(memory_ + 2 * kPage, kPage, memory::kLocalWrite);
    for (const HostileFile* file : {&inbound(), &outbound()})
      std::memset(file->begin(), 0, kConduitSize);
    Conduit in = Conduit::prepare(inbound().ours, 0, 1);
    static_cast<void>(Conduit::prepare(outbound().theirs, 0, kOutboundId));
    Conduit out = Conduit::accept(outbound().ours, 0, kOutboundId);
    VERBENA_ASSERT(static_cast<bool>(out));
    if (type_ == qp::QpType::kUd) {
      begin_datagrams(std::move(in), std::move(out));
    } else {
      victim_.ready(kPeer);
      victim_.carrier.offer(std::move(in), {&victim_.doorbell, 5});
      victim_.carrier.attach(std::move(out));
    }
  }

  void run() {
    for (int steps = 0; !input_.empty() && steps < 200; ++steps)
      step();
    turn();
    qp::QpAttributes error;
    error.state = qp::QpState::kError;
    VERBENA_ASSERT(victim_.pair.modify(error, qp::kState).has_value());
    turn();
    VERBENA_ASSERT(completed_ == posted_);
    const auto is_around = [](std::byte each) { return each == kAround; };
    VERBENA_ASSERT(std::all_of(memory_, memory_ + kPage, is_around));
    VERBENA_ASSERT(std::all_of(memory_ + 2 * kPage, memory_ + 4 * kPage, is_around));
  }

 private:
  static const HostileFile& inbound() {
    static const HostileFile file = HostileFile::make();
    return file;
  }
  static const HostileFile& outbound() {
    static const HostileFile file = HostileFile::make();
    return file;
  }
  std::byte* granted() { return memory_ + kPage; }

  void begin_datagrams(Conduit in, Conduit out) {
    qp::QpAttributes a;
    a.port = 1;
    a.qkey = 0;
    move(a, qp::QpState::kInit, qp::kPkeyIndex | qp::kPort | qp::kQkey);
    move(a, qp::QpState::kReadyToReceive, 0);
    move(a, qp::QpState::kReadyToSend, qp::kSendPsn);
    const PeerBell bell{&victim_.doorbell, 0};
    receiver_.emplace(std::move(in), bell);
    sender_.emplace(std::move(out), bell, room_wanted_);
  }
  void move(qp::QpAttributes& a, qp::QpState to, std::uint32_t mask) {
    a.state = to;
    VERBENA_ASSERT(victim_.pair.modify(a, mask | qp::kState).has_value());
  }

  void step() {
    switch (input_.below(8)) {
      case 0:
      case 1: return write_request();
      case 2: return write_response();
      case 3: return scribble(input_.one_in(2) ? inbound() : outbound(), input_);
      case 4: return write_counter(inbound(), outbound(), input_);
      case 5: return post_send();
      case 6: return post_receive();
      default: return turn();
    }
  }

  void write_request() {
    if (type_ == qp::QpType::kUd) return write_datagram();
    RequestRecord record{};
    const std::uint32_t length = input_.take();
    record.index = wild(input_, index_++);
    record.epoch = wild(input_, 0);
    record.total_length = wild(input_, length);
    record.piece_length = wild(input_, length);
    record.offset = wild(input_, 0);
    const std::uint16_t at = input_.take<std::uint16_t>();
    record.remote_address = reinterpret_cast<std::uint64_t>(granted()) + at % (kPage + 64);
    if (at == 0xFFFF) record.remote_address = input_.take<std::uint64_t>();
    record.remote_key = input_.one_in(8) ? secret_.value : wild(input_, region_.value);
    // Of SENDs, whatever else that may mean.
    if (input_.one_in(4))
      record.acknowledged = {wild(input_, input_.below(16)), wild(input_, kOutboundId)};
    record.atomic.compare_add = input_.take();
    record.atomic.swap = input_.take();
    requests_.publish(record, request_ring(inbound().begin()), input_);
  }
  void write_datagram() {
    DatagramRecord record{};
    record.source_qp = kPeer.value;
    record.destination_qp = kVictim.value;
    record.qkey = wild(input_, 0);
    record.length = wild(input_, input_.take());
    record.traffic_class = input_.take();
    requests_.publish(record, request_ring(inbound().begin()), input_);
  }
  void write_response() {
    ResponseRecord record{};
    take_response(record, input_);
    responses_.publish(record, response_ring(outbound().begin()), input_);
  }

  void post_send() {
    const auto opcode = static_cast<queues::SendOpcode>(
        input_.below(static_cast<std::uint8_t>(queues::SendOpcode::kBindWindow)));
    std::uint32_t length = input_.take<std::uint16_t>() % kPage;
    if (opcode == queues::SendOpcode::kCompareSwap || opcode == queues::SendOpcode::kFetchAdd)
      length = 8;
    if (type_ == qp::QpType::kUd) return send_datagram(length);
    const Sge sge{reinterpret_cast<std::uint64_t>(granted()), length, region_};
    qp::SendRequest request;
    request.opcode = opcode;
    request.remote_address = 0x1000;
    request.sges = {&sge, 1};
    if (victim_.pair.post_send(request)) ++posted_;
  }
  void send_datagram(std::uint32_t length) {
    static_cast<void>(sender_->send(length, now_, [](DatagramRecord&, std::span<std::byte> room) {
      std::ranges::fill(room, std::byte{1});
      return true;
    }));
  }
  void post_receive() {
    const Sge sge{reinterpret_cast<std::uint64_t>(granted()), input_.take() * 16u, region_};
    static_cast<void>(victim_.pair.post_receive(1, {&sge, 1}));
  }
  void turn() {
    now_ = now_ + Duration::microseconds(std::int64_t{1} << input_.below(24));
    if (receiver_) {
      receiver_->take(16, [this](const DatagramRecord& record, std::span<const std::byte> payload) {
        deliver_datagram(record, payload, victim_.pair.responder());
      });
    }
    victim_.turn(now_);
    for (const queues::Completion& each : victim_.poll())
      completed_ += each.kind < queues::CompletionKind::kReceive;
  }

  TestInput input_;
  qp::QpType type_;
  End victim_;
  MemoryKey region_;
  MemoryKey secret_;
  std::atomic<bool> room_wanted_{false};
  std::optional<DatagramReceiver> receiver_;
  std::optional<DatagramSender> sender_;
  HostileWriter requests_;
  HostileWriter responses_;
  std::uint32_t index_ = 0;
  std::size_t posted_ = 0;
  std::size_t completed_ = 0;
  Instant now_ = Instant::at(1'000'000'000);
  alignas(kPage) std::byte memory_[4 * kPage];  // the second page is granted
};

}  // namespace
}  // namespace verbena::local

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto run = std::make_unique<verbena::local::RingRun>(verbena::TestInput(data, size));
  run->run();
  return 0;
}
