// SPDX-License-Identifier: MIT
// The tag list of a shared receive queue (ibv_post_srq_ops(3)): buffers for messages whose header
// carries a tag, in the order in which they were added. A message takes the first one that matches;
// one that none matches is unexpected, and takes a receive of the queue.
//
// The program looks for unexpected messages itself before it adds a buffer, and may miss one that
// comes at that moment. So the list counts them, and the program says how many it has seen: while
// it has not seen all of them, what it adds matches nothing yet, and the completion of the addition
// asks it to look again.
//
// Any thread may call anything at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "base/result.h"
#include "base/types.h"
#include "queues/completion_queue.h"
#include "queues/receive_queue.h"

namespace verbena::qp {

// What a tag list can hold at most, as ibv_query_device_ex tells it.
inline constexpr std::uint32_t kTagsMax = 1024;
inline constexpr std::uint32_t kTagOperationsMax = 1024;
inline constexpr std::uint32_t kTagSgeMax = 4;

// Names an entry of the list while it lives; never 0.
struct TagHandle {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(TagHandle, TagHandle) = default;
};

// A message that is still where its sender has it.
struct Rendezvous {
  std::uint64_t address = 0;
  MemoryKey key;
  std::uint32_t length = 0;
  std::uint64_t tag = 0;
  std::uint32_t context = 0;
};

// What all operations on the list have.
struct TagRequest {
  std::uint64_t wr_id = 0;
  bool is_signaled = false;
  std::optional<std::uint32_t> unexpected_seen = {};  // as adapters, of this 16 bits count
};
struct TagEntry {
  std::uint64_t wr_id = 0;
  std::uint64_t tag = 0;  // matches where it equals the message's tag under the mask
  std::uint64_t mask = 0;
  std::span<const Sge> sges = {};
};

class TagMatcher {
 public:
  // `tags_max` entries, up to kTagsMax. Operations complete in `completions`.
  TagMatcher(std::uint32_t tags_max, queues::CompletionQueue& completions);
  TagMatcher(const TagMatcher&) = delete;
  TagMatcher& operator=(const TagMatcher&) = delete;

  // -- for the program
  enum class AddError : std::uint8_t { kFull, kTooManySges };
  Result<TagHandle, AddError> add(const TagRequest& request, const TagEntry& entry);
  // Completes in error when a message has taken it already.
  void remove(const TagRequest& request, TagHandle handle);
  void synchronize(const TagRequest& request);

  // -- for responders
  // The first entry that matches, with its buffers in `out`: it is the caller's until it gives it
  // back. None: the message is unexpected, and counted as that.
  std::optional<TagHandle> match(std::uint64_t tag, queues::Receive& out);
  // It never was there: nobody will hear of it.
  void forget_unexpected();
  // Again as before, in its old place.
  void put_back(TagHandle handle);
  void consume(TagHandle handle);

  // -- for the queue pair that has matched it
  void keep(TagHandle handle, const Rendezvous& rendezvous);
  const Rendezvous& rendezvous(TagHandle handle) const { return entry_of(handle).rendezvous; }
  std::uint64_t wr_id(TagHandle handle) const { return entry_of(handle).wr_id; }
  std::span<const Sge> sges(TagHandle handle) const {
    const Entry& entry = entry_of(handle);
    return {entry.sges, entry.sge_count};
  }
  // Those that wait for their turn are a list of the queue pair's.
  TagHandle& next(TagHandle handle) { return entry_of(handle).next_of_queue_pair; }

  queues::CompletionQueue& completions() { return completions_; }

 private:
  static constexpr std::uint16_t kNone = 0xffff;
  static constexpr std::uint32_t kIndexMask = kTagsMax - 1;
  static_assert((kTagsMax & kIndexMask) == 0);

  enum class State : std::uint8_t { kFree, kListed, kTaken };
  struct Entry {
    State state = State::kFree;
    bool is_waiting = false;  // for the program to have seen what was unexpected
    std::uint16_t before = kNone;
    std::uint16_t after = kNone;
    std::uint16_t sge_count = 0;
    std::uint32_t handle = 0;
    std::uint64_t wr_id = 0;
    std::uint64_t tag = 0;
    std::uint64_t mask = 0;
    Rendezvous rendezvous;
    TagHandle next_of_queue_pair;
    Sge sges[kTagSgeMax];
  };
  Entry& entry_of(TagHandle handle) const { return entries_[handle.value & kIndexMask]; }
  // Null: not there any more, or there never was one.
  Entry* find_listed(TagHandle handle);

  // With the lock.
  void note_seen(const TagRequest& request);
  bool is_synchronous() const {
    return static_cast<std::uint16_t>(unexpected_ - unexpected_seen_) == 0;
  }
  void arm_waiting();
  void unlink(std::uint16_t index);
  void give_back(std::uint16_t index);
  void complete(const TagRequest& request, queues::CompletionKind kind, queues::Status status);

  Mutex lock_;
  queues::CompletionQueue& completions_;
  const std::uint32_t tags_max_;
  std::unique_ptr<Entry[]> entries_;
  std::uint16_t free_ = kNone;
  std::uint16_t first_ = kNone;
  std::uint16_t last_ = kNone;
  std::uint16_t first_waiting_ = kNone;
  std::uint32_t unexpected_ = 0;
  std::uint32_t unexpected_seen_ = 0;
};

}  // namespace verbena::qp
