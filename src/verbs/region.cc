// SPDX-License-Identifier: MIT
// Memory regions (ibv_reg_mr(3), ibv_rereg_mr(3), ibv_advise_mr(3), ibv_alloc_null_mr(3)).
#include <optional>

#include "verbs/border.h"
#include "verbs/objects.h"
#include "verbs/post.h"

namespace verbena::verbs {
namespace {

// What the program sees of the region.
void show(Mr& mr) {
  mr.face.addr = mr.nic->address;
  mr.face.length = mr.nic->length;
  mr.face.handle = mr.face.lkey = mr.face.rkey = mr.nic->key.value;
  if (mr.nic->is_null) mr.face.rkey = 0;
}

ibv_mr* enter(Pd& pd, nic::Mr& made, std::unique_ptr<Mr> mr) {
  mr->nic = &made;
  mr->face = {};
  mr->face.context = pd.face.context;
  mr->face.pd = &pd.face;
  show(*mr);
  shareables().regions.add(*mr);
  return &mr.release()->face;
}

Result<ibv_mr*, nic::Error> reg_mr(Pd& pd, void* address, std::size_t length, std::uint64_t iova,
                                   std::uint32_t access) {
  if (length == 0) return refuse(nic::Error::kInvalid);
  auto mr = std::make_unique<Mr>();
  // A zero-based region counts from its own first byte.
  const std::uint64_t first = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
  const auto made = nic::reg_mr(*pd.nic, address, length, first, access);
  if (!made) return refuse(made.error());
  return enter(pd, **made, std::move(mr));
}

struct RegionChange {
  int flags = 0;
  ibv_pd* pd = nullptr;
  void* address = nullptr;
  std::size_t length = 0;
  int access = 0;

  bool changes(ibv_rereg_mr_flags what) const { return flags & what; }
};

bool makes_sense(const RegionChange& change) {
  if (change.flags == 0 || change.flags & ~int{IBV_REREG_MR_FLAGS_SUPPORTED}) return false;
  if (change.changes(IBV_REREG_MR_CHANGE_TRANSLATION) && (!change.address || !change.length)) {
    return false;
  }
  if (change.changes(IBV_REREG_MR_CHANGE_PD) && !change.pd) return false;
  return change.access == 0 || change.changes(IBV_REREG_MR_CHANGE_ACCESS);
}

Result<void, nic::Error> rereg_mr(Mr& mr, const RegionChange& change) {
  if (mr.is_imported || !makes_sense(change)) return refuse(nic::Error::kInvalid);
  const auto access = static_cast<std::uint32_t>(change.access);
  nic::Rereg wanted;
  if (change.changes(IBV_REREG_MR_CHANGE_TRANSLATION)) {
    wanted.change_translation = true;
    wanted.address = change.address;
    wanted.length = change.length;
  }
  if (change.changes(IBV_REREG_MR_CHANGE_PD)) wanted.pd = own(change.pd).nic;
  if (change.changes(IBV_REREG_MR_CHANGE_ACCESS)) wanted.access = access;
  if (const auto done = nic::rereg_mr(*mr.nic, wanted); !done) return done;
  if (change.changes(IBV_REREG_MR_CHANGE_PD)) mr.face.pd = change.pd;
  show(mr);
  return {};
}

std::optional<nic::Prefetch> prefetch_from(ibv_advise_mr_advice advice) {
  switch (advice) {
    case IBV_ADVISE_MR_ADVICE_PREFETCH: return nic::Prefetch::kForReading;
    case IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: return nic::Prefetch::kForWriting;
    case IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: return nic::Prefetch::kReady;
  }
  return std::nullopt;
}

}  // namespace

ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept {
  return pointer_at_border([&]() -> Result<ibv_mr*, nic::Error> {
    auto mr = std::make_unique<Mr>();
    const auto made = nic::alloc_null_mr(*own(pd).nic);
    if (!made) return refuse(made.error());
    return enter(own(pd), **made, std::move(mr));
  });
}

// Without IBV_ADVISE_MR_FLAG_FLUSH the program does not wait, and hears of nothing: then it is best
// to do nothing, as faulting pages in would make it wait.
VERBENA_ANY_VALUE int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, std::uint32_t flags,
                                ibv_sge* list, std::uint32_t count) noexcept {
  return at_border([&]() -> Result<void, nic::Error> {
    const auto how = prefetch_from(advice);
    if (!how || flags & ~std::uint32_t{IBV_ADVISE_MR_FLAG_FLUSH} || count == 0) {
      return refuse(nic::Error::kInvalid);
    }
    const bool waits = flags & IBV_ADVISE_MR_FLAG_FLUSH;
    return nic::prefetch(*own(pd).nic, waits ? *how : nic::Prefetch::kReady,
                         sges_from(list, count));
  });
}

}  // namespace verbena::verbs

using namespace verbena;

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                         unsigned access) {
  return verbs::pointer_at_border(
      [&] { return verbs::reg_mr(verbs::own(pd), addr, length, iova, access); });
}

// Answers by ibv_rereg_mr_err_code. Whatever is refused, the region stays as it was: what
// IBV_REREG_MR_ERR_INPUT says.
int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, std::size_t length, int access) {
  const verbs::RegionChange change{flags, pd, addr, length, access};
  const int error = verbs::at_border([&] { return verbs::rereg_mr(verbs::own(mr), change); });
  if (!error) return 0;
  errno = error;
  return IBV_REREG_MR_ERR_INPUT;
}

int ibv_dereg_mr(ibv_mr* mr) {
  verbs::Mr* const ours = &verbs::own(mr);
  const bool is_inherited = verbs::is_inherited(mr);
  if (ours->is_imported) return EINVAL;  // it is given back by ibv_unimport_mr
  if (!is_inherited) verbs::shareables().regions.remove(*ours);
  const auto done = nic::dereg_mr(ours->nic);
  if (!done && !is_inherited) verbs::shareables().regions.add(*ours);
  return verbs::destroy_at_border(is_inherited, done, [&] { delete ours; });
}
