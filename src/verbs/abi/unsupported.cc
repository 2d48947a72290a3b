// SPDX-License-Identifier: MIT
// Verbs that this NIC does not have, refused as their manual pages say a device may.
#include <cerrno>

#include "verbs/abi/entry.h"

namespace {

template <class Object>
Object* not_supported() {
  errno = EOPNOTSUPP;
  return nullptr;
}

}  // namespace

// Enhanced connection establishment negotiates features of one vendor's adapters; librdmacm takes
// EOPNOTSUPP as "none".
int ibv_set_ece(ibv_qp*, ibv_ece*) { return errno = EOPNOTSUPP; }

int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  *ece = {};
  return errno = EOPNOTSUPP;
}

// Sharing objects between processes by a passed descriptor of the device. What was never imported
// cannot be given back.
ibv_context* ibv_import_device(int) { return not_supported<ibv_context>(); }
ibv_pd* ibv_import_pd(ibv_context*, std::uint32_t) { return not_supported<ibv_pd>(); }
void ibv_unimport_pd(ibv_pd*) {}
ibv_mr* ibv_import_mr(ibv_pd*, std::uint32_t) { return not_supported<ibv_mr>(); }
void ibv_unimport_mr(ibv_mr*) {}
ibv_dm* ibv_import_dm(ibv_context*, std::uint32_t) { return not_supported<ibv_dm>(); }
void ibv_unimport_dm(ibv_dm*) {}
