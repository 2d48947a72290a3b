// SPDX-License-Identifier: MIT
// Verbs that this NIC does not have, refused as their manual pages say a device may.
#include <cerrno>

#include "verbs/abi/entry.h"

// Enhanced connection establishment negotiates features of one vendor's adapters; librdmacm takes
// EOPNOTSUPP as "none".
int ibv_set_ece(ibv_qp*, ibv_ece*) { return errno = EOPNOTSUPP; }

int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return errno = EOPNOTSUPP;
}
