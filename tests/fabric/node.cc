// SPDX-License-Identifier: MIT
#include "node.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "manager.h"
#include "pair.h"
#include "wire/icrc.h"
#include "wire/packet.h"
#include "world.h"

namespace verbena::fabric {
namespace {

constexpr std::uint32_t kGap = 16;
constexpr std::uint32_t kForeignDomains = 1000;
constexpr std::uint32_t kAllAccess = memory::kLocalWrite | memory::kRemoteWrite |
                                     memory::kRemoteRead | memory::kRemoteAtomic |
                                     memory::kFlushGlobal;

std::uint32_t room_for_completions(const Plan& plan, unsigned number) {
  return number + 1 == plan.nodes ? plan.completions : Plan{}.completions;
}

}  // namespace

Node::Node(World& world, unsigned number)
    : pd{number + 1},
      regions(8, world.random, sections),
      sends(room_for_completions(world.plan, number), nullptr),
      receives(room_for_completions(world.plan, number), nullptr),
      world_(world),
      number_(number),
      base_((std::uint64_t{number} + 1) << 32),
      memory_(kNodeMemory) {
  for (std::size_t i = 0; i < kNodeMemory; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = world.random.next();
    std::memcpy(&memory_[i], &word, sizeof word);
  }
  std::ranges::fill(bytes(kSharedWord, 8), std::byte{0});
  before_ = expected_ = memory_;
  for (MemoryKey* which : {&key, &revocable}) {
    const auto added = regions.add({.pd = pd,
                                    .iova = base_,
                                    .access = kAllAccess,
                                    .extents = {{memory_.data(), memory_.size()}}});
    VERBENA_ASSERT(added.has_value());
    *which = *added;
  }
  if (world.plan.managed) manager = std::make_unique<Manager>(world, *this);
}

Node::~Node() = default;

Gid Node::gid_of(unsigned number, bool is_ipv6) {
  const auto low = static_cast<std::uint8_t>(number + 1);
  if (!is_ipv6) return wire::gid_of(std::array<std::uint8_t, 4>{10, 0, 0, low});
  return wire::gid_of(
      std::array<std::uint8_t, 16>{0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low});
}
std::optional<unsigned> Node::number_of(const Gid& gid) {
  if (gid.bytes[15] == 0) return std::nullopt;
  return gid.bytes[15] - 1u;
}

std::optional<std::uint32_t> Node::carve(std::uint32_t length, Carve from) {
  // Atomics have to be aligned.
  const std::uint32_t place = (next_place_ + kGap + 7) & ~7u;
  const std::uint32_t end = kNodeMemory - (from == Carve::kReserve ? 0 : kReserveBytes);
  if (place + length + kGap > end) return std::nullopt;
  next_place_ = place + length;
  return place;
}

void Node::settle(std::uint32_t place, std::size_t length) {
  std::ranges::copy(bytes(place, length), expected_.begin() + place);
}

void Node::compare_memory() {
  if (is_dead_) return;
  const auto differs = std::ranges::mismatch(memory_, expected_);
  if (differs.in1 == memory_.end()) return;
  world_.failures.add("a byte of node " + std::to_string(number_) + " was written at " +
                      std::to_string(differs.in1 - memory_.begin()));
}

void Node::revoke() {
  if (is_revoked()) return;
  world_.failures.check(regions.remove(revocable), "a region could not be removed");
  at_revocation_ = memory_;
}

bool Node::is_paused() const { return world_.clock.now() < paused_until_; }

// What came meanwhile waits in the buffer of the socket.
void Node::pause_until(Instant when) {
  if (is_dead_) return;
  paused_until_ = std::max(paused_until_, when);
  world_.clock.at(paused_until_, [this] {
    if (is_paused() || is_dead_) return;
    std::deque<Frame> frames;
    frames.swap(buffered_);
    for (Frame& frame : frames)
      take(frame);
    for (const auto& [number, pair] : pairs_)
      pair->drive();
    if (manager) manager->pump();
  });
}

void Node::die() {
  is_dead_ = true;
  buffered_.clear();
  for (const auto& [number, pair] : pairs_)
    pair->lost();
}

void Node::arrived(Frame frame) {
  if (is_dead_) return;
  if (!is_paused()) return take(frame);
  if (buffered_.size() < kBufferedMax) buffered_.push_back(std::move(frame));
}

void Node::take(Frame& frame) {
  const wire::Flow flow{.source = gid_of(frame.from, world_.plan.ipv6),
                        .destination = gid_of(number_, world_.plan.ipv6)};
  if (!receive_run(frame, flow)) receive(frame, flow);
  world_.network.give_back(std::move(frame.bytes));
}

// Half of what a NIC would take as a part of a train, here of one packet.
bool Node::receive_run(const Frame& frame, const wire::Flow& flow) {
  if (frame.is_marked || !world_.random.one_in(2)) return false;
  // What damage made look like another identification (wire/icrc.h) is no packet of ours here.
  const auto verified = wire::FlowIcrc(flow).verify(frame.bytes, 0);
  if (verified && !verified->is_guess) return false;
  const auto packet = wire::parse(frame.bytes);
  Pair* const pair = packet ? find(packet->dest_qp) : nullptr;
  if (!pair) return false;
  wire::FlowIcrc icrc(flow);
  wire::Unverified unverified(icrc, frame.bytes, frame.bytes.size(), 0);
  if (!pair->receive_run(unverified, flow.source)) return false;
  if (frame.is_whole) world_.watcher.delivered(*packet, false);
  return true;
}

// As a NIC does: the ICRC first, then what the packet says, then whose it is.
void Node::receive(const Frame& frame, const wire::Flow& flow) {
  const auto verified = wire::FlowIcrc(flow).verify(frame.bytes, 0);
  const bool is_right = verified && verified->is_guess;
  world_.failures.check(is_right == frame.is_whole, "an ICRC judged otherwise");
  if (is_right) {
    roce::Arrival arrival{.datagram_bytes = frame.bytes.size()};
    arrival.ip.flow = flow;
    arrival.ip.traffic_class = frame.is_marked ? 3 : frame.is_ecn_capable ? 2 : 0;
    const auto packet = wire::parse(frame.bytes);
    world_.failures.check(packet.has_value(), "a packet of ours cannot be read");
    if (packet && manager && packet->dest_qp == kManagementQp) {
      manager->receive(*packet, frame.from);
    } else if (Pair* const pair = packet ? find(packet->dest_qp) : nullptr) {
      world_.watcher.delivered(*packet, frame.is_marked);
      pair->receive(frame.bytes, *packet, arrival);
    }
  }
}

void Node::poll() {
  if (is_dead_ || is_paused()) return;
  std::array<queues::Completion, 16> some;
  for (queues::CompletionQueue* const queue : {&sends, &receives}) {
    while (const std::size_t count = queue->poll(some)) {
      for (const queues::Completion& completion : std::span(some).first(count)) {
        world_.note(completion);
        if (Pair* const pair = find(completion.qp))
          pair->completed(completion);
        else
          world_.failures.add("a completion of no queue pair");
      }
    }
  }
}

void Node::poll_sometimes() {
  if (sends.capacity() == Plan{}.completions || world_.random.one_in(4)) poll();
}

Pair* Node::find(QpNum number) const {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second;
}
Result<qp::SharedQueue, qp::Reason> Node::find(std::uint32_t shared_queue) {
  const std::uint32_t index = shared_queue - kFirstQueue;
  if (index < kQueues) return qp::SharedQueue{&shared[index].queue, &receives, pd};
  if (shared_queue != kForeignQueue) return refuse(qp::Reason::kNoSharedQueue);
  return qp::SharedQueue{&foreign_, &receives, PdId{pd.value + kForeignDomains}};
}
void Node::add(Pair& pair) { pairs_.emplace(pair.number(), &pair); }

}  // namespace verbena::fabric
