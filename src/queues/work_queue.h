// SPDX-License-Identifier: MIT
// Work queues: the send queue of a queue pair, and receive queues, its own or shared.
//
// The send queue's memory is an array of fixed strides that hold a SendWqe. This layout will be
// public (verbena/dv.h): RDMA programs that modify work requests by RDMA depend on it, so it has no
// pointers into our objects and no hidden state. The NIC takes a snapshot when it fetches a work
// request, not when it is posted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "base/types.h"

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
};

enum SendFlag : std::uint8_t {
  kSignaled = 1,
  kSolicited = 2,
  kFence = 4,
  kInline = 8,
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
    struct {
      std::uint32_t address_handle;  // the number of an address handle of this NIC
      std::uint32_t qp;
      std::uint32_t qkey;
      std::uint32_t reserved;
    } datagram;
  };
};
static_assert(sizeof(SendWqe) == 48);
inline constexpr std::size_t kWqeAlign = 64;

// Not locked: the queue pair's lock guards it.
class SendQueue {
 public:
  // Room for `depth` work requests (rounded up to a power of two), each with `sge_max` SGEs or
  // `inline_max` bytes.
  SendQueue(std::uint32_t depth, std::uint32_t sge_max, std::uint32_t inline_max);

  std::uint32_t depth() const { return depth_; }
  std::uint32_t sge_max() const { return sge_max_; }
  std::uint32_t inline_max() const { return inline_max_; }

  // Posting: the stride to fill next, or null when full. `post` makes it visible.
  SendWqe* room();
  void post() { ++posted_; }

  // Fetching by index: valid for freed() <= index < posted().
  const SendWqe& at(std::uint32_t index) const;
  static std::span<const Sge> sges(const SendWqe& wqe);
  static std::span<const std::byte> inline_payload(const SendWqe& wqe);
  static Sge* sge_room(SendWqe& wqe) { return reinterpret_cast<Sge*>(&wqe + 1); }

  // Indices count all work requests since reset() and wrap at 2^32.
  std::uint32_t posted() const { return posted_; }
  std::uint32_t freed() const { return freed_; }
  void free_upto(std::uint32_t index) { freed_ = index; }  // all below `index` may be overwritten
  void reset() { posted_ = freed_ = 0; }

 private:
  std::uint32_t depth_;
  std::uint32_t sge_max_;
  std::uint32_t inline_max_;
  std::size_t stride_;
  std::unique_ptr<std::byte[]> memory_;  // aligned to kWqeAlign inside
  std::byte* base_;
  std::uint32_t posted_ = 0;
  std::uint32_t freed_ = 0;
};

inline constexpr std::size_t kReceiveSgeMax = 32;

// A receive taken from its queue: a copy, since the queue's stride is free again at once.
struct Receive {
  std::uint64_t wr_id = 0;
  std::uint32_t sge_count = 0;
  Sge sges[kReceiveSgeMax];

  std::span<const Sge> list() const { return {sges, sge_count}; }
  std::uint64_t room() const;  // bytes in all SGEs
};

class ReceiveQueueEvents {
 public:
  // A shared receive queue went below its limit (IBTA vol 1, 10.2.9.2). Called without the queue's
  // lock; once per arming.
  virtual void limit_reached() = 0;

 protected:
  ~ReceiveQueueEvents() = default;
};

// First in, first out. Locked inside: many queue pairs may take from a shared one.
class ReceiveQueue {
 public:
  ReceiveQueue(std::uint32_t depth, std::uint32_t sge_max, ReceiveQueueEvents* events = nullptr);

  enum class PostError : std::uint8_t { kFull, kTooManySges };
  std::optional<PostError> post(std::uint64_t wr_id, std::span<const Sge> sges);
  // False when there is none.
  bool take(Receive& out);
  std::uint32_t waiting() const;
  std::uint32_t depth() const { return depth_; }
  std::uint32_t sge_max() const { return sge_max_; }
  void reset();

  // An event when fewer than `limit` receives are left; 0 disarms. False when above the depth.
  bool set_limit(std::uint32_t limit);
  std::uint32_t limit() const;
  // False when more than `depth` receives wait.
  bool resize(std::uint32_t depth);

 private:
  mutable Mutex lock_;
  std::uint32_t depth_;
  std::uint32_t sge_max_;
  std::unique_ptr<std::byte[]> memory_;
  std::uint32_t head_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t limit_ = 0;
  ReceiveQueueEvents* events_;
};

}  // namespace verbena::queues
