// SPDX-License-Identifier: MIT
// The objects that programs hold. Each lives from its create call to its destroy call; `cookie`
// belongs to the C border (its own struct for the object) and comes back with events. In a child
// after fork every call answers kGone and only frees memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/time.h"
#include "base/types.h"
#include "host/fork_guard.h"
#include "memory/window_table.h"
#include "nic/device.h"
#include "nic/error.h"
#include "nic/events.h"
#include "qp/queue_pair.h"
#include "queues/completion_queue.h"
#include "queues/work_queue.h"
#include "raw/toeplitz.h"

namespace verbena::nic {

class Nic;
class Cq;
class Context;

enum class AsyncKind : std::uint8_t {
  kCqError,
  kQpFatal,
  kQpRequestError,
  kQpAccessError,
  kCommunicationEstablished,
  kSendQueueDrained,
  kLastReceiveReached,
  kSrqLimitReached,
  kWqFatal,
  // Of the device and its port: no object has these.
  kDeviceFatal,
  kPortError,
  kPortActive,
  kGidChange,
};

struct AsyncEvent {
  AsyncKind kind = AsyncKind::kQpFatal;
  void* cookie = nullptr;       // of the object, if there is one
  EventCount* count = nullptr;  // the same: acknowledge here
};

// An open device. Opening costs nothing: no thread, no slot, one descriptor for asynchronous
// events.
class Context {
 public:
  static Result<std::unique_ptr<Context>, Error> open(const Device& device);
  ~Context();

  const Device& device() const { return device_; }
  EventQueue<AsyncEvent>& async_events() { return *async_; }
  Nic& nic() { return *nic_.load(std::memory_order_relaxed); }
  // False in a child after fork, but for a context on which nothing was made: that one is the
  // child's own from its first use there on, so that daemon(3) after opening works. Two loads.
  bool is_usable() { return is_surely_usable() || move_to_child(); }
  // False also where is_usable() finds out.
  [[gnu::always_inline]] bool is_surely_usable() const {
    return guard_.load(std::memory_order_relaxed)->in_owner();
  }
  // Something was made on it, or is gone again: counted by domains, completion queues, channels.
  void count_objects(int by) { objects_.fetch_add(by, std::memory_order_relaxed); }
  // From the interface, a few milliseconds ago at most: addresses change while a device is open.
  std::vector<Gid> gids() const;
  bool port_is_up() const;
  // From OpenContexts, which knows all interfaces: tells the program what is other than it was the
  // last time, or in the list of devices.
  struct Seen {
    bool is_there = false;
    bool is_up = false;
    std::vector<Gid> gids;  // while it is up
  };
  void tell_changes(Seen now);

 private:
  Context(const Device& device, std::unique_ptr<EventQueue<AsyncEvent>> async, Nic& nic);
  bool move_to_child();
  Device present() const;
  Device ask() const;

  Device device_;
  mutable Mutex seen_lock_;
  mutable Device seen_;
  mutable Instant seen_until_;
  std::unique_ptr<EventQueue<AsyncEvent>> async_;
  Seen told_;  // OpenContexts's
  std::atomic<Nic*> nic_;
  std::atomic<const host::ForkGuard*> guard_;  // of nic_
  std::atomic<int> objects_{0};
};

// Blocks as the descriptor does. The event is counted as delivered to its object.
Result<AsyncEvent, Error> next_async_event(Context& context);

struct Pd {
  Context* context = nullptr;
  PdId id;
  Pd* parent = nullptr;  // of a parent domain: whose protection it gives
  std::atomic<std::uint32_t> dependents{0};
};
Result<Pd*, Error> alloc_pd(Context& context);
// Another handle on a domain, with dependents of its own.
Result<Pd*, Error> alloc_parent_domain(Pd& pd);
Result<void, Error> dealloc_pd(Pd* pd);  // kBusy while it has dependents

// The length of a region that is all of a program's memory, from address 0 on, now and later: with
// kOnDemand.
inline constexpr std::size_t kWholeMemory = ~std::size_t{0};

// Memory of the device. It is the host's, but peers of this host map it from the start, whatever is
// licensed for memory of the program.
struct Dm {
  Context* context = nullptr;
  std::byte* memory = nullptr;
  std::uint32_t length = 0;
  std::uint32_t size = 0;  // in whole pages
  bool is_shared = false;
  std::atomic<std::uint32_t> dependents{0};
};
// kNoRoom: more than Limits::device_memory_bytes in all. Zeros.
Result<Dm*, Error> alloc_dm(Context& context, std::size_t length);
Result<void, Error> free_dm(Dm* dm);  // kBusy while it has regions
// Between host memory and [offset, offset + length) of the device's; both multiples of 4.
Result<void, Error> copy_to_dm(Dm& dm, std::uint64_t offset, const void* from, std::size_t length);
Result<void, Error> copy_from_dm(Dm& dm, std::uint64_t offset, void* to, std::size_t length);

struct Mr {
  Pd* pd = nullptr;
  Dm* dm = nullptr;  // that it lies in
  MemoryKey key;
  std::uint64_t iova = 0;
  std::byte* address = nullptr;
  std::size_t length = 0;
  std::uint32_t access = 0;
  bool is_null = false;
};
// `access` as in verbs; bits 20-29 are optional and ignored when not known.
Result<Mr*, Error> reg_mr(Pd& pd, void* address, std::size_t length, std::uint64_t iova,
                          std::uint32_t access);
// Reads as zeros, and forgets what is written: at every address, for the program's own work
// requests only.
Result<Mr*, Error> alloc_null_mr(Pd& pd);
// Counts from 0, as its memory has no address for the program.
Result<Mr*, Error> reg_dm_mr(Pd& pd, Dm& dm, std::uint64_t offset, std::size_t length,
                             std::uint32_t access);
struct Rereg {
  bool change_translation = false;
  void* address = nullptr;
  std::size_t length = 0;
  Pd* pd = nullptr;  // null: the same
  std::optional<std::uint32_t> access;
};
// Both kBusy while windows are bound to it.
Result<void, Error> rereg_mr(Mr& mr, const Rereg& change);
Result<void, Error> dereg_mr(Mr* mr);

// A memory window. It is bound by work requests of queue pairs.
struct Mw {
  Pd* pd = nullptr;
  memory::WindowType type = memory::WindowType::kOne;
  MemoryKey key;  // the first one
};
Result<Mw*, Error> alloc_mw(Pd& pd, memory::WindowType type);
Result<void, Error> dealloc_mw(Mw* mw);

// Brings the pages behind ranges of regions of this domain. kReady: takes
// what is there already. kFault: a range is in no region with this right, or its memory is not
// there.
enum class Prefetch : std::uint8_t { kForReading, kForWriting, kReady };
Result<void, Error> prefetch(Pd& pd, Prefetch how, std::span<const Sge> ranges);

// A completion channel: its events are completion queues.
struct Channel {
  Context* context = nullptr;
  std::unique_ptr<EventQueue<Cq*>> queue;
  std::atomic<std::uint32_t> dependents{0};
};
Result<Channel*, Error> create_channel(Context& context);
Result<void, Error> destroy_channel(Channel* channel);  // kBusy while it has completion queues
// Blocks as the descriptor does. The event is counted as delivered to the queue.
Result<Cq*, Error> next_completion_event(Channel& channel);

class Cq final : public queues::CompletionEvents {
 public:
  Cq(Context& context, std::uint32_t capacity, Channel* channel, void* cookie,
     const queues::CompletionQueue::Extras& extras = {});

  // Calls take(const queues::Completion&) for up to `most` completions; when there are none, works
  // for the NIC and looks again (whoever polls drives). How many; negative: the queue is in error
  // and empty.
  template <class Take>
  int poll(std::size_t most, Take take) {
    if (queue.empty() && !drive()) [[unlikely]]
      return -1;
    const std::size_t taken = queue.take(most, take);
    if (taken == 0 && queue.is_overrun()) [[unlikely]]
      return -1;
    return static_cast<int>(taken);
  }
  int poll(std::span<queues::Completion> out);
  void arm(queues::Arm what);
  // A queue pair is about to push here, or never will again. With the lock of no queue pair.
  void begin_pushing();
  void end_pushing() { pushers_.fetch_sub(1); }
  // Pushes take a lock from now on.
  void lock_pushes();
  // At most so long after the first one, completions that are gathered into one event are told of.
  Duration moderation_period() const {
    return Duration::microseconds(period_.load(std::memory_order_relaxed));
  }
  void set_moderation_period(std::uint16_t microseconds) {
    period_.store(microseconds, std::memory_order_relaxed);
  }

  Context* context;
  Channel* channel;
  void* cookie;
  queues::CompletionQueue queue;
  EventCount completion_events;
  EventCount async_events;
  std::atomic<std::uint32_t> dependents{0};

 private:
  bool drive();
  void completion_event(queues::CompletionQueue&) override;
  void overrun_event(queues::CompletionQueue&) override;
  void moderation_began(queues::CompletionQueue&) override;

  std::atomic<std::uint16_t> period_{0};  // microseconds
  std::atomic<std::uint32_t> pushers_{0};
  std::atomic<bool> pushes_are_locked_;
};
struct CqOptions {
  bool has_timestamps = false;  // of clock_now()
  bool ignores_overrun = false;
};
Result<Cq*, Error> create_cq(Context& context, std::uint32_t capacity, Channel* channel,
                             void* cookie, const CqOptions& options = {});
// One event for `count` completions, or for what has come `period` microseconds after the first of
// them. Where either is 0 each has its own.
Result<void, Error> moderate_cq(Cq& cq, std::uint16_t count, std::uint16_t period);
Result<void, Error> resize_cq(Cq& cq, std::uint32_t capacity);
// kBusy while queue pairs use it; else waits until all its events are acknowledged.
Result<void, Error> destroy_cq(Cq* cq);

struct Xrcd;  // nic/xrc.h

class Srq final : public queues::ReceiveQueueEvents {
 public:
  Srq(Pd& domain, std::uint32_t depth, std::uint32_t sge_max, void* cookie);
  Pd* pd;
  void* cookie;
  QpNum number{};        // of one of an XRC domain
  Xrcd* xrcd = nullptr;  // with the next
  Cq* cq = nullptr;      // where its receives complete: of an XRC domain, or with tags
  queues::ReceiveQueue queue;
  std::unique_ptr<qp::TagMatcher> tags;
  EventCount async_events;
  std::atomic<std::uint32_t> dependents{0};

 private:
  void limit_reached() override;
};
Result<Srq*, Error> create_srq(Pd& pd, std::uint32_t depth, std::uint32_t sge_max, void* cookie);
// A new one matches tags from now on, and completes there: up to `tags_max` of them.
Result<void, Error> match_tags(Srq& srq, Cq& cq, std::uint32_t tags_max);
Result<void, Error> destroy_srq(Srq* srq);

struct Ah {
  Pd* pd = nullptr;
  std::uint32_t number = 0;
  qp::AddressVector path;
};
// The first one of a group on the loopback interface may wait for the wire.
Result<Ah*, Error> create_ah(Pd& pd, const qp::AddressVector& path);
Result<void, Error> destroy_ah(Ah* ah);

struct RwqTable;  // nic/work_queues.h

struct QpRequest {
  qp::QpType type = qp::QpType::kRc;
  qp::Xrc xrc = qp::Xrc::kNo;
  qp::SharedQueues* shared_queues = nullptr;  // XRC targets
  std::optional<QpNum> relayed_by = {};       // a hidden target (nic/xrc.h), for that one
  Cq* send_cq = nullptr;
  Cq* receive_cq = nullptr;
  Srq* srq = nullptr;
  bool signal_all = false;
  std::uint32_t send_depth = 1;
  std::uint32_t send_sge_max = 1;
  std::uint32_t inline_max = 0;
  std::uint32_t receive_depth = 0;
  std::uint32_t receive_sge_max = 1;
  bool is_work_queue = false;                // raw packets that others hand to it
  RwqTable* table = nullptr;                 // raw packets: it receives by these work queues,
  const raw::HashConfig* hashing = nullptr;  // and by this
  void* cookie = nullptr;
};
class Qp;  // nic/nic_qp.h
// The first one of a process takes its slot on this host and starts the NIC's threads.
Result<Qp*, Error> create_qp(Pd& pd, const QpRequest& request);
Result<void, Error> modify_qp(Qp& qp, const qp::QpAttributes& attributes, std::uint32_t mask);
// What was set, and the state now.
struct QpStatus {
  qp::QpAttributes attributes;
  bool is_draining = false;  // in SQD, and not everything that was begun is done
};
Result<QpStatus, Error> query_qp(Qp& qp);
// `cookie`: of an XRC target, which may have several; the last one ends it.
Result<void, Error> destroy_qp(Qp* qp, void* cookie = nullptr);
// UD only (ibv_attach_mcast(3)). While it is attached it cannot be destroyed.
Result<void, Error> attach_multicast(Qp& qp, const Gid& gid);
Result<void, Error> detach_multicast(Qp& qp, const Gid& gid);
const qp::QpConfig& config_of(const Qp& qp);
QpNum number_of(const Qp& qp);
EventCount& async_events_of(Qp& qp);

// Posts in order; `posted` tells how many were taken when it refuses. Sends start at once.
Result<void, qp::PostError> post_send(Qp& qp, std::span<const qp::SendRequest> requests,
                                      std::size_t& posted);
// Asks for the cache line of a small WRITE to this address of the peer, which is about to be
// posted. A hint: it may be any address.
void expect_write(const Qp& qp, std::uint64_t address);
void expect_send(const Qp& qp);
// The shortest way: of one SEND of a piece of memory, to be asked for first. False: it is not for
// that, and nothing has happened.
bool post_tiny(Qp& qp, std::uint64_t wr_id, std::uint8_t flags, Sge piece);
// The short way of any other request; the same.
bool post_small(Qp& qp, const qp::SmallRequest& request);
// All of them or none.
Result<void, qp::PostError> post_send_together(Qp& qp, std::span<const qp::SendRequest> requests);
Result<void, qp::PostError> post_receive(Qp& qp, std::uint64_t wr_id, std::span<const Sge> sges);
// The same of one piece of memory, to be asked for first. False: it takes the general way.
bool post_one_receive(Qp& qp, std::uint64_t wr_id, Sge piece);

}  // namespace verbena::nic
