// SPDX-License-Identifier: MIT
// Two connected queue pairs with a completion queue each, for tables of what goes wrong: what each
// end hears, and the state in which it ends. Protection domains: `pd` of both ends, and `other_pd`.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {

class TwoEnds : public VerbsTest {
 public:
  struct Options {
    std::uint8_t reads = 4;  // that may be on their way
    std::uint8_t rnr_retry = 7;
    std::uint8_t timeout = 14;
    std::uint8_t retries = 7;
    unsigned far_access =
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    bool has_srq = false;  // the far end, in other_pd
  };
  struct Row {
    const char* name;
    ibv_qp_type type;
    void (*act)(TwoEnds&);
    std::optional<ibv_wc_status> near;  // of its first completion; none: there is none
    ibv_qp_state near_state;
    std::optional<ibv_wc_status> far;
    ibv_qp_state far_state;
    Options options = {};
  };
  // Acts, and looks at what each end has come to.
  void check(const Row& row);

  using VerbsTest::address;
  using VerbsTest::cq;
  using VerbsTest::memory;
  using VerbsTest::mr;
  using VerbsTest::next_completion;
  using VerbsTest::pd;

  // What rows do. `near` asks, `far` answers.
  ibv_sge piece(std::uint32_t length, std::uint32_t key) const {
    return {.addr = address(0), .length = length, .lkey = key};
  }
  void post(ibv_wr_opcode opcode, const std::function<void(ibv_send_wr&)>& change = {}) const;
  void post_receive(std::uint32_t length, std::uint32_t key) const;
  Own<ibv_mr> reg(ibv_pd* domain, int access);
  // Its memory was taken away after it was registered.
  ibv_mr* region_without_memory();
  ibv_sge all_of(const ibv_mr* region) const {
    return {
        .addr = reinterpret_cast<std::uintptr_t>(region->addr), .length = 64, .lkey = region->lkey};
  }
  ibv_mw* new_window(ibv_pd* domain, ibv_mw_type type);
  void post_bind(ibv_mw* mw, ibv_mr* region, ibv_qp* qp = nullptr) const;  // at near
  // The key of a type 2 window in other_pd, bound on a queue pair there.
  std::uint32_t bound_elsewhere();
  ibv_ah* address_in(ibv_pd* domain);
  ibv_qp* another(ibv_pd* domain);  // connected with itself, completions at `cq`

  Own<ibv_pd> other_pd;
  Own<ibv_mr> foreign;  // as mr, in other_pd, and may be bound
  Own<ibv_mr> bindable;
  Own<ibv_cq> near_cq;
  Own<ibv_cq> far_cq;
  Own<ibv_srq> srq;
  Own<ibv_qp> near;
  Own<ibv_qp> far;

 protected:
  void SetUp() override;
  void TearDown() override;

 private:
  void join(ibv_qp* qp, ibv_qp* peer, const Options& options, bool is_far);
  std::optional<ibv_wc> first_of(ibv_cq* completions, bool is_expected);
  std::optional<ibv_wc> first_of(ibv_cq* completions, std::chrono::milliseconds patience);
  void wait_until_one_arrives();
  void expect_flush();

  Own<ibv_mr> without_memory_;
  std::vector<ibv_mw*> windows_;
  std::vector<ibv_ah*> addresses_;
  std::vector<ibv_qp*> others_;
};

// For rows.
inline constexpr auto kNone = std::nullopt;
inline void to_far(TwoEnds& t, ibv_send_wr& request, ibv_ah* ah) {
  request.wr.ud = {.ah = ah, .remote_qpn = t.far->qp_num, .remote_qkey = 0x1234};
}

}  // namespace verbena::verbs::testing
