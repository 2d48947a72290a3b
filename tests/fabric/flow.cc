// SPDX-License-Identifier: MIT
#include "flow.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "world.h"

namespace verbena::fabric {

using queues::Completion;
using queues::SendOpcode;
using queues::Status;

namespace {

constexpr std::array kReliableOpcodes{
    SendOpcode::kSend,       SendOpcode::kSendWithImmediate,  SendOpcode::kWrite,
    SendOpcode::kWrite,      SendOpcode::kWriteWithImmediate, SendOpcode::kRead,
    SendOpcode::kFetchAdd,   SendOpcode::kCompareSwap,        SendOpcode::kFlush,
    SendOpcode::kAtomicWrite};
constexpr std::size_t kUnreliableOpcodes = 5;  // of these
constexpr std::uint32_t kPostedMax = 40;
constexpr std::uint32_t kReceivesMax = 24;

bool is_atomic(SendOpcode opcode) {
  return opcode == SendOpcode::kFetchAdd || opcode == SendOpcode::kCompareSwap;
}
bool is_write(SendOpcode opcode) {
  return opcode == SendOpcode::kWrite || opcode == SendOpcode::kWriteWithImmediate ||
         opcode == SendOpcode::kAtomicWrite;
}
// Eight bytes, aligned.
bool is_word(SendOpcode opcode) { return is_atomic(opcode) || opcode == SendOpcode::kAtomicWrite; }
bool takes_receive(SendOpcode opcode) {
  return opcode == SendOpcode::kSend || opcode == SendOpcode::kSendWithImmediate ||
         opcode == SendOpcode::kWriteWithImmediate;
}
bool comes_back(SendOpcode opcode) { return opcode == SendOpcode::kRead || is_atomic(opcode); }

std::uint64_t word_at(std::span<const std::byte> bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

}  // namespace

Flow::Flow(World& world, Pair& from, Pair& to)
    : world_(world),
      from_(from),
      to_(to),
      left_(from.sends_requests() ? world.plan.operations : 0) {
  if (!from.is_reliable() || left_ == 0) return;
  swap_word_ = to.home().carve(8);
  if (!swap_word_) return;
  std::ranges::fill(to.home().bytes(*swap_word_, 8), std::byte{0});
}

void Flow::fail(const char* what) const {
  world_.failures.add("queue pair " + std::to_string(from_.number().value) + " to " +
                      std::to_string(to_.number().value) + ": " + what);
}

// -- the program --------------------------------------------------------------------------------

void Flow::step() {
  if (!to_.is_lost()) post_receives();
  if (from_.is_lost() || from_.home().is_paused()) return;
  while (from_.can_send() && left_ != 0 && all_.size() - reported_ < kPostedMax &&
         from_.has_room() && !world_.random.one_in(4))
    post();
}

void Flow::post_receives() {
  if (to_.home().is_paused() || to_.is_stopped()) return;
  if (world_.plan.receiver_storm && !world_.random.one_in(8)) return;
  for (unsigned queue = 0; queue < to_.queues(); ++queue)
    post_receives(queue);
}

void Flow::post_receives(unsigned queue) {
  Receives& receives = to_.receives_of(queue);
  // A queue pair that fails in a message takes its receive along.
  const bool is_starved =
      receives.rooms.empty() && receives.size() == 0 && messages_received_ < messages_posted_;
  if (is_starved && to_.has_shared_receives()) {
    if (const auto room = to_.room_for_receive(Node::Carve::kReserve))
      receives.rooms.push_back(*room);
  }
  while (!receives.rooms.empty() && receives.size() < kReceivesMax && !world_.random.one_in(3)) {
    to_.post_receive(queue, receives.rooms.front());
    receives.rooms.pop_front();
  }
}

void Flow::post() {
  --left_;
  Operation operation = choose();
  aim(operation);
  if (world_.plan.bad_requests && world_.random.one_in(12)) spoil(operation);
  submit(operation);
}

Flow::Operation Flow::choose() {
  SeededRandom& random = world_.random;
  Operation operation{.id = world_.next_id()};
  const bool is_plain = !from_.is_reliable();
  operation.opcode =
      from_.is_datagram()
          ? kReliableOpcodes[random.below(2)]
          : kReliableOpcodes[random.below(is_plain ? kUnreliableOpcodes : kReliableOpcodes.size())];
  if (operation.opcode == SendOpcode::kCompareSwap && !swap_word_)
    operation.opcode = SendOpcode::kFetchAdd;
  const std::optional<ReceiveSlot> room =
      takes_receive(operation.opcode) ? to_.room_for_receive() : std::nullopt;
  // The peer's memory is used up: a message would wait for ever, or take another's receive.
  if (takes_receive(operation.opcode) && !room && !from_.is_datagram())
    operation.opcode = from_.is_reliable() ? SendOpcode::kFlush : SendOpcode::kWrite;
  operation.length = static_cast<std::uint32_t>(random.below(world_.plan.size_max + 1));
  if (random.one_in(3)) operation.length %= 300;
  if (from_.is_datagram()) operation.length = std::min(operation.length, world_.plan.path_mtu);
  if (is_word(operation.opcode)) operation.length = 8;
  if (operation.opcode == SendOpcode::kFlush) operation.length = 0;
  // Only a completion at the end tells that the rest are done.
  operation.is_signaled = !world_.plan.unsignaled || left_ == 0 || from_.is_datagram() ||
                          all_.size() - reported_ > 20 || random.one_in(2);
  const bool has_immediate = operation.opcode == SendOpcode::kSendWithImmediate ||
                             operation.opcode == SendOpcode::kWriteWithImmediate;
  if (has_immediate) operation.immediate = static_cast<std::uint32_t>(operation.id);
  operation.is_message = takes_receive(operation.opcode);
  if (from_.is_extended()) operation.queue = static_cast<unsigned>(random.below(kQueues));
  if (room) to_.receives_of(operation.queue).rooms.push_back(*room);
  operation.source = static_cast<std::uint32_t>(random.below(kSourceBytes - operation.length));
  return operation;
}

void Flow::aim(Operation& operation) {
  const bool may_revoke = world_.plan.revokes != 0;
  if (is_write(operation.opcode) || comes_back(operation.opcode)) {
    operation.place = place_of(operation).carve(operation.length);
    if (!operation.place && is_word(operation.opcode)) {
      operation.opcode = SendOpcode::kFlush;
      operation.length = 0;
    } else if (!operation.place) {
      operation.length = 0;
    }
  }
  const bool is_remote = !(operation.is_message && !is_write(operation.opcode));
  if (may_revoke && operation.length > 0 && is_remote && !is_atomic(operation.opcode))
    operation.uses_revocable_there = world_.random.one_in(3);
  if (may_revoke && operation.length > 0) operation.uses_revocable_here = world_.random.one_in(6);
  if (operation.opcode == SendOpcode::kCompareSwap) operation.result = swaps_;
}

void Flow::spoil(Operation& operation) {
  const bool touches = operation.length > 0 && operation.place;
  if (from_.is_extended() && world_.random.one_in(3))
    operation.spoiled = touches && !operation.is_message && world_.random.one_in(2)
                            ? Spoiled::kAnothersQueue
                            : Spoiled::kMissingQueue;
  else if (is_word(operation.opcode))
    operation.spoiled = world_.random.one_in(2) ? Spoiled::kAlignment : Spoiled::kKey;
  else if (operation.opcode == SendOpcode::kRead || is_write(operation.opcode))
    operation.spoiled = operation.length > 0 ? Spoiled::kKey : Spoiled::kNo;
  else if (operation.opcode == SendOpcode::kFlush)
    operation.spoiled = Spoiled::kKey;
}

std::uint32_t Flow::queue_of(const Operation& operation) {
  if (operation.spoiled == Spoiled::kMissingQueue) return kUnknownQueue;
  if (operation.spoiled == Spoiled::kAnothersQueue) return kForeignQueue;
  return kFirstQueue + operation.queue;
}

void Flow::submit(const Operation& operation) {
  Node& here = from_.home();
  Node& there = to_.home();
  qp::SendRequest request{.wr_id = operation.id, .opcode = operation.opcode};
  if (operation.is_signaled) request.flags |= queues::kSignaled;
  if (world_.plan.fences && world_.random.one_in(6)) request.flags |= queues::kFence;
  request.immediate = operation.immediate.value_or(0);
  request.remote_key = operation.uses_revocable_there ? there.revocable : there.key;
  if (operation.spoiled == Spoiled::kKey) request.remote_key.value ^= 0x40;
  std::uint32_t local = operation.source;
  if (is_write(operation.opcode))
    request.remote_address = there.address(operation.place.value_or(0));
  if (operation.opcode == SendOpcode::kRead)
    request.remote_address = there.address(operation.source);
  if (operation.opcode == SendOpcode::kFetchAdd) {
    request.remote_address = there.address(kSharedWord);
    request.compare_add = 1;
    if (operation.spoiled == Spoiled::kNo) ++there.adds_posted;
  }
  if (operation.opcode == SendOpcode::kCompareSwap) {
    request.remote_address = there.address(*swap_word_);
    request.compare_add = swaps_;
    request.swap = ++swaps_;
  }
  if (operation.opcode == SendOpcode::kFlush) {
    const std::uint64_t from = world_.random.below(kNodeMemory);
    // Of nothing no key is looked at.
    const std::uint64_t least = operation.spoiled == Spoiled::kKey ? 1 : 0;
    const std::uint64_t length = least + world_.random.below(kNodeMemory - from + 1 - least);
    request.remote_address = there.address(static_cast<std::uint32_t>(from));
    request.flush = {.length = static_cast<std::uint32_t>(length),
                     .global_visibility = true,
                     .whole_region = world_.random.one_in(4)};
  }
  if (from_.is_extended()) request.shared_queue = queue_of(operation);
  if (operation.spoiled == Spoiled::kAlignment) request.remote_address += 4;
  if (comes_back(operation.opcode)) local = operation.place.value_or(0);
  if (from_.is_datagram()) {
    request.remote_qp = to_.number();
    request.remote_qkey = kQkey;
  }
  const MemoryKey local_key = operation.uses_revocable_here ? here.revocable : here.key;
  const auto first = static_cast<std::uint32_t>(world_.random.below(operation.length + 1));
  const std::array<Sge, 2> sges{
      {{here.address(local), first, local_key},
       {here.address(local) + first, operation.length - first, local_key}}};
  // An answer of an atomic is in one piece as well as in two.
  request.sges = sges;
  if (!from_.post(request)) return fail("a good work request was refused");
  messages_posted_ += operation.is_message;
  all_.push_back(operation);
}

// -- what comes of it ---------------------------------------------------------------------------

Node& Flow::place_of(const Operation& operation) const {
  return comes_back(operation.opcode) ? from_.home() : to_.home();
}
Node& Flow::source_of(const Operation& operation) const {
  return operation.opcode == SendOpcode::kRead ? to_.home() : from_.home();
}

bool Flow::has_arrived(const Operation& operation) const {
  const auto got = place_of(operation).bytes(*operation.place, operation.length);
  return std::ranges::equal(got, source_of(operation).before(operation.source, operation.length));
}

void Flow::completed(const Completion& completion) {
  while (reported_ < all_.size() && all_[reported_].id != completion.wr_id) {
    if (all_[reported_].is_signaled || has_failed_) return fail("a completion out of order");
    end(all_[reported_++], Status::kSuccess);
  }
  if (reported_ == all_.size()) return fail("a completion of nothing");
  Operation& operation = all_[reported_++];
  if (completion.status == Status::kSuccess && !operation.is_signaled)
    return fail("a completion that nobody asked for");
  if ((completion.vendor_error == 0) != (completion.status == Status::kSuccess))
    fail("a failure without a reason");
  end(operation, completion.status);
}

// A queue that has stopped, and was polled: what did not complete is done, and nobody wanted to
// know.
void Flow::conclude() {
  if (from_.can_send() || from_.is_lost() || from_.home().is_paused()) return;
  if (!from_.home().sends.empty()) return;
  left_ = 0;
  if (from_.home().sends.is_overrun()) return forget();
  for (; reported_ < all_.size(); ++reported_) {
    if (all_[reported_].is_signaled || has_failed_) return fail("never completed");
    end(all_[reported_], Status::kSuccess);
  }
}

// The completion queue was full: how the rest ended is lost, and the queue pair has failed.
void Flow::forget() {
  const bool is_known =
      has_failed_ || from_.was_told_to_stop() || from_.has_event(qp::QpEvent::kFatal) ||
      from_.has_event(qp::QpEvent::kAccessError) || from_.has_event(qp::QpEvent::kRequestError);
  if (reported_ < all_.size() && !is_known) fail("completions were lost, and nobody was told");
  has_failed_ |= reported_ < all_.size();
  reported_ = all_.size();
}

void Flow::end(Operation& operation, Status status) {
  if (status == Status::kSuccess) {
    operation.state = State::kDone;
    if (has_failed_) fail("success after a failure");
    if (operation.spoiled != Spoiled::kNo && from_.is_reliable()) fail("success of what cannot be");
    // What came before is where it should be.
    if (operation.opcode == SendOpcode::kFlush)
      check_earlier(static_cast<std::size_t>(&operation - all_.data()));
    return check_result(operation);
  }
  const bool is_flush = status == Status::kFlushed;
  operation.state = is_flush ? State::kFlushed : State::kFailed;
  if (has_failed_ && !is_flush) return fail("a failure after a failure");
  if (!has_failed_ && !is_excused(operation, status))
    world_.failures.add("queue pair " + std::to_string(from_.number().value) +
                        ": nothing explains status " +
                        std::to_string(static_cast<unsigned>(status)) + " of operation " +
                        std::to_string(&operation - all_.data()));
  has_failed_ = true;
}

bool Flow::is_silence_excused() const {
  const Plan& plan = world_.plan;
  if (to_.is_lost() || to_.is_stopped() || world_.was_long_silent()) return true;
  const bool has_loss = plan.loss || plan.corrupt || plan.truncate || plan.partition_us ||
                        plan.pause_us || plan.jump_us || plan.reorder || plan.duplicate ||
                        world_.network.has_dropped();
  return plan.retry_count < 7 && has_loss;
}

bool Flow::is_excused(const Operation& operation, Status status) const {
  switch (status) {
    case Status::kRetryExceeded: return is_silence_excused();
    case Status::kRnrRetryExceeded: return world_.plan.rnr_retry < 7 && operation.is_message;
    case Status::kRemoteAccess:
      return operation.spoiled == Spoiled::kKey || operation.spoiled == Spoiled::kAnothersQueue ||
             (operation.uses_revocable_there && to_.home().is_revoked());
    case Status::kRemoteInvalidRequest:
      return operation.spoiled == Spoiled::kAlignment ||
             operation.spoiled == Spoiled::kMissingQueue;
    case Status::kLocalProtection:
      return operation.uses_revocable_here && from_.home().is_revoked();
    // It was told to stop, or refused a request of the peer.
    case Status::kFlushed:
      return from_.was_told_to_stop() || from_.has_event(qp::QpEvent::kFatal) ||
             from_.has_event(qp::QpEvent::kAccessError) ||
             from_.has_event(qp::QpEvent::kRequestError);
    case Status::kRemoteOperation: return to_.home().receives.is_overrun();
    case Status::kSuccess:
    case Status::kLocalLength:
    case Status::kLocalQpOperation:
    case Status::kWindowBind:
    case Status::kBadResponse:
    case Status::kLocalAccess:
    case Status::kTagOperation:
    case Status::kRendezvousIncomplete:
    case Status::kFatal: break;
  }
  return false;
}

// It is over: its bytes are there now. What goes unreliably may never be.
void Flow::check_result(const Operation& operation) {
  if (is_atomic(operation.opcode)) {
    const std::uint64_t got = word_at(from_.home().bytes(*operation.place, 8));
    if (operation.result && got != *operation.result) fail("a swap that was not done once");
    if (!operation.result) to_.home().words_seen.push_back(got);
    return;
  }
  if (!operation.place || operation.length == 0) return;
  const bool must_be = from_.is_reliable() && !place_of(operation).is_dead();
  if (must_be && !has_arrived(operation)) fail("done, and its bytes are not there");
}

// -- messages -----------------------------------------------------------------------------------

bool Flow::fits(const Operation& message, const Completion& completion,
                const ReceiveSlot& slot) const {
  if (!message.is_message) return false;
  const bool is_write = message.opcode == SendOpcode::kWriteWithImmediate;
  const bool says_write = completion.kind == queues::CompletionKind::kReceiveWithImmediate;
  const std::uint32_t header = to_.is_datagram() ? std::uint32_t{wire::kGrhBytes} : 0;
  const bool has_immediate = (completion.flags & queues::kHasImmediate) != 0;
  if (is_write != says_write || has_immediate != message.immediate.has_value() ||
      (has_immediate && completion.immediate != *message.immediate) ||
      completion.byte_length != message.length + header)
    return false;
  if (is_write) return true;
  return std::ranges::equal(to_.home().bytes(slot.place + header, message.length),
                            from_.home().before(message.source, message.length));
}

// Reliable messages arrive all and in order, unreliable ones in order, datagrams anyhow.
std::optional<std::size_t> Flow::next_message(const Completion& completion,
                                              const ReceiveSlot& slot) const {
  for (std::size_t i = to_.is_datagram() ? 0 : seen_; i < all_.size(); ++i) {
    if (fits(all_[i], completion, slot)) return i;
    if (to_.is_reliable() && all_[i].is_message) return std::nullopt;
  }
  return std::nullopt;
}

void Flow::received(const Completion& completion) {
  unsigned queue = 0;
  while (queue + 1 < to_.queues() && !to_.receives_of(queue).is_waiting(completion.wr_id))
    ++queue;
  Receives& posted = to_.receives_of(queue);
  const bool is_in_order = to_.has_shared_receives() || posted.is_oldest(completion.wr_id);
  if (!is_in_order) return fail("a receive completed out of order");
  const auto slot = posted.completed(completion.wr_id);
  if (!slot) return fail("a receive completed twice");
  if (completion.status != Status::kSuccess) {
    if (completion.status != Status::kFlushed) fail("a receive failed");
    return settle_unused(*slot);
  }
  const auto message = next_message(completion, *slot);
  if (!message) return fail("a message that was not sent, or not now");
  if (all_[*message].queue != queue) return fail("a message in another queue");
  ++messages_received_;
  seen_ = *message + 1;
  if (to_.is_reliable()) check_earlier(*message);
  const bool is_write = all_[*message].opcode == SendOpcode::kWriteWithImmediate;
  // An unreliable message that did not come to its end leaves its bytes behind.
  const bool is_used_again = !to_.is_reliable() && !to_.is_datagram();
  to_.home().settle(slot->place, is_used_again ? slot->room
                                 : is_write    ? 0
                                               : completion.byte_length);
}

// Only in the oldest one may there be the beginning of a message.
void Flow::settle_unused(const ReceiveSlot& slot) {
  Node& node = to_.home();
  if (std::ranges::equal(node.bytes(slot.place, slot.room), node.before(slot.place, slot.room)))
    return;
  if (std::exchange(has_begun_one_, true)) return fail("bytes in a receive of no message");
  node.settle(slot.place, slot.room);
}

// What was written before a message is there when it is.
void Flow::check_earlier(std::size_t upto) {
  for (; checked_ <= upto; ++checked_) {
    const Operation& operation = all_[checked_];
    if (!is_write(operation.opcode) || !operation.place) continue;
    if (!has_arrived(operation)) fail("a WRITE before a message or FLUSH is not there");
  }
}

// -- the end ------------------------------------------------------------------------------------

bool Flow::is_settled() const {
  if (from_.is_lost()) return true;
  if (reported_ < all_.size()) return false;
  return left_ == 0;
}

void Flow::check_arrived() const {
  if (!from_.is_alive() || !from_.is_reliable() || has_failed_ || !to_.is_alive()) return;
  if (messages_received_ != messages_posted_) fail("a message is missing");
  world_.watcher.check_at_rest(to_.number());
}

void Flow::finish() {
  for (const Operation& operation : all_)
    settle(operation);
  if (swap_word_ && !to_.is_lost()) {
    std::uint64_t done = 0;
    for (const Operation& operation : all_)
      done += operation.opcode == SendOpcode::kCompareSwap && operation.state == State::kDone;
    const std::uint64_t word = word_at(to_.home().bytes(*swap_word_, 8));
    if (word < done || word > swaps_) fail("swaps that are lost, or were never asked for");
    to_.home().settle(*swap_word_, 8);
  }
}

// All of it, or if it failed, each byte as it was or as it should be.
void Flow::settle(const Operation& operation) {
  if (!operation.place || operation.length == 0) return;
  Node& node = place_of(operation);
  if (node.is_dead()) return;
  const auto got = node.bytes(*operation.place, operation.length);
  if (is_atomic(operation.opcode)) return node.settle(*operation.place, operation.length);
  const bool must_be = from_.is_reliable() && operation.state == State::kDone;
  if (must_be && !has_arrived(operation)) return fail("its bytes did not stay");
  const auto wanted = source_of(operation).before(operation.source, operation.length);
  const auto before = node.before(*operation.place, operation.length);
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != wanted[i] && got[i] != before[i]) return fail("bytes that nobody sent");
  const bool lost_its_right = operation.opcode == SendOpcode::kRead
                                  ? operation.uses_revocable_here
                                  : operation.uses_revocable_there;
  if (lost_its_right && node.is_revoked() &&
      !std::ranges::equal(got, node.at_revocation(*operation.place, operation.length)))
    return fail("bytes written after the region was gone");
  node.settle(*operation.place, operation.length);
}

}  // namespace verbena::fabric
