// SPDX-License-Identifier: MIT
// The C border of librdmacm.so.1. Include this instead of <rdma/rdma_cma.h>, and first: it makes
// the header's functions visible. Inside, functions give 0 or an errno value; programs get 0 or -1
// and errno.
#pragma once

#include <cerrno>

#pragma GCC visibility push(default)
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#pragma GCC visibility pop

namespace verbena::rdmacm {

// For functions of rdma_cm, which give -1 and set errno.
inline int answer(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

}  // namespace verbena::rdmacm
