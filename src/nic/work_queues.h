// SPDX-License-Identifier: MIT
// Work queues, tables of them, and receive-side scaling (ibv_create_wq(3),
// ibv_create_rwq_ind_table(3)): receive queues that are no queue pair's, and queue pairs that
// receive by many of them.
//
// Inside, a work queue is a queue pair of raw packets that only receives: it has a number, a state,
// a lock under which memory is touched, and the meaning of receives. A queue pair that receives by
// a table has no queues at all, and no state to move through: its work queues have theirs.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "nic/objects.h"
#include "raw/toeplitz.h"

namespace verbena::nic {

// Numbered as in verbs (enum ibv_wq_state).
enum class WqState : std::uint8_t { kReset = 0, kReady = 1, kError = 2 };

struct WqRequest {
  Cq* cq = nullptr;
  std::uint32_t depth = 0;
  std::uint32_t sge_max = 0;
  void* cookie = nullptr;
};

struct Wq {
  Qp* qp = nullptr;
  Mutex moving;  // one modification at a time
  std::atomic<std::uint32_t> dependents{0};
};
Result<Wq*, Error> create_wq(Pd& pd, const WqRequest& request);
// As the queue is now: a failed receive puts it into kError by itself.
WqState state_of(Wq& wq);
// `current`: refuse unless it is this.
Result<void, Error> modify_wq(Wq& wq, WqState to, const WqState* current);
Result<void, Error> destroy_wq(Wq* wq);  // kBusy while a table has it
Result<void, qp::PostError> post_receive(Wq& wq, std::uint64_t wr_id, std::span<const Sge> sges);

struct RwqTable {
  RwqTable(Context& of, std::vector<Wq*> entries);
  Context* context;
  std::vector<Wq*> queues;
  Cq cq;  // where nothing ever completes
  std::atomic<std::uint32_t> dependents{0};
};
// As many as a power of two, of this context.
Result<RwqTable*, Error> create_rwq_table(Context& context, std::span<Wq* const> queues);
Result<void, Error> destroy_rwq_table(RwqTable* table);  // kBusy while queue pairs use it

// Receives only, by the table, and as flows say.
Result<Qp*, Error> create_scaling_qp(Pd& pd, RwqTable& table, const raw::HashConfig& hashing,
                                     void* cookie);

// For queue pairs: which of its work queues a frame goes to.
class Scaling {
 public:
  Scaling(const RwqTable& table, const raw::HashConfig& hashing);
  QpNum queue_for(const raw::Key& key) const {
    return queues_[raw::hash_of(key, hashing_) & (queues_.size() - 1)];
  }

 private:
  std::vector<QpNum> queues_;
  raw::HashConfig hashing_;
};

}  // namespace verbena::nic
