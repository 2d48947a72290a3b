// SPDX-License-Identifier: MIT
// Protection domains, thread domains and address handles (ibv_alloc_pd(3), ibv_alloc_td(3),
// ibv_alloc_parent_domain(3), ibv_create_ah(3)).
#include <fcntl.h>
#include <sys/stat.h>

#include "nic/xrc.h"
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
  shareables().domains.add(*pd);
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

// A file makes it one with others of its inode.
Result<ibv_xrcd*, nic::Error> create_xrcd(Context& context, const ibv_xrcd_init_attr& wanted) {
  constexpr std::uint32_t kMasks = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (wanted.comp_mask != kMasks || wanted.oflags & ~(O_CREAT | O_EXCL)) {
    return refuse(nic::Error::kInvalid);
  }
  nic::XrcOpen how;
  how.may_create = (wanted.oflags & O_CREAT) != 0 || wanted.fd < 0;
  how.must_create = (wanted.oflags & O_EXCL) != 0;
  if (wanted.fd >= 0) {
    struct stat file = {};
    if (fstat(wanted.fd, &file) != 0) return refuse(nic::Error::kInvalid);
    how.file = FileIdentity{file.st_dev, file.st_ino};
  }
  auto xrcd = std::make_unique<Xrcd>();
  const auto made = nic::open_xrcd(*context.nic, how);
  if (!made) return refuse(made.error());
  xrcd->nic = *made;
  xrcd->face = {.context = &context.table.context};
  hold(context);
  return &xrcd.release()->face;
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

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* wanted) noexcept {
  return pointer_at_border([&] { return create_xrcd(own(context), *wanted); });
}

int close_xrcd(ibv_xrcd* xrcd) noexcept {
  Xrcd* const ours = &own(xrcd);
  Context* const context = &own(xrcd->context);
  return destroy_at_border(is_inherited(xrcd), nic::close_xrcd(ours->nic), [&] {
    delete ours;
    release(context);
  });
}

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
  const bool is_listed = !is_inherited && !ours->nic->parent;
  if (!is_inherited) verbs::free_abandoned();
  // Nobody finds it any more, unless it stays.
  if (is_listed) verbs::shareables().domains.remove(*ours);
  const auto done = nic::dealloc_pd(ours->nic);
  if (!done && is_listed) verbs::shareables().domains.add(*ours);
  return verbs::destroy_at_border(is_inherited, done, [&] {
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
