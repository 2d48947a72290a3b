// SPDX-License-Identifier: MIT
#include "qp/tag_matcher.h"

#include <algorithm>
#include <mutex>

#include "base/assert.h"
#include "qp/reason.h"

namespace verbena::qp {

using queues::Completion;
using queues::CompletionKind;
using queues::Status;

TagMatcher::TagMatcher(std::uint32_t tags_max, queues::CompletionQueue& completions)
    : completions_(completions),
      tags_max_(tags_max),
      entries_(std::make_unique<Entry[]>(tags_max)) {
  VERBENA_ASSERT(tags_max <= kTagsMax);
  for (std::uint32_t i = tags_max; i-- > 0;) {
    entries_[i].handle = i;
    entries_[i].after = free_;
    free_ = static_cast<std::uint16_t>(i);
  }
}

// -- the program --------------------------------------------------------------------------------

Result<TagHandle, TagMatcher::AddError> TagMatcher::add(const TagRequest& request,
                                                        const TagEntry& wanted) {
  if (wanted.sges.size() > kTagSgeMax) return refuse(AddError::kTooManySges);
  const std::lock_guard guard(lock_);
  if (free_ == kNone) return refuse(AddError::kFull);
  note_seen(request);
  const std::uint16_t index = free_;
  Entry& entry = entries_[index];
  free_ = entry.after;
  entry.state = State::kListed;
  entry.is_waiting = !is_synchronous();
  entry.handle += kTagsMax;
  if (entry.handle < kTagsMax) entry.handle += kTagsMax;  // it wrapped: 0 is nobody's
  entry.wr_id = wanted.wr_id;
  entry.tag = wanted.tag;
  entry.mask = wanted.mask;
  entry.sge_count = static_cast<std::uint16_t>(wanted.sges.size());
  std::ranges::copy(wanted.sges, entry.sges);
  entry.after = kNone;
  entry.before = last_;
  (last_ == kNone ? first_ : entries_[last_].after) = index;
  last_ = index;
  if (entry.is_waiting && first_waiting_ == kNone) first_waiting_ = index;
  // Before anything can match: the program hears of the entry first.
  complete(request, CompletionKind::kTagAdd, Status::kSuccess);
  return TagHandle{entry.handle};
}

void TagMatcher::remove(const TagRequest& request, TagHandle handle) {
  const std::lock_guard guard(lock_);
  note_seen(request);
  const Entry* const entry = find_listed(handle);
  if (!entry) return complete(request, CompletionKind::kTagDelete, Status::kTagOperation);
  const auto index = static_cast<std::uint16_t>(handle.value & kIndexMask);
  unlink(index);
  give_back(index);
  complete(request, CompletionKind::kTagDelete, Status::kSuccess);
}

void TagMatcher::synchronize(const TagRequest& request) {
  const std::lock_guard guard(lock_);
  note_seen(request);
  complete(request, CompletionKind::kTagSync, Status::kSuccess);
}

void TagMatcher::note_seen(const TagRequest& request) {
  if (!request.unexpected_seen) return;
  unexpected_seen_ = *request.unexpected_seen;
  if (is_synchronous()) arm_waiting();
}

void TagMatcher::arm_waiting() {
  for (std::uint16_t index = first_waiting_; index != kNone; index = entries_[index].after)
    entries_[index].is_waiting = false;
  first_waiting_ = kNone;
}

// What fails is told also where nobody asked: it was not done.
void TagMatcher::complete(const TagRequest& request, CompletionKind kind, Status status) {
  if (!request.is_signaled && status == Status::kSuccess) return;
  Completion completion;
  completion.wr_id = request.wr_id;
  completion.kind = kind;
  completion.status = status;
  if (status != Status::kSuccess)
    completion.vendor_error = static_cast<std::uint32_t>(Reason::kNoSuchTag);
  completion.flags = is_synchronous() ? std::uint8_t{0} : queues::kTagSyncWanted;
  // A queue that has no room tells its program by itself.
  static_cast<void>(completions_.push(completion, false));
}

TagMatcher::Entry* TagMatcher::find_listed(TagHandle handle) {
  if ((handle.value & kIndexMask) >= tags_max_) return nullptr;
  Entry& entry = entry_of(handle);
  return entry.handle == handle.value && entry.state == State::kListed ? &entry : nullptr;
}

// -- messages -----------------------------------------------------------------------------------

std::optional<TagHandle> TagMatcher::match(std::uint64_t tag, queues::Receive& out) {
  const std::lock_guard guard(lock_);
  for (std::uint16_t index = first_; index != first_waiting_; index = entries_[index].after) {
    Entry& entry = entries_[index];
    if (entry.state != State::kListed || (tag & entry.mask) != entry.tag) continue;
    entry.state = State::kTaken;
    out.wr_id = entry.wr_id;
    out.sge_count = entry.sge_count;
    std::copy_n(entry.sges, entry.sge_count, out.sges);
    return TagHandle{entry.handle};
  }
  ++unexpected_;
  return std::nullopt;
}

void TagMatcher::forget_unexpected() {
  const std::lock_guard guard(lock_);
  --unexpected_;
  if (is_synchronous()) arm_waiting();
}

void TagMatcher::put_back(TagHandle handle) {
  const std::lock_guard guard(lock_);
  entry_of(handle).state = State::kListed;
}

void TagMatcher::consume(TagHandle handle) {
  const std::lock_guard guard(lock_);
  const auto index = static_cast<std::uint16_t>(handle.value & kIndexMask);
  unlink(index);
  give_back(index);
}

void TagMatcher::keep(TagHandle handle, const Rendezvous& rendezvous) {
  entry_of(handle).rendezvous = rendezvous;
  entry_of(handle).next_of_queue_pair = {};
}

void TagMatcher::unlink(std::uint16_t index) {
  const Entry& entry = entries_[index];
  (entry.before == kNone ? first_ : entries_[entry.before].after) = entry.after;
  (entry.after == kNone ? last_ : entries_[entry.after].before) = entry.before;
  if (first_waiting_ == index) first_waiting_ = entry.after;
}

void TagMatcher::give_back(std::uint16_t index) {
  Entry& entry = entries_[index];
  entry.state = State::kFree;
  entry.after = free_;
  free_ = index;
}

}  // namespace verbena::qp
