// SPDX-License-Identifier: MIT
// What something else depends on cannot be destroyed: EBUSY, and everything goes on. (XRC:
// xrc_test.cc)
#include <cerrno>
#include <functional>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

using Held = std::unique_ptr<void, std::function<void(void*)>>;

class Dependents : public VerbsTest {
 protected:
  Own<ibv_srq> make_srq() {
    ibv_srq_init_attr wanted{};
    wanted.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
    return Own<ibv_srq>(ibv_create_srq(pd.get(), &wanted));
  }
  Own<ibv_pd> make_parent_domain(ibv_td* td) {
    ibv_parent_domain_init_attr wanted{};
    wanted.pd = pd.get();
    wanted.td = td;
    return Own<ibv_pd>(ibv_alloc_parent_domain(context.get(), &wanted));
  }
};

TEST_F(Dependents, KeepWhatTheyDependOn) {
  mr.reset();  // nothing is in the domain now
  const Own<ibv_pd> other(ibv_alloc_pd(context.get()));
  const Own<ibv_comp_channel> channel(ibv_create_comp_channel(context.get()));
  ibv_td_init_attr of_thread{};
  ibv_td* const td = ibv_alloc_td(context.get(), &of_thread);
  ibv_alloc_dm_attr of_device{.length = 64, .log_align_req = 0, .comp_mask = 0};
  ibv_dm* const dm = ibv_alloc_dm(context.get(), &of_device);
  ASSERT_TRUE(other && channel && td && dm);
  const Own<ibv_srq> srq = make_srq();
  ibv_ah_attr path = own_address();
  const auto release_pd = [&] { return ibv_dealloc_pd(pd.get()); };
  const auto release_other = [&] { return ibv_dealloc_pd(other.get()); };
  const auto release_cq = [&] { return ibv_destroy_cq(cq.get()); };

  struct Case {
    const char* name;
    std::function<Held()> depend;
    std::function<int()> destroy;
  };
  const auto hold = [](auto owned) -> Held {
    return Held(owned.release(), [destroy = owned.get_deleter()](void* p) {
      destroy(static_cast<typename decltype(owned)::pointer>(p));
    });
  };
  const auto memory_region = [&] {
    return hold(Own<ibv_mr>(ibv_reg_mr(other.get(), memory.data(), 64, 0)));
  };
  const auto device_region = [&] {
    return hold(Own<ibv_mr>(
        ibv_reg_dm_mr(other.get(), dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)));
  };
  const auto queue_pair = [&] { return hold(make_qp()); };
  const auto on_srq = [&] {
    return hold(make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& wanted) { wanted.srq = srq.get(); }));
  };
  const auto with_events = [&] {
    return hold(Own<ibv_cq>(ibv_create_cq(context.get(), 1, nullptr, channel.get(), 0)));
  };
  const Case cases[] = {
      {"region, domain", memory_region, release_other},
      {"region of device memory, domain", device_region, release_other},
      {"region of device memory, memory", device_region, [&] { return ibv_free_dm(dm); }},
      {"window, domain",
       [&] { return hold(Own<ibv_mw>(ibv_alloc_mw(other.get(), IBV_MW_TYPE_1))); }, release_other},
      {"address handle, domain",
       [&] { return hold(Own<ibv_ah>(ibv_create_ah(other.get(), &path))); }, release_other},
      {"queue pair, domain", queue_pair, release_pd},
      {"queue pair, completion queue", queue_pair, release_cq},
      {"queue pair, shared receive queue", on_srq, [&] { return ibv_destroy_srq(srq.get()); }},
      {"completion queue, channel", with_events,
       [&] { return ibv_destroy_comp_channel(channel.get()); }},
      {"parent domain, domain", [&] { return hold(make_parent_domain(nullptr)); }, release_pd},
      {"parent domain, thread domain", [&] { return hold(make_parent_domain(td)); },
       [&] { return ibv_dealloc_td(td); }},
  };
  for (const Case& each : cases) {
    const auto dependent = each.depend();
    ASSERT_TRUE(dependent) << each.name << ", errno " << errno;
    EXPECT_EQ(EBUSY, each.destroy()) << each.name;
  }
  // Without them they go.
  EXPECT_EQ(0, ibv_free_dm(dm));
  EXPECT_EQ(0, ibv_dealloc_td(td));
}

}  // namespace
}  // namespace verbena::verbs::testing
