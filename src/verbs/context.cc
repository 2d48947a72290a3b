// SPDX-License-Identifier: MIT
// Opening and closing a device (ibv_open_device(3)), and the tables of an open one.
#include "verbs/abi/context.h"

#include <unistd.h>

#include "nic/nic.h"
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

// Completion vectors spread interrupts over processors. Completion events come from whoever works
// for the NIC, so every vector is as good as any other; programs want one for each processor.
int completion_vectors() {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  return processors > 0 ? static_cast<int>(processors) : 1;
}

// After the program's own, which may use verbs to the last. Nothing is taken down.
[[gnu::destructor]] void leave() { nic::Nic::leave(); }

void fill_tables(verbs_context& table) {
  table.query_port = query_port;
  table.query_device_ex = query_device_ex;
  table.query_rt_values = query_real_time;
  table.alloc_td = alloc_td;
  table.dealloc_td = dealloc_td;
  table.alloc_parent_domain = alloc_parent_domain;
  table.advise_mr = advise_mr;
  table.alloc_dm = alloc_dm;
  table.free_dm = free_dm;
  table.reg_dm_mr = reg_dm_mr;
  table.alloc_null_mr = alloc_null_mr;
  table.create_cq_ex = create_cq_ex;
  table.modify_cq = modify_cq;
  table.post_srq_ops = post_srq_ops;
  table.create_srq_ex = create_srq_ex;
  table.create_qp_ex = create_qp_ex;
  table.get_srq_num = get_srq_number;
  table.open_xrcd = open_xrcd;
  table.close_xrcd = close_xrcd;
  table.open_qp = open_qp;
  table.modify_qp_rate_limit = modify_qp_rate_limit;
  table.ibv_create_flow = create_flow;
  table.ibv_destroy_flow = destroy_flow;
  // Programs built with the first headers that had flows look there.
  table.ABI_placeholder1 = reinterpret_cast<void (*)()>(create_flow);
  table.ABI_placeholder2 = reinterpret_cast<void (*)()>(destroy_flow);
  table.create_counters = create_counters;
  table.destroy_counters = destroy_counters;
  table.attach_counters_point_flow = attach_counters;
  table.read_counters = read_counters;
  table.create_wq = create_wq;
  table.modify_wq = modify_wq;
  table.destroy_wq = destroy_wq;
  table.create_rwq_ind_table = create_rwq_table;
  table.destroy_rwq_ind_table = destroy_rwq_table;
  ibv_context_ops& ops = table.context.ops;
  ops.post_send = post_send;
  ops.post_recv = post_receive;
  ops.post_srq_recv = post_shared_receive;
  ops.poll_cq = poll_cq;
  ops.alloc_mw = alloc_mw;
  ops.dealloc_mw = dealloc_mw;
  ops.bind_mw = bind_mw;
  ops.req_notify_cq = request_notification;
}

Result<ibv_context*, nic::Error> open(Device& device) {
  auto nic = nic::Context::open(device.description);
  if (!nic) return refuse(nic.error());
  auto context = std::make_unique<Context>();
  context->nic = std::move(*nic);
  context->device = &device;
  hold(device);
  init_context(context->table, device.shell.device);
  fill_tables(context->table);
  context->table.context.async_fd = context->nic->async_events().fd();
  // What ibv_import_device takes: it need not be one more descriptor.
  context->table.context.cmd_fd = context->table.context.async_fd;
  context->table.context.num_comp_vectors = completion_vectors();
  shareables().contexts.add(*context);
  return &context.release()->table.context;
}

}  // namespace

void hold(Context& context) { context.holders.fetch_add(1, std::memory_order_relaxed); }

void release(Context* context) {
  if (context->holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (context->is_usable()) shareables().contexts.remove(*context);
  if (context->owns_command_fd) close(context->table.context.cmd_fd);
  destroy_context(context->table);
  Device* const device = context->device;
  delete context;
  release(device);
}

}  // namespace verbena::verbs

using namespace verbena;

ibv_context* ibv_open_device(ibv_device* device) {
  return verbs::pointer_at_border([&] { return verbs::open(verbs::own(device)); });
}

int ibv_close_device(ibv_context* context) {
  verbs::release(&verbs::own(context));
  return 0;
}
