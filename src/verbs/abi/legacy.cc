// SPDX-License-Identifier: MIT
// The entries of libibverbs 1.0 (2006), 33 under the node IBVERBS_1.0 and ibv_register_driver under
// 1.1.
//
// Decision: they are exported, and refuse with ENOSYS. In 1.0 the structures were laid out
// differently (a context had other operations, a device no embedded names), and the inlines of that
// header read them directly, so a program of then can only be served by a full set of translated
// objects. No program of a current distribution imports one of these names, which are there so that
// the library as a whole answers to every name that rdma-core's does. The first call of such a
// program is ibv_get_device_list: it learns that there are no devices, and gets no object to call
// the others with.
//
// Programs linked without symbol versions bind to these too (the oldest node), and get the same
// answer.
#include <cerrno>

#include "verbs/abi/entry.h"

// Defines legacy_<name> and exports it as <name>@<node>, never as the default.
#define VERBENA_LEGACY(node, type, name, ...)                                       \
  extern "C" [[gnu::visibility("default")]] type legacy_##name __VA_ARGS__ __asm__( \
      ".symver legacy_" #name "," #name "@" #node);

#define REFUSE(type, name, answer)        \
  VERBENA_LEGACY(                         \
      IBVERBS_1.0, type, ibv_##name, () { \
        errno = ENOSYS;                   \
        return answer;                    \
      })
#define REFUSE_WITH_NULL(name) REFUSE(void*, name, nullptr)
#define REFUSE_WITH_ERRNO(name) REFUSE(int, name, ENOSYS)
#define REFUSE_WITH_MINUS_ONE(name) REFUSE(int, name, -1)
#define IGNORE(name) VERBENA_LEGACY(IBVERBS_1.0, void, ibv_##name, (){})

VERBENA_LEGACY(
    IBVERBS_1.0, void*, ibv_get_device_list, (int* count) {
      if (count) *count = 0;
      errno = ENOSYS;
      return nullptr;
    })
IGNORE(free_device_list)
REFUSE_WITH_NULL(get_device_name)
REFUSE(__be64, get_device_guid, 0)
REFUSE_WITH_NULL(open_device)
REFUSE_WITH_ERRNO(close_device)
REFUSE_WITH_ERRNO(query_device)
REFUSE_WITH_ERRNO(query_port)
REFUSE_WITH_MINUS_ONE(query_gid)
REFUSE_WITH_MINUS_ONE(query_pkey)

REFUSE_WITH_NULL(alloc_pd)
REFUSE_WITH_ERRNO(dealloc_pd)
REFUSE_WITH_NULL(reg_mr)
REFUSE_WITH_ERRNO(dereg_mr)
REFUSE_WITH_NULL(create_ah)
REFUSE_WITH_ERRNO(destroy_ah)

REFUSE_WITH_NULL(create_cq)
REFUSE_WITH_ERRNO(resize_cq)
REFUSE_WITH_ERRNO(destroy_cq)
REFUSE_WITH_MINUS_ONE(get_cq_event)
IGNORE(ack_cq_events)
REFUSE_WITH_MINUS_ONE(get_async_event)
IGNORE(ack_async_event)

REFUSE_WITH_NULL(create_srq)
REFUSE_WITH_ERRNO(modify_srq)
REFUSE_WITH_ERRNO(query_srq)
REFUSE_WITH_ERRNO(destroy_srq)
REFUSE_WITH_NULL(create_qp)
REFUSE_WITH_ERRNO(modify_qp)
REFUSE_WITH_ERRNO(query_qp)
REFUSE_WITH_ERRNO(destroy_qp)
REFUSE_WITH_ERRNO(attach_mcast)
REFUSE_WITH_ERRNO(detach_mcast)

// How drivers announced themselves until 2008: taken, and forgotten, as verbs_register_driver_34
// does.
VERBENA_LEGACY(IBVERBS_1.1, void, ibv_register_driver, (){})
