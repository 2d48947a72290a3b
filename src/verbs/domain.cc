// SPDX-License-Identifier: MIT
// Protection domains, thread domains and address handles (ibv_alloc_pd(3), ibv_alloc_td(3),
// ibv_alloc_parent_domain(3), ibv_create_ah(3)).
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

Result<ibv_td*, nic::Error> create_td(Context& context, const ibv_td_init_attr& wanted) {
  if (!context.is_usable()) return refuse(nic::Error::kGone);
  if (wanted.comp_mask != 0) return refuse(nic::Error::kNotSupported);
  auto* const td = new Td;
  td->face = {.context = &context.table.context};
  context.nic->count_objects(1);
  hold(context);
  return &td->face;
}

// Allocators of the program would be for queues that a card reads. Ours are the NIC's own objects:
// they are taken, and never called, as by every adapter that needs no such memory.
Result<ibv_pd*, nic::Error> create_parent_domain(Context& context,
                                                 const ibv_parent_domain_init_attr& wanted) {
  constexpr std::uint32_t kKnown =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if (wanted.comp_mask & ~kKnown) return refuse(nic::Error::kNotSupported);
  if (!wanted.pd || wanted.pd->context != &context.table.context) {
    return refuse(nic::Error::kInvalid);
  }
  auto pd = std::make_unique<Pd>();
  const auto made = nic::alloc_parent_domain(*own(wanted.pd).nic);
  if (!made) return refuse(made.error());
  pd->nic = *made;
  pd->face = {.context = &context.table.context, .handle = pd->nic->id.value};
  pd->thread_domain = wanted.td ? &own(wanted.td) : nullptr;
  if (pd->thread_domain) pd->thread_domain->dependents.fetch_add(1);
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

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* wanted) noexcept {
  return pointer_at_border([&] { return create_td(own(context), *wanted); });
}

int dealloc_td(ibv_td* td) noexcept {
  Td* const ours = &own(td);
  const bool is_inherited = verbs::is_inherited(td);
  if (ours->dependents.load() != 0) return is_inherited ? EIO : EBUSY;
  Context* const context = &own(td->context);
  context->nic->count_objects(-1);
  delete ours;
  release(context);
  return is_inherited ? EIO : 0;
}

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* wanted) noexcept {
  return pointer_at_border([&] { return create_parent_domain(own(context), *wanted); });
}

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
    if (ours->thread_domain) ours->thread_domain->dependents.fetch_sub(1);
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
