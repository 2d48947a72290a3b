// SPDX-License-Identifier: MIT
#include "rdmacm/id.h"

#include "rdmacm/manager.h"

namespace verbena::rdmacm {

Id::Id(Manager& owner, rdma_port_space space, ibv_qp_type type)
    : rdma_cm_id{}, manager(owner), made_for(type) {
  ps = space;
  qp_type = type;
}

Id::~Id() = default;

}  // namespace verbena::rdmacm
