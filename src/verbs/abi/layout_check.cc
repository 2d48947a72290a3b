// SPDX-License-Identifier: MIT
// Holds the header that we are built with against layout_table.h: a program built with another
// rdma-core must find every member where ours are written. No code comes of it.
#include <infiniband/tm_types.h>
#include <pthread.h>

#include "verbs/abi/entry.h"
#include "verbs/abi/layout_table.h"

#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes));
#define GROWS(type, bytes) static_assert(sizeof(type) >= (bytes));
#define AT(type, member, offset) static_assert(offsetof(type, member) == (offset));
#define FROM_END(type, member, bytes) \
  static_assert(sizeof(type) - offsetof(type, member) == (bytes));

// Where a mutex has another size (arm64: 48 bytes) the objects that hold one differ, and nobody has
// measured them yet.
#if defined(__x86_64__)
VERBENA_SIZES(SIZE, GROWS)
VERBENA_PLACES(AT, FROM_END)
#endif
