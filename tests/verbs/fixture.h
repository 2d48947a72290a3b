// SPDX-License-Identifier: MIT
// What most tests of the verbs need: the loopback device, which is always there, opened, with a
// protection domain; and pairs of connected queue pairs. Everything is destroyed without complaint,
// or the test fails.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "verbs/abi/entry.h"

namespace verbena::verbs::testing {

struct Destroy {
  void operator()(ibv_context* p) const { EXPECT_EQ(0, ibv_close_device(p)); }
  void operator()(ibv_pd* p) const { EXPECT_EQ(0, ibv_dealloc_pd(p)); }
  void operator()(ibv_mr* p) const { EXPECT_EQ(0, ibv_dereg_mr(p)); }
  void operator()(ibv_mw* p) const { EXPECT_EQ(0, ibv_dealloc_mw(p)); }
  void operator()(ibv_cq* p) const { EXPECT_EQ(0, ibv_destroy_cq(p)); }
  void operator()(ibv_srq* p) const { EXPECT_EQ(0, ibv_destroy_srq(p)); }
  void operator()(ibv_qp* p) const { EXPECT_EQ(0, ibv_destroy_qp(p)); }
  void operator()(ibv_ah* p) const { EXPECT_EQ(0, ibv_destroy_ah(p)); }
  void operator()(ibv_comp_channel* p) const { EXPECT_EQ(0, ibv_destroy_comp_channel(p)); }
};
template <class Object>
using Own = std::unique_ptr<Object, Destroy>;

// Whether the tests run once more, by a path that programs do not get by themselves.
bool is_another_path();

class VerbsTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 8192;

  void SetUp() override;

  // Small ones, with `change` applied to what is asked for.
  using Change = std::function<void(ibv_qp_init_attr_ex&)>;
  Own<ibv_qp> make_qp(ibv_qp_type type = IBV_QPT_RC, const Change& change = {});
  // RESET to RTS, connected with `peer`; itself when it is null.
  void connect(ibv_qp* qp, ibv_qp* peer = nullptr);
  void to_init(ibv_qp* qp);
  ibv_ah_attr own_address() const;

  ibv_sge sge(std::size_t offset, std::uint32_t length) const;
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.data() + offset);
  }
  ibv_recv_wr receive(ibv_sge& sge, std::uint64_t wr_id = 0) const;
  ibv_send_wr send(ibv_sge& sge, std::uint64_t wr_id = 0, ibv_wr_opcode opcode = IBV_WR_SEND) const;

  // The next completion; fails the test when none comes.
  ibv_wc next_completion();
  bool no_completion();

  Own<ibv_context> context;
  Own<ibv_pd> pd;
  Own<ibv_cq> cq;
  alignas(64) std::array<std::uint8_t, kBytes> memory = {};
  Own<ibv_mr> mr;
};

}  // namespace verbena::verbs::testing
