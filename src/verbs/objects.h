// SPDX-License-Identifier: MIT
// What stands behind the pointers that programs hold. Each of these structs begins with the public
// one of <infiniband/verbs.h>, whose fields programs read, and points to the NIC's object, whose
// cookie points back. `own(p)` goes from the public pointer to ours.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/mutex.h"
#include "nic/counters.h"
#include "nic/flows.h"
#include "nic/objects.h"
#include "nic/work_queues.h"
#include "queues/completion_queue.h"
#include "verbs/abi/entry.h"
#include "verbs/shareable.h"

namespace verbena::verbs {

class SendBuilder;

// The only port of our devices.
inline constexpr std::uint32_t kPort = 1;

// Lives while it is listed, in somebody's list, or open.
struct Device {
  DeviceShell shell;
  nic::Device description;
  int index = 0;  // place in the list; uverbs<index>
  std::atomic<std::uint32_t> holders{1};
  Device* next_known = nullptr;
};

// Outlives ibv_close_device while objects are left: sloppy programs destroy them later.
struct Context {
  verbs_context table;
  std::unique_ptr<nic::Context> nic;
  Device* device = nullptr;
  std::atomic<std::uint32_t> holders{1};
  std::atomic<std::uint32_t> handles{0};
  bool owns_command_fd = false;  // an imported one
  Listed<Context> listed;

  bool is_usable() const { return nic->is_usable(); }
  std::uint32_t new_handle() { return handles.fetch_add(1, std::memory_order_relaxed); }
};

// Says that its user does without locks. Ours cost little, and keep a program right that errs.
struct Td {
  ibv_td face;
  std::atomic<std::uint32_t> dependents{0};
};

struct Pd {
  ibv_pd face;
  nic::Pd* nic = nullptr;
  Td* thread_domain = nullptr;  // of a parent domain
  bool is_imported = false;
  Listed<Pd> listed;  // neither of a parent domain nor of an imported one
};

struct Mr {
  ibv_mr face;
  nic::Mr* nic = nullptr;
  bool is_imported = false;  // not its own
  Listed<Mr> listed;
};

struct Mw {
  ibv_mw face;
  nic::Mw* nic = nullptr;
  Mutex binding;  // type 1: each bind has the next key
};

struct Dm {
  ibv_dm face;
  nic::Dm* nic = nullptr;
  bool is_imported = false;  // not its own
  Listed<Dm> listed;
};

struct Ah {
  ibv_ah face;
  nic::Ah* nic = nullptr;
};

struct Channel {
  ibv_comp_channel face;
  nic::Channel* nic = nullptr;
};

// An ibv_cq is the beginning of an ibv_cq_ex.
struct Cq {
  ibv_cq_ex face;
  nic::Cq* nic = nullptr;
  // Of ibv_start_poll ... ibv_end_poll.
  bool is_single_threaded = false;
  Mutex polling;
  queues::Completion current;
  nic::Pd* parent_domain = nullptr;  // that it was made on

  ibv_cq* plain() { return reinterpret_cast<ibv_cq*>(&face); }
};

struct Srq {
  ibv_srq face;
  nic::Srq* nic = nullptr;
};

struct Xrcd {
  ibv_xrcd face;
  nic::Xrcd* nic = nullptr;
};

struct Flow {
  ibv_flow face;
  nic::FlowHandle* nic = nullptr;
};

struct Counters {
  ibv_counters face;
  nic::Counters* nic = nullptr;
};

struct Wq {
  ibv_wq face;
  nic::Wq* nic = nullptr;
};

struct RwqTable {
  ibv_rwq_ind_table face;
  nic::RwqTable* nic = nullptr;
};

struct QpFace {
  ibv_qp_ex face;
  // What newer headers than ours have at this place: ibv_qp_ex::wr_flush.
  void (*wr_flush)(ibv_qp_ex*, std::uint32_t key, std::uint64_t address, std::size_t length,
                   std::uint8_t placement, std::uint8_t selectivity) = nullptr;
};

struct Qp : QpFace {
  nic::Qp* nic = nullptr;
  bool is_datagram = false;
  bool is_xrc = false;
  std::unique_ptr<SendBuilder> builder;  // none: not made for ibv_wr_*

  ibv_qp* plain() { return &face.qp_base; }
};

inline Device& own(ibv_device* device) { return *reinterpret_cast<Device*>(device); }
inline Context& own(ibv_context* context) {
  auto* const inner = reinterpret_cast<std::byte*>(context);
  return *reinterpret_cast<Context*>(inner - offsetof(verbs_context, context));
}
inline Pd& own(ibv_pd* pd) { return *reinterpret_cast<Pd*>(pd); }
inline Td& own(ibv_td* td) { return *reinterpret_cast<Td*>(td); }
inline Mr& own(ibv_mr* mr) { return *reinterpret_cast<Mr*>(mr); }
inline Mw& own(ibv_mw* mw) { return *reinterpret_cast<Mw*>(mw); }
inline Dm& own(ibv_dm* dm) { return *reinterpret_cast<Dm*>(dm); }
inline Ah& own(ibv_ah* ah) { return *reinterpret_cast<Ah*>(ah); }
inline Channel& own(ibv_comp_channel* channel) { return *reinterpret_cast<Channel*>(channel); }
inline Cq& own(ibv_cq* cq) { return *reinterpret_cast<Cq*>(cq); }
inline Cq& own(ibv_cq_ex* cq) { return *reinterpret_cast<Cq*>(cq); }
inline Srq& own(ibv_srq* srq) { return *reinterpret_cast<Srq*>(srq); }
inline Xrcd& own(ibv_xrcd* xrcd) { return *reinterpret_cast<Xrcd*>(xrcd); }
inline Flow& own(ibv_flow* flow) { return *reinterpret_cast<Flow*>(flow); }
inline Counters& own(ibv_counters* counters) { return *reinterpret_cast<Counters*>(counters); }
inline Wq& own(ibv_wq* wq) { return *reinterpret_cast<Wq*>(wq); }
inline RwqTable& own(ibv_rwq_ind_table* table) { return *reinterpret_cast<RwqTable*>(table); }
inline Qp& own(ibv_qp* qp) { return *reinterpret_cast<Qp*>(qp); }
inline Qp& own(ibv_qp_ex* qp) { return *reinterpret_cast<Qp*>(qp); }

// Whether the object was made by the parent of this process.
template <class Object>
bool is_inherited(const Object* object) {
  return !own(object->context).is_usable();
}

// The public count of acknowledged events. What destroying waits for is the NIC's own count.
template <class Object>
void note_acknowledged(Object& object, std::uint32_t& acknowledged, std::uint32_t count) {
  pthread_mutex_lock(&object.mutex);
  acknowledged += count;
  pthread_mutex_unlock(&object.mutex);
}

// The lock and condition that are public parts of queue pairs and shared receive queues.
template <class Object>
void init_locks(Object& object) {
  pthread_mutex_init(&object.mutex, nullptr);
  pthread_cond_init(&object.cond, nullptr);
}
template <class Object>
void destroy_locks(Object& object) {
  pthread_cond_destroy(&object.cond);
  pthread_mutex_destroy(&object.mutex);
}

// Of a device and a context, from any thread.
void hold(Device& device);
void release(Device* device);
void hold(Context& context);
void release(Context* context);

// For ibv_context::ops.
int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) noexcept;
int post_receive(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) noexcept;
int post_shared_receive(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) noexcept;
ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept;
int dealloc_mw(ibv_mw* mw) noexcept;
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* wanted) noexcept;
int poll_cq(ibv_cq* cq, int room, ibv_wc* to) noexcept;
int request_notification(ibv_cq* cq, int solicited_only) noexcept;

// For verbs_context.
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* wanted) noexcept;
int dealloc_td(ibv_td* td) noexcept;
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* wanted) noexcept;
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attributes, std::size_t size) noexcept;
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes,
               std::size_t size) noexcept;
int query_real_time(ibv_context* context, ibv_values_ex* values) noexcept;
ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* wanted) noexcept;
int free_dm(ibv_dm* dm) noexcept;
ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, std::uint64_t offset, std::size_t length,
                  unsigned access) noexcept;
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, std::uint32_t flags, ibv_sge* list,
              std::uint32_t count) noexcept;
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* wanted) noexcept;
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* wanted) noexcept;
int post_srq_ops(ibv_srq* srq, ibv_ops_wr* first, ibv_ops_wr** bad) noexcept;
ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept;
ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* wanted) noexcept;
ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* wanted) noexcept;
ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* wanted) noexcept;
int close_xrcd(ibv_xrcd* xrcd) noexcept;
int get_srq_number(ibv_srq* srq, std::uint32_t* number) noexcept;
ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* wanted) noexcept;
int modify_qp_rate_limit(ibv_qp* qp, ibv_qp_rate_limit_attr* wanted) noexcept;
ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* wanted) noexcept;
int destroy_flow(ibv_flow* flow) noexcept;
ibv_counters* create_counters(ibv_context* context, ibv_counters_init_attr* wanted) noexcept;
int destroy_counters(ibv_counters* counters) noexcept;
int attach_counters(ibv_counters* counters, ibv_counter_attach_attr* wanted,
                    ibv_flow* flow) noexcept;
int read_counters(ibv_counters* counters, std::uint64_t* values, std::uint32_t count,
                  std::uint32_t flags) noexcept;
ibv_wq* create_wq(ibv_context* context, ibv_wq_init_attr* wanted) noexcept;
int modify_wq(ibv_wq* wq, ibv_wq_attr* wanted) noexcept;
int destroy_wq(ibv_wq* wq) noexcept;
ibv_rwq_ind_table* create_rwq_table(ibv_context* context,
                                    ibv_rwq_ind_table_init_attr* wanted) noexcept;
int destroy_rwq_table(ibv_rwq_ind_table* table) noexcept;

// Puts the functions of ibv_start_poll and the readers into an extended completion queue.
void set_readers(ibv_cq_ex& cq);
// Puts the functions of ibv_wr_start and its company into an extended queue pair.
void set_builders(Qp& qp);

}  // namespace verbena::verbs
