// SPDX-License-Identifier: MIT
// Memory of the device (ibv_alloc_dm(3)).
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

int copy_to(ibv_dm* dm, std::uint64_t offset, const void* from, std::size_t length) {
  return at_border([&] { return nic::copy_to_dm(*own(dm).nic, offset, from, length); });
}

int copy_from(void* to, ibv_dm* dm, std::uint64_t offset, std::size_t length) {
  return at_border([&] { return nic::copy_from_dm(*own(dm).nic, offset, to, length); });
}

Result<ibv_dm*, nic::Error> alloc(Context& context, const ibv_alloc_dm_attr& wanted) {
  constexpr std::uint32_t kAlignmentMax = 12;  // it is made of pages
  if (wanted.comp_mask != 0 || wanted.log_align_req > kAlignmentMax) {
    return refuse(nic::Error::kInvalid);
  }
  auto dm = std::make_unique<Dm>();
  const auto made = nic::alloc_dm(*context.nic, wanted.length);
  if (!made) return refuse(made.error());
  dm->nic = *made;
  dm->face = {};
  dm->face.context = &context.table.context;
  dm->face.memcpy_to_dm = copy_to;
  dm->face.memcpy_from_dm = copy_from;
  dm->face.handle = shareables().device_memory_handles.fetch_add(1);
  shareables().device_memory.add(*dm);
  hold(context);
  return &dm.release()->face;
}

Result<ibv_mr*, nic::Error> reg(Pd& pd, Dm& dm, std::uint64_t offset, std::size_t length,
                                std::uint32_t access) {
  // It has no other addresses.
  if (!(access & IBV_ACCESS_ZERO_BASED)) return refuse(nic::Error::kInvalid);
  auto mr = std::make_unique<Mr>();
  const auto made = nic::reg_dm_mr(*pd.nic, *dm.nic, offset, length, access);
  if (!made) return refuse(made.error());
  mr->nic = *made;
  const std::uint32_t key = mr->nic->key.value;
  mr->face = {.context = pd.face.context,
              .pd = &pd.face,
              .addr = nullptr,
              .length = length,
              .handle = key,
              .lkey = key,
              .rkey = key};
  shareables().regions.add(*mr);
  return &mr.release()->face;
}

}  // namespace

ibv_dm* alloc_dm(ibv_context* context, ibv_alloc_dm_attr* wanted) noexcept {
  return pointer_at_border([&] { return alloc(own(context), *wanted); });
}

int free_dm(ibv_dm* dm) noexcept {
  Dm* const ours = &own(dm);
  Context* const context = &own(dm->context);
  const bool is_inherited = verbs::is_inherited(dm);
  if (ours->is_imported) return EINVAL;  // it is given back by ibv_unimport_dm
  if (!is_inherited) shareables().device_memory.remove(*ours);
  const auto done = nic::free_dm(ours->nic);
  if (!done && !is_inherited) shareables().device_memory.add(*ours);
  return destroy_at_border(is_inherited, done, [&] {
    delete ours;
    release(context);
  });
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, std::uint64_t offset, std::size_t length,
                  unsigned access) noexcept {
  return pointer_at_border([&] { return reg(own(pd), own(dm), offset, length, access); });
}

}  // namespace verbena::verbs
