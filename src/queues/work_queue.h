// SPDX-License-Identifier: MIT
// The send queue of a queue pair; receive queues are in receive_queue.h.
//
// Its memory is an array of fixed strides that hold a SendWqe. This layout will be
// public (verbena/dv.h): RDMA programs that modify work requests by RDMA depend on it, so it has no
// pointers into our objects and no hidden state. The NIC takes a snapshot when it fetches a work
// request, not when it is posted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/types.h"
#include "queues/receive_queue.h"

namespace verbena::queues {

enum class SendOpcode : std::uint8_t {
  kSend,
  kSendWithImmediate,
  kSendWithInvalidate,
  kWrite,
  kWriteWithImmediate,
  kRead,
  kCompareSwap,
  kFetchAdd,
  kLocalInvalidate,
  kFlush,
  kAtomicWrite,
  kBindWindow,
};

enum SendFlag : std::uint8_t {
  kSignaled = 1,
  kSolicited = 2,
  kFence = 4,
  kInline = 8,
  kInternal = 128,  // posted by the queue pair itself
};

// One work request of a send queue: 48 bytes, then sge_count SGEs of 16 bytes, or inline_length
// bytes of payload.
struct SendWqe {
  std::uint64_t wr_id;
  std::uint8_t opcode;  // SendOpcode
  std::uint8_t flags;   // SendFlag
  std::uint16_t sge_count;
  std::uint32_t immediate;  // network order; or the key to invalidate, host order
  std::uint64_t remote_address;
  std::uint32_t remote_key;
  std::uint32_t inline_length;
  union {
    struct {
      std::uint64_t compare_add;
      std::uint64_t swap;
    } atomic;
    // Binding a window: remote_address and remote_key are of what it is bound to, and immediate is
    // the window's new key.
    struct {
      std::uint64_t length;
      std::uint64_t access;
    } bind;
    struct {
      std::uint32_t length;
      std::uint32_t what;  // qp::Flush
      std::uint64_t reserved;
    } flush;
    struct {
      std::uint32_t address_handle;  // the number of an address handle of this NIC
      std::uint32_t qp;
      std::uint32_t qkey;
      std::uint32_t pd;  // of the address handle; 0: the queue pair's
    } datagram;
    struct {
      std::uint32_t number;  // of the peer's shared receive queue; of atomics in `immediate`
      std::uint32_t reserved[3];
    } xrc;
  };
};
static_assert(sizeof(SendWqe) == 48);
inline constexpr std::size_t kWqeAlign = 64;

// Not locked: the queue pair's lock guards it.
class SendQueue {
 public:
  // Room for `depth` work requests (rounded up to a power of two; 0 stays 0), each with `sge_max`
  // SGEs or `inline_max` bytes. A stride is a multiple of 64 bytes, one cache line for 1 SGE or 16
  // bytes.
  SendQueue(std::uint32_t depth, std::uint32_t sge_max, std::uint32_t inline_max);
  // Inline bytes that have room in a stride for all that: at least `inline_max`.
  static std::uint32_t inline_room(std::uint32_t sge_max, std::uint32_t inline_max);
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  std::uint32_t depth() const { return depth_; }
  std::uint32_t sge_max() const { return sge_max_; }
  std::uint32_t inline_max() const { return inline_max_; }
  std::size_t stride() const { return stride_; }

  // Posting: the stride to fill next, or null when full. `post` makes it visible, or so many that
  // nobody will look at.
  SendWqe* room();
  void post(std::uint32_t count = 1) { posted_ += count; }
  // Work requests that are done as soon as they are posted, on an empty queue: they take no place.
  void post_done(std::uint32_t count = 1) {
    posted_ += count;
    freed_ += count;
  }

  // A work request's place is the program's again once its completion was taken (IBTA vol 1,
  // 10.8.5.1): who posts until there is no room finds room in the completion queue, too. Where that
  // of the last one in the stride of `index` lies (CompletionQueue::push()), or 0.
  void completed(std::uint32_t index, std::uint32_t place) { completed_at_[index & mask_] = place; }
  std::uint32_t completed_at(std::uint32_t index) const { return completed_at_[index & mask_]; }

  // Fetching by index: valid for freed() <= index < posted(). What it holds may be written by
  // others at any time: its counts are not to be trusted.
  const SendWqe& at(std::uint32_t index) const;
  // Copies the work request out of reach of whoever writes the queue's memory. False when it is not
  // one of this queue: an unknown opcode, or more SGEs or inline bytes than fit. `to` has stride()
  // bytes, aligned as a SendWqe.
  bool snapshot(std::uint32_t index, std::span<std::byte> to) const;
  // Of a snapshot.
  static std::span<const Sge> sges(const SendWqe& wqe);
  static std::span<const std::byte> inline_payload(const SendWqe& wqe);
  static std::uint64_t payload_length(const SendWqe& wqe);
  static Sge* sge_room(SendWqe& wqe) { return reinterpret_cast<Sge*>(&wqe + 1); }
  static std::byte* inline_room(SendWqe& wqe) { return reinterpret_cast<std::byte*>(&wqe + 1); }

  // Indices count all work requests since reset(), from `first` on, and wrap at 2^32.
  std::uint32_t posted() const { return posted_; }
  std::uint32_t freed() const { return freed_; }
  std::uint32_t used() const { return posted_ - freed_; }
  void free_upto(std::uint32_t index);  // all below `index` may be overwritten
  void reset(std::uint32_t first = 0);

 private:
  // Of zeros that nobody has touched yet.
  struct Free {
    void operator()(std::uint32_t* zeros) const { std::free(zeros); }
  };
  SendWqe* place_of(std::uint32_t index) const;

  std::uint32_t depth_;
  std::uint32_t mask_;  // of an index; 0 as well where there is no place
  std::uint32_t sge_max_;
  std::uint32_t inline_max_;
  std::size_t stride_;
  std::unique_ptr<std::byte[]> memory_;  // aligned to kWqeAlign inside
  std::unique_ptr<std::uint32_t[], Free> completed_at_;
  std::byte* base_;
  std::uint32_t posted_ = 0;
  std::uint32_t freed_ = 0;
};

}  // namespace verbena::queues
