// SPDX-License-Identifier: MIT
#include "qp/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "wire/tag_matching.h"

namespace verbena::qp {

using queues::Completion;
using queues::CompletionKind;
using queues::SendOpcode;
using queues::SendQueue;
using queues::SendWqe;
using queues::Status;

void RendezvousQueue::add(TagHandle entry) {
  if (first_ == TagHandle{})
    first_ = entry;
  else
    tags_.next(last_) = entry;
  last_ = entry;
}

std::optional<TagHandle> RendezvousQueue::take_first() {
  if (first_ == TagHandle{}) return std::nullopt;
  return std::exchange(first_, tags_.next(first_));
}

void RendezvousQueue::post() {
  while (first_ != TagHandle{} && places() + 2 <= kPlaces) {
    TagHandle* const place = std::ranges::find(posted_, TagHandle{});
    if (place == std::end(posted_)) return;
    const TagHandle entry = *take_first();
    *place = entry;
    post_read(entry);
    post_finish(tags_.rendezvous(entry));
  }
}

SendWqe& RendezvousQueue::new_wqe(SendOpcode opcode, std::uint64_t wr_id) {
  SendWqe* const wqe = queue_.room();
  VERBENA_ASSERT(wqe);
  *wqe = SendWqe{};
  wqe->wr_id = wr_id;
  wqe->opcode = static_cast<std::uint8_t>(opcode);
  wqe->flags = queues::kInternal | queues::kSignaled;
  return *wqe;
}

// Of the entry's buffers as much as the message fills.
void RendezvousQueue::post_read(TagHandle entry) {
  const Rendezvous& message = tags_.rendezvous(entry);
  SendWqe& wqe = new_wqe(SendOpcode::kRead, entry.value);
  wqe.remote_address = message.address;
  wqe.remote_key = message.key.value;
  Sge* const to = SendQueue::sge_room(wqe);
  std::uint32_t left = message.length;
  for (const Sge& sge : tags_.sges(entry)) {
    if (left == 0) break;
    Sge& part = to[wqe.sge_count++];
    part = sge;
    part.length = std::min(sge.length, left);
    left -= part.length;
  }
  queue_.post();
  ++reads_;
}

void RendezvousQueue::post_finish(const Rendezvous& message) {
  wire::TagHeader header;
  header.opcode = static_cast<std::uint8_t>(wire::TagOpcode::kFinished);
  header.context = wire::be32(message.context);
  header.tag = wire::be64(message.tag);
  static_assert(sizeof header == kFinishBytes);
  SendWqe& wqe = new_wqe(SendOpcode::kSend, 0);
  // The peer may take its memory back when it hears of it: not before it was read.
  wqe.flags |= queues::kInline | queues::kFence;
  wqe.inline_length = kFinishBytes;
  std::memcpy(SendQueue::inline_room(wqe), &header, sizeof header);
  queue_.post();
  ++finishes_;
}

bool RendezvousQueue::done(std::uint64_t wr_id, OpKind kind, Status status, Reason reason) {
  if (kind != OpKind::kRead) {
    finishes_ -= finishes_ != 0;
    return true;
  }
  TagHandle* const place = std::ranges::find(posted_, TagHandle{static_cast<std::uint32_t>(wr_id)});
  // Not ours after all: work requests lie in memory that others may write.
  if (wr_id == 0 || place == std::end(posted_)) return true;
  --reads_;
  return complete(std::exchange(*place, TagHandle{}), status, reason);
}

bool RendezvousQueue::complete(TagHandle entry, Status status, Reason reason) {
  Completion completion;
  completion.wr_id = tags_.wr_id(entry);
  completion.kind = CompletionKind::kTagReceive;
  completion.status = status;
  completion.vendor_error = static_cast<std::uint32_t>(reason);
  completion.qp = qp_;
  if (status == Status::kSuccess) {
    completion.flags = queues::kTagDataValid;
    completion.byte_length = tags_.rendezvous(entry).length;
  }
  tags_.consume(entry);
  return tags_.completions().push(completion, false);
}

bool RendezvousQueue::flush() {
  bool all_told = true;
  while (const std::optional<TagHandle> entry = take_first())
    all_told &= complete(*entry, Status::kFlushed, Reason::kFlushedReceive);
  return all_told;
}

void RendezvousQueue::forget() {
  while (const std::optional<TagHandle> entry = take_first())
    tags_.consume(*entry);
  for (TagHandle& entry : posted_) {
    if (entry != TagHandle{}) tags_.consume(std::exchange(entry, TagHandle{}));
  }
  reads_ = finishes_ = 0;
}

}  // namespace verbena::qp
