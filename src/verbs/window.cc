// SPDX-License-Identifier: MIT
// Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)).
#include <cstring>
#include <mutex>

#include "verbs/border.h"
#include "verbs/objects.h"
#include "verbs/post.h"

namespace verbena::verbs {
namespace {

constexpr std::uint32_t kTagMask = memory::WindowTable::kTagMask;

Result<ibv_mw*, nic::Error> alloc(Pd& pd, const ibv_mw_type& type) {
  int number = 0;  // the program may have put anything there
  std::memcpy(&number, &type, sizeof number);
  if (number != IBV_MW_TYPE_1 && number != IBV_MW_TYPE_2) return refuse(nic::Error::kInvalid);
  auto mw = std::make_unique<Mw>();
  const auto made = nic::alloc_mw(*pd.nic, static_cast<memory::WindowType>(number));
  if (!made) return refuse(made.error());
  mw->nic = *made;
  const std::uint32_t key = mw->nic->key.value;
  mw->face = {.context = pd.face.context,
              .pd = &pd.face,
              .rkey = key,
              .handle = key & ~kTagMask,
              .type = static_cast<ibv_mw_type>(number)};
  return &mw.release()->face;
}

}  // namespace

bool take_binding(const ibv_mw& window, std::uint32_t key, const ibv_mw_bind_info& wanted,
                  qp::SendRequest& to) {
  if ((key & ~kTagMask) != window.handle || (!wanted.mr && wanted.length != 0)) return false;
  to.immediate = key;
  to.remote_key = wanted.mr ? own(wanted.mr).nic->key : MemoryKey{};
  to.remote_address = wanted.addr;
  to.compare_add = wanted.length;
  to.swap = wanted.mw_access_flags;
  return true;
}

VERBENA_ANY_VALUE ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept {
  return pointer_at_border([&] { return alloc(own(pd), type); });
}

int dealloc_mw(ibv_mw* mw) noexcept {
  Mw* const ours = &own(mw);
  return destroy_at_border(is_inherited(mw), nic::dealloc_mw(ours->nic), [&] { delete ours; });
}

// Type 1: libibverbs looked. The key changes with each bind, and is the program's when this
// returns.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* wanted) noexcept {
  if (is_inherited(qp)) return EIO;
  if (own(qp).is_datagram) return EINVAL;
  const std::lock_guard guard(own(mw).binding);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  qp::SendRequest request;
  request.wr_id = wanted->wr_id;
  request.opcode = queues::SendOpcode::kBindWindow;
  request.flags = flags_from(wanted->send_flags & ~unsigned{IBV_SEND_INLINE});
  if (!take_binding(*mw, key, wanted->bind_info, request)) return EINVAL;
  return at_border([&]() -> Result<void, qp::PostError> {
    std::size_t posted = 0;
    const auto done = nic::post_send(*own(qp).nic, {&request, 1}, posted);
    if (done) mw->rkey = key;
    return done;
  });
}

}  // namespace verbena::verbs
