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
using workload::Refusal;
using workload::Spoiled;
using workload::Verb;

namespace {

constexpr std::uint32_t kPostedMax = 40;
constexpr std::uint32_t kReceivesMax = 24;
constexpr std::size_t kUnsignaledMax = 20;  // and then one that is signaled

SendOpcode opcode_of(Verb verb) {
  switch (verb) {
    case Verb::kSend: return SendOpcode::kSend;
    case Verb::kSendWithImmediate: return SendOpcode::kSendWithImmediate;
    case Verb::kSendWithInvalidate: return SendOpcode::kSendWithInvalidate;
    case Verb::kWrite: return SendOpcode::kWrite;
    case Verb::kWriteWithImmediate: return SendOpcode::kWriteWithImmediate;
    case Verb::kRead: return SendOpcode::kRead;
    case Verb::kFetchAdd: return SendOpcode::kFetchAdd;
    case Verb::kCompareSwap: return SendOpcode::kCompareSwap;
    case Verb::kFlush: return SendOpcode::kFlush;
    case Verb::kAtomicWrite: return SendOpcode::kAtomicWrite;
  }
  return SendOpcode::kSend;
}

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
      wanted_(world.random.next(), habits_of(world.plan, from)) {
  if (!from.is_reliable() || wanted_.is_over()) return;
  swap_word_ = to.home().carve(8);
  if (!swap_word_) return;
  std::ranges::fill(to.home().bytes(*swap_word_, 8), std::byte{0});
}

workload::Habits Flow::habits_of(const Plan& plan, const Pair& from) {
  using workload::Service;
  return {.service = from.is_extended()   ? Service::kExtended
                     : from.is_datagram() ? Service::kDatagrams
                     : from.is_reliable() ? Service::kReliable
                                          : Service::kUnreliable,
          .requests = from.sends_requests() ? plan.operations : 0,
          .length_max = from.is_datagram() ? std::min(plan.size_max, plan.path_mtu) : plan.size_max,
          .inline_max = kInlineMax,
          .queues = from.is_extended() ? kQueues : 1,
          .unsignaled = plan.unsignaled != 0,
          .fences = plan.fences != 0,
          .bad_requests = plan.bad_requests != 0,
          .revokes = plan.revokes != 0};
}

void Flow::fail(const char* what) const {
  world_.failures.add("queue pair " + std::to_string(from_.number().value) + " to " +
                      std::to_string(to_.number().value) + ": " + what);
}

// -- the program --------------------------------------------------------------------------------

void Flow::step() {
  if (!to_.is_lost()) post_receives();
  if (from_.is_lost() || from_.home().is_paused()) return;
  while (from_.can_send() && !wanted_.is_over() && all_.size() - reported_ < kPostedMax &&
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
  Operation operation = choose();
  aim(operation);
  if (!from_.post(request_of(operation))) return fail("a good work request was refused");
  messages_posted_ += operation.is_message;
  ledger_.posted(operation.id, operation.is_signaled);
  all_.push_back(operation);
}

Flow::Operation Flow::choose() {
  Operation operation{wanted_.next(), world_.next_id()};
  if (operation.verb == Verb::kCompareSwap && !swap_word_) operation.verb = Verb::kFetchAdd;
  if (takes_receive(operation.verb)) make_room(operation);
  operation.is_signaled |= all_.size() - reported_ > kUnsignaledMax;
  if (has_immediate(operation.verb)) operation.immediate = static_cast<std::uint32_t>(operation.id);
  operation.is_message = takes_receive(operation.verb);
  operation.source =
      static_cast<std::uint32_t>(operation.content % (kSourceBytes - operation.length));
  return operation;
}

// The peer's memory may be used up: a message would wait for ever, or take another's receive.
void Flow::make_room(Operation& operation) {
  if (const auto room = to_.room_for_receive()) {
    to_.receives_of(operation.queue).rooms.push_back(*room);
  } else if (from_.is_reliable()) {
    operation.verb = Verb::kFlush;
    operation.make_empty();
  } else if (!from_.is_datagram()) {
    operation.verb = Verb::kWrite;
  }
}

void Flow::aim(Operation& operation) {
  if (is_write(operation.verb) || comes_back(operation.verb)) {
    operation.where = place_of(operation).carve(operation.length);
    if (!operation.where) {
      if (is_word(operation.verb)) operation.verb = Verb::kFlush;
      // Of nothing no key is looked at.
      if (operation.spoiled != Spoiled::kMissingQueue) operation.spoiled = Spoiled::kNo;
      operation.make_empty();
    }
  }
  if (operation.verb == Verb::kCompareSwap) operation.result = swaps_;
}

std::uint32_t Flow::queue_of(const Operation& operation) {
  if (operation.spoiled == Spoiled::kMissingQueue) return kUnknownQueue;
  if (operation.spoiled == Spoiled::kAnothersQueue) return kForeignQueue;
  return kFirstQueue + operation.queue;
}

qp::SendRequest Flow::request_of(const Operation& operation) {
  Node& here = from_.home();
  Node& there = to_.home();
  qp::SendRequest request{.wr_id = operation.id, .opcode = opcode_of(operation.verb)};
  if (operation.is_signaled) request.flags |= queues::kSignaled;
  if (operation.is_fenced) request.flags |= queues::kFence;
  request.immediate = operation.immediate.value_or(0);
  request.remote_key = operation.uses_revocable_there ? there.revocable : there.key;
  if (operation.spoiled == Spoiled::kKey) request.remote_key.value ^= 0x40;
  std::uint32_t local = operation.source;
  if (is_write(operation.verb)) request.remote_address = there.address(operation.where.value_or(0));
  if (operation.verb == Verb::kRead) request.remote_address = there.address(operation.source);
  if (operation.verb == Verb::kFetchAdd) {
    request.remote_address = there.address(kSharedWord);
    request.compare_add = 1;
    if (operation.spoiled == Spoiled::kNo) ++there.adds_posted;
  }
  if (operation.verb == Verb::kCompareSwap) {
    request.remote_address = there.address(*swap_word_);
    request.compare_add = swaps_;
    request.swap = ++swaps_;
  }
  if (operation.verb == Verb::kFlush) {
    const std::uint64_t from = operation.content % kNodeMemory;
    const std::uint64_t least = operation.spoiled == Spoiled::kKey ? 1 : 0;
    const std::uint64_t most = kNodeMemory - from;
    const std::uint64_t length = least + (operation.content >> 20) % (most + 1 - least);
    request.remote_address = there.address(static_cast<std::uint32_t>(from));
    request.flush = {.length = static_cast<std::uint32_t>(length),
                     .global_visibility = true,
                     .whole_region = operation.content >> 62 == 0};
  }
  if (from_.is_extended()) request.shared_queue = queue_of(operation);
  if (operation.spoiled == Spoiled::kAlignment) request.remote_address += 4;
  if (comes_back(operation.verb)) local = operation.where.value_or(0);
  if (from_.is_datagram()) {
    request.remote_qp = to_.number();
    request.remote_qkey = kQkey;
  }
  const MemoryKey local_key = operation.uses_revocable_here ? here.revocable : here.key;
  // Inline data is copied while it is posted, from where it is.
  if (operation.is_inline) request.flags |= queues::kInline;
  for (std::uint32_t i = 0; i < operation.piece_count; ++i) {
    const std::byte* bytes = here.bytes(local, operation.pieces[i]).data();
    sges_[i] = {operation.is_inline ? reinterpret_cast<std::uintptr_t>(bytes) : here.address(local),
                operation.pieces[i], local_key};
    local += operation.pieces[i];
  }
  request.sges = std::span(sges_).first(operation.piece_count);
  return request;
}

// -- what comes of it ---------------------------------------------------------------------------

Node& Flow::place_of(const Operation& operation) const {
  return comes_back(operation.verb) ? from_.home() : to_.home();
}
Node& Flow::source_of(const Operation& operation) const {
  return operation.verb == Verb::kRead ? to_.home() : from_.home();
}

bool Flow::has_arrived(const Operation& operation) const {
  const auto got = place_of(operation).bytes(*operation.where, operation.length);
  return std::ranges::equal(got, source_of(operation).before(operation.source, operation.length));
}

void Flow::completed(const Completion& completion) {
  const auto ended = ledger_.completed(completion.wr_id, completion.status == Status::kSuccess);
  if (ended.wrong) return fail(ended.wrong);
  for (std::size_t i = 1; i < ended.count; ++i)
    end(all_[reported_++], Status::kSuccess);
  if ((completion.vendor_error == 0) != (completion.status == Status::kSuccess))
    fail("a failure without a reason");
  end(all_[reported_++], completion.status);
}

// A queue that has stopped, and was polled: what did not complete is done, and nobody wanted to
// know.
void Flow::conclude() {
  if (from_.can_send() || from_.is_lost() || from_.home().is_paused()) return;
  if (!from_.home().sends.empty()) return;
  wanted_.give_up();
  if (from_.home().sends.is_overrun()) return forget();
  const auto ended = ledger_.closed();
  if (ended.wrong) return fail(ended.wrong);
  for (std::size_t i = 0; i < ended.count; ++i)
    end(all_[reported_++], Status::kSuccess);
}

// The completion queue was full: how the rest ended is lost, and the queue pair has failed.
void Flow::forget() {
  const bool is_known =
      has_failed_ || from_.was_told_to_stop() || from_.has_event(qp::QpEvent::kFatal) ||
      from_.has_event(qp::QpEvent::kAccessError) || from_.has_event(qp::QpEvent::kRequestError);
  const std::size_t lost = ledger_.forget();
  if (lost != 0 && !is_known) fail("completions were lost, and nobody was told");
  has_failed_ |= lost != 0;
  reported_ = all_.size();
}

void Flow::end(Operation& operation, Status status) {
  if (status == Status::kSuccess) {
    operation.state = State::kDone;
    if (operation.spoiled != Spoiled::kNo && from_.is_reliable()) fail("success of what cannot be");
    // What came before is where it should be.
    if (operation.verb == Verb::kFlush)
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
      return refusal_of(operation.spoiled) == Refusal::kAccess ||
             (operation.uses_revocable_there && to_.home().is_revoked());
    case Status::kRemoteInvalidRequest:
      return refusal_of(operation.spoiled) == Refusal::kInvalidRequest;
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
  if (is_atomic(operation.verb)) {
    const std::uint64_t got = word_at(from_.home().bytes(*operation.where, 8));
    if (operation.result && got != *operation.result) fail("a swap that was not done once");
    if (!operation.result) to_.home().words_seen.push_back(got);
    return;
  }
  if (!operation.where || operation.length == 0) return;
  const bool must_be = from_.is_reliable() && !place_of(operation).is_dead();
  if (must_be && !has_arrived(operation)) fail("done, and its bytes are not there");
}

// -- messages -----------------------------------------------------------------------------------

bool Flow::fits(const Operation& message, const Completion& completion,
                const ReceiveSlot& slot) const {
  if (!message.is_message) return false;
  const bool is_write = message.verb == Verb::kWriteWithImmediate;
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

// One with immediate that its receive may fail for.
bool Flow::has_bad_write() const {
  return std::any_of(
      all_.begin() + static_cast<std::ptrdiff_t>(seen_), all_.end(), [this](const Operation& each) {
        return each.verb == Verb::kWriteWithImmediate && is_excused(each, Status::kRemoteAccess);
      });
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
    const bool is_explained = completion.status == Status::kFlushed ||
                              (completion.status == Status::kLocalAccess && has_bad_write());
    if (!is_explained) fail("a receive failed");
    return settle_unused(*slot);
  }
  const auto message = next_message(completion, *slot);
  if (!message) return fail("a message that was not sent, or not now");
  if (all_[*message].queue != queue) return fail("a message in another queue");
  ++messages_received_;
  seen_ = *message + 1;
  if (to_.is_reliable()) check_earlier(*message);
  const bool is_write = all_[*message].verb == Verb::kWriteWithImmediate;
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
    if (!is_write(operation.verb) || !operation.where) continue;
    if (!has_arrived(operation)) fail("a WRITE before a message or FLUSH is not there");
  }
}

// -- the end ------------------------------------------------------------------------------------

bool Flow::is_settled() const {
  if (from_.is_lost()) return true;
  if (reported_ < all_.size()) return false;
  return wanted_.is_over();
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
      done += operation.verb == Verb::kCompareSwap && operation.state == State::kDone;
    const std::uint64_t word = word_at(to_.home().bytes(*swap_word_, 8));
    if (word < done || word > swaps_) fail("swaps that are lost, or were never asked for");
    to_.home().settle(*swap_word_, 8);
  }
}

// All of it, or if it failed, each byte as it was or as it should be.
void Flow::settle(const Operation& operation) {
  if (!operation.where || operation.length == 0) return;
  Node& node = place_of(operation);
  if (node.is_dead()) return;
  const auto got = node.bytes(*operation.where, operation.length);
  if (is_atomic(operation.verb)) return node.settle(*operation.where, operation.length);
  const bool must_be = from_.is_reliable() && operation.state == State::kDone;
  if (must_be && !has_arrived(operation)) return fail("its bytes did not stay");
  const auto wanted = source_of(operation).before(operation.source, operation.length);
  const auto before = node.before(*operation.where, operation.length);
  for (std::size_t i = 0; i < got.size(); ++i)
    if (got[i] != wanted[i] && got[i] != before[i]) return fail("bytes that nobody sent");
  const bool lost_its_right = operation.verb == Verb::kRead ? operation.uses_revocable_here
                                                            : operation.uses_revocable_there;
  if (lost_its_right && node.is_revoked() &&
      !std::ranges::equal(got, node.at_revocation(*operation.where, operation.length)))
    return fail("bytes written after the region was gone");
  node.settle(*operation.where, operation.length);
}

}  // namespace verbena::fabric
