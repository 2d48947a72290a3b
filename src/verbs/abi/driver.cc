// SPDX-License-Identifier: MIT
// The node IBVERBS_PRIVATE_34: what rdma-core keeps for its own drivers. Programs reach
// libmlx5.so.1 and libefa.so.1 through UCX, libfabric, perftest or pyverbs, and those two import
// nearly all of it at load. Verbena has no drivers, so of the 71 entries only the constructor's
// verbs_register_driver_34 and ibv_query_gid_type (queries.cc) are ever called for a device of
// ours; the others refuse with EOPNOTSUPP, whatever they are given, and touch nothing.
#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "base/log.h"
#include "verbs/abi/entry.h"

#define VERBENA_DRIVER_ENTRY extern "C" [[gnu::visibility("default")]]

// The commands to a kernel driver: ibv_cmd_<name>, 59 of them. Each returns an int; the arguments
// are the driver's affair (the caller of a C function removes them, so none need to be declared).
// clang-format off
#define DRIVER_COMMANDS(X) \
  X(advise_mr) X(alloc_dm) X(alloc_mw) X(alloc_pd) X(attach_mcast) X(close_xrcd) X(create_ah) \
  X(create_counters) X(create_cq) X(create_cq_ex) X(create_flow) X(create_flow_action_esp) \
  X(create_qp) X(create_qp_ex) X(create_qp_ex2) X(create_rwq_ind_table) X(create_srq) \
  X(create_srq_ex) X(create_wq) X(dealloc_mw) X(dealloc_pd) X(dereg_mr) X(destroy_ah) \
  X(destroy_counters) X(destroy_cq) X(destroy_flow) X(destroy_flow_action) X(destroy_qp) \
  X(destroy_rwq_ind_table) X(destroy_srq) X(destroy_wq) X(detach_mcast) X(free_dm) \
  X(get_context) X(modify_cq) X(modify_flow_action_esp) X(modify_qp) X(modify_qp_ex) \
  X(modify_srq) X(modify_wq) X(open_qp) X(open_xrcd) X(post_recv) X(post_send) X(post_srq_recv) \
  X(query_context) X(query_device_any) X(query_mr) X(query_port) X(query_qp) X(query_srq) \
  X(read_counters) X(reg_dm_mr) X(reg_dmabuf_mr) X(reg_mr) X(req_notify_cq) X(rereg_mr) \
  X(resize_cq)
// clang-format on
#define REFUSE_COMMAND(name) \
  VERBENA_DRIVER_ENTRY int ibv_cmd_##name() { return EOPNOTSUPP; }
DRIVER_COMMANDS(REFUSE_COMMAND)
#undef REFUSE_COMMAND
#undef DRIVER_COMMANDS

// The one whose positive answer is a number of completions.
VERBENA_DRIVER_ENTRY int ibv_cmd_poll_cq() { return -EOPNOTSUPP; }

VERBENA_DRIVER_ENTRY int execute_ioctl() { return EOPNOTSUPP; }

// A driver makes room on its stack for this many attributes of 16 bytes and fills them before
// execute_ioctl refuses. How long the chain `link` is we cannot see, so the answer is generous.
VERBENA_DRIVER_ENTRY unsigned __ioctl_final_num_attrs(unsigned attribute_count, const void* link) {
  constexpr unsigned kLinkedMax = 64;
  return attribute_count + (link ? kLinkedMax : 0);
}

// Drivers announce themselves in their constructors. There is nothing for them to drive: taken, and
// forgotten.
VERBENA_DRIVER_ENTRY void verbs_register_driver_34(const void* operations) {
  LOG_DEBUG("driver %p registered and not used", operations);
}

VERBENA_DRIVER_ENTRY bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy = false;

VERBENA_DRIVER_ENTRY ibv_context* verbs_open_device(ibv_device* device, void* /*private_data*/) {
  return ibv_open_device(device);
}

// The making of a driver's own context. Refused at the start, so the other two never see one.
VERBENA_DRIVER_ENTRY void* _verbs_init_and_alloc_context() {
  errno = EOPNOTSUPP;
  return nullptr;
}
VERBENA_DRIVER_ENTRY void verbs_set_ops(verbs_context* /*context*/, const void* /*operations*/) {}
VERBENA_DRIVER_ENTRY void verbs_uninit_context(verbs_context* /*context*/) {}

VERBENA_DRIVER_ENTRY int ibv_read_ibdev_sysfs_file(char* buffer, std::size_t size,
                                                   void* /*sysfs_device*/, const char* /*format*/,
                                                   ...) {
  if (size > 0) *buffer = '\0';
  errno = EOPNOTSUPP;
  return -1;
}

// What a driver has to say goes where our own log goes; its levels are numbered like ours (1 error
// ... 4 debug).
VERBENA_DRIVER_ENTRY [[gnu::format(printf, 3, 4)]] void __verbs_log(verbs_context* /*context*/,
                                                                    std::uint32_t level,
                                                                    const char* format, ...) {
  using verbena::LogLevel;
  const auto ours =
      static_cast<LogLevel>(std::clamp<std::uint32_t>(level, 1, std::uint32_t(LogLevel::kDebug)));
  if (ours > verbena::log_level()) return;
  char line[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  verbena::log_line(ours, "driver: %s", line);
}
