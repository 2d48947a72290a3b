// SPDX-License-Identifier: MIT
// For both processes of the tests of XRC domains of a file.
#pragma once

#include <cerrno>

#include "other_process.h"
#include "xrc.h"

namespace verbena::verbs::testing {

class XrcProcesses : public XrcTest {
 protected:
  // Its errno when there is none.
  int error_of_open(int fd, int flags) {
    errno = 0;
    return open(fd, flags) ? 0 : errno;
  }
  void connect_to(ibv_qp* qp, std::uint64_t number) {
    ibv_qp peer{};
    peer.qp_num = static_cast<std::uint32_t>(number);
    connect(qp, &peer);
  }
  static ibv_qp_state state_of(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    EXPECT_EQ(0, ibv_query_qp(qp, &attributes, IBV_QP_STATE, &initial));
    return attributes.qp_state;
  }
};

}  // namespace verbena::verbs::testing
