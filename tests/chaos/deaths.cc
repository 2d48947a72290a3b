// SPDX-License-Identifier: MIT
#include "deaths.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace chaos {
namespace {

// Nothing that was inherited works, and nothing hangs or crashes.
int try_inherited(const Inherited& inherited) {
  int wrong = 0;
  const auto check = [&](bool is_right, const char* what) {
    if (is_right) return;
    std::fprintf(stderr, "FAIL a forked child: %s\n", what);
    ++wrong;
  };
  if (inherited.qp) {
    ibv_send_wr request{};
    ibv_send_wr* bad = nullptr;
    request.opcode = IBV_WR_RDMA_WRITE;
    check(ibv_post_send(inherited.qp, &request, &bad) == EIO, "ibv_post_send is not EIO");
    ibv_recv_wr receive{};
    ibv_recv_wr* bad_receive = nullptr;
    check(ibv_post_recv(inherited.qp, &receive, &bad_receive) == EIO, "ibv_post_recv is not EIO");
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    check(ibv_modify_qp(inherited.qp, &attributes, IBV_QP_STATE) == EIO, "ibv_modify_qp");
  }
  ibv_wc completion{};
  if (inherited.cq) check(ibv_poll_cq(inherited.cq, 1, &completion) < 0, "ibv_poll_cq");
  check(!ibv_alloc_pd(inherited.context) && errno == EIO, "ibv_alloc_pd");
  static char memory[64];
  check(!ibv_reg_mr(inherited.pd, memory, sizeof memory, 0) && errno == EIO, "ibv_reg_mr");
  return wrong;
}

[[noreturn]] void live_on(const Inherited& inherited, int driver) {
  close(driver);
  alarm(60);  // a child that hangs shows as one that was killed
  const int wrong = try_inherited(inherited);
  usleep(300'000);
  _exit(wrong == 0 ? 0 : 1);
}

}  // namespace

void die(std::string_view how, const Inherited& inherited, int driver) {
  if (how == "exit") exit(0);
  if (how == "abort") abort();
  if (how == "segv") {
    volatile std::uintptr_t nowhere = 8;  // seen by the compiler, it would refuse
    *reinterpret_cast<volatile int*>(nowhere) = 1;
  }
  if (how == "exec") execl("/bin/sleep", "sleep", "0.5", nullptr);
  if (how == "fork" && fork() == 0) live_on(inherited, driver);
  _exit(0);
}

void have_a_child(const Inherited& inherited, int driver) {
  std::signal(SIGCHLD, SIG_IGN);  // the kernel reaps it
  if (fork() == 0) live_on(inherited, driver);
}

}  // namespace chaos
