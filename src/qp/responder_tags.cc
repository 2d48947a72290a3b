// SPDX-License-Identifier: MIT
// Receiving where tags are matched (ibv_post_srq_ops(3)). What a message's header says decides:
//
//   eager, rendezvous; an entry matches     the entry's buffers
//     and nothing does                      a receive, all of the message: unexpected
//   no tag, finished, anything else         a receive, all of the message
//
// Of a rendezvous the message comes later, by a READ of our own queue pair (rendezvous.h). Where
// that cannot be, or the entry is too short for it, the program is told to fetch it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "qp/opcode.h"
#include "qp/responder.h"
#include "wire/tag_matching.h"

namespace verbena::qp {

using queues::Completion;
using queues::CompletionKind;
using queues::Status;

namespace {

constexpr std::uint64_t kHeaderBytes = sizeof(wire::TagHeader);

}  // namespace

// A message that was abandoned leaves its entry where it was, and its receive to whichever takes
// one next.
void Responder::leave_tagged() {
  if (tagged_->entry) config_.tags->put_back(*tagged_->entry);
  if (tagged_->is_unexpected) config_.tags->forget_unexpected();
  tagged_->entry.reset();
  tagged_->is_unexpected = false;
  tagged_->phase = Tagged::Phase::kHeader;
  whole_kind_ = CompletionKind::kReceive;
}

Result<void, Refusal> Responder::begin_tagged(std::uint64_t length) {
  leave_tagged();
  current_.in_progress = true;
  current_.length = length;
  return {};
}

Result<void, Refusal> Responder::place_tagged(std::uint64_t offset,
                                              std::span<const std::byte> bytes) {
  if (offset + bytes.size() > kMessageMax) return bad_request(Reason::kRequestTooLong);
  if (auto known = know_receive(bytes); !known) return known;
  return scatter_tagged(offset, bytes);
}

Result<void, Refusal> Responder::know_receive(std::span<const std::byte> bytes) {
  if (tagged_->phase != Tagged::Phase::kHeader) return {};
  return find_receive(bytes);
}

// `bytes`: the first ones. The peer may change them at any time, so they are looked at once.
Result<void, Refusal> Responder::find_receive(std::span<const std::byte> bytes) {
  wire::TagHeader header;
  if (bytes.size() < kHeaderBytes) return take_whole(CompletionKind::kNoTag);
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto opcode = static_cast<wire::TagOpcode>(header.opcode);
  const bool is_rendezvous = opcode == wire::TagOpcode::kRendezvous &&
                             bytes.size() >= kHeaderBytes + sizeof(wire::RendezvousHeader);
  if (opcode != wire::TagOpcode::kEager && !is_rendezvous)
    return take_whole(CompletionKind::kNoTag);
  tagged_->message.tag = header.tag.value();
  tagged_->message.context = header.context.value();
  tagged_->entry = config_.tags->match(header.tag.value(), tagged_->receive);
  if (!tagged_->entry) {
    tagged_->is_unexpected = true;
    auto taken = take_whole(CompletionKind::kTagReceive);
    if (!taken) leave_tagged();
    return taken;
  }
  whole_kind_ = CompletionKind::kTagReceive;
  if (is_rendezvous) return take_rendezvous(bytes.subspan(kHeaderBytes));
  tagged_->phase = Tagged::Phase::kEager;
  return {};
}

Result<void, Refusal> Responder::take_whole(CompletionKind kind) {
  if (!take_receive()) return not_ready();
  tagged_->phase = Tagged::Phase::kWhole;
  whole_kind_ = kind;
  return {};
}

Result<void, Refusal> Responder::take_rendezvous(std::span<const std::byte> bytes) {
  wire::RendezvousHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  Rendezvous& message = tagged_->message;
  message.address = header.address.value();
  message.key = {header.key.value()};
  message.length = header.length.value();
  const bool fits = message.length <= std::min(kMessageMax, tagged_->receive.room());
  tagged_->phase =
      fits && config_.owner->may_fetch() ? Tagged::Phase::kRendezvous : Tagged::Phase::kLeft;
  return {};
}

Result<void, Refusal> Responder::scatter_tagged(std::uint64_t offset,
                                                std::span<const std::byte> bytes) {
  const bool is_whole = tagged_->phase == Tagged::Phase::kWhole;
  const bool is_left = tagged_->phase == Tagged::Phase::kLeft;
  if (tagged_->phase == Tagged::Phase::kRendezvous) return {};
  if (!is_whole) {
    const std::uint64_t header = offset < kHeaderBytes ? kHeaderBytes - offset : 0;
    bytes = bytes.subspan(std::min<std::uint64_t>(header, bytes.size()));
    offset = offset + header - kHeaderBytes;
  }
  const queues::Receive& to = is_whole ? current_.receive : tagged_->receive;
  const std::uint64_t room = to.room();
  const std::uint64_t left = room > offset ? room - offset : 0;
  if (is_left) bytes = bytes.first(std::min<std::uint64_t>(bytes.size(), left));
  if (bytes.size() > left) return too_short();
  if (bytes.empty()) return {};
  const auto placed =
      memory::scatter(*config_.regions, config_.receive_pd, to.list(), offset, bytes);
  if (placed) return {};
  return bad_receive(Status::kLocalProtection, local_reason(placed.error()), Refusal::kOperation);
}

Result<void, Refusal> Responder::finish_tagged(const Arrived& arrived) {
  Completion completion = completion_of_receive();
  completion.byte_length = static_cast<std::uint32_t>(current_.length);
  if (arrived.has_immediate) completion.flags |= queues::kHasImmediate;
  if (arrived.invalidates) completion.flags |= queues::kHasInvalidatedKey;
  if (arrived.has_immediate || arrived.invalidates) completion.immediate = arrived.immediate;
  tagged_->is_unexpected = false;  // told of, so it counts
  if (!tagged_->entry) return complete(completion, arrived.is_solicited);

  const Rendezvous message = tagged_->message;
  queues::set_tag(completion, message.tag, message.context);
  completion.flags |= queues::kTagMatched;
  switch (tagged_->phase) {
    case Tagged::Phase::kHeader:
    case Tagged::Phase::kWhole: break;
    case Tagged::Phase::kEager:
      completion.flags |= queues::kTagDataValid;
      completion.byte_length = static_cast<std::uint32_t>(current_.length - kHeaderBytes);
      break;
    case Tagged::Phase::kLeft:
      completion.status = Status::kRendezvousIncomplete;
      completion.vendor_error = static_cast<std::uint32_t>(Reason::kRendezvousTooLong);
      completion.byte_length = static_cast<std::uint32_t>(
          std::min(current_.length - kHeaderBytes, tagged_->receive.room()));
      break;
    case Tagged::Phase::kRendezvous: {
      completion.byte_length = message.length;
      const TagHandle entry = *std::exchange(tagged_->entry, std::nullopt);
      config_.tags->keep(entry, message);
      current_.in_progress = false;
      if (!config_.completions->push(completion, arrived.is_solicited)) {
        config_.tags->consume(entry);
        return completion_lost();
      }
      config_.owner->rendezvous_matched(entry);
      return {};
    }
  }
  return complete(completion, arrived.is_solicited);
}

}  // namespace verbena::qp
