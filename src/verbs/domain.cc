// SPDX-License-Identifier: MIT
// Protection domains and address handles (ibv_alloc_pd(3), ibv_create_ah(3)).
#include "verbs/border.h"
#include "verbs/objects.h"
#include "verbs/translate.h"

namespace verbena::verbs {
namespace {

Result<ibv_pd*, nic::Error> alloc_pd(Context& context) {
  auto pd = std::make_unique<Pd>();
  const auto made = nic::alloc_pd(*context.nic);
  if (!made) return refuse(made.error());
  pd->nic = *made;
  pd->face = {.context = &context.table.context, .handle = pd->nic->id.value};
  hold(context);
  return &pd.release()->face;
}

Result<ibv_ah*, nic::Error> create_ah(Pd& pd, const ibv_ah_attr& attributes) {
  auto ah = std::make_unique<Ah>();
  const auto made = nic::create_ah(*pd.nic, path_from(attributes));
  if (!made) return refuse(made.error());
  ah->nic = *made;
  ah->face = {.context = pd.face.context, .pd = &pd.face, .handle = ah->nic->number};
  return &ah.release()->face;
}

}  // namespace
}  // namespace verbena::verbs

using namespace verbena;

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  return verbs::pointer_at_border([&] { return verbs::alloc_pd(verbs::own(context)); });
}

int ibv_dealloc_pd(ibv_pd* pd) {
  verbs::Pd* const ours = &verbs::own(pd);
  verbs::Context* const context = &verbs::own(pd->context);
  const bool is_inherited = verbs::is_inherited(pd);
  return verbs::destroy_at_border(is_inherited, nic::dealloc_pd(ours->nic), [&] {
    delete ours;
    verbs::release(context);
  });
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  return verbs::pointer_at_border([&] { return verbs::create_ah(verbs::own(pd), *attr); });
}

int ibv_destroy_ah(ibv_ah* ah) {
  verbs::Ah* const ours = &verbs::own(ah);
  const bool is_inherited = verbs::is_inherited(ah);
  return verbs::destroy_at_border(is_inherited, nic::destroy_ah(ours->nic), [&] { delete ours; });
}

// Multicast groups are not offered (max_mcast_grp is 0).
int ibv_attach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) { return EOPNOTSUPP; }
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, std::uint16_t) { return EOPNOTSUPP; }
