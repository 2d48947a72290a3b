// SPDX-License-Identifier: MIT
#include "pool.h"

#include <algorithm>

#include "session.h"

namespace chaos {

Pool::Pool(ibv_pd* pd)
    : memory_(std::size_t{kPlaces} * kRoom),
      region_(ibv_reg_mr(pd, memory_.data(), memory_.size(), int{IBV_ACCESS_LOCAL_WRITE})) {
  ibv_srq_init_attr wanted{};
  wanted.attr = {kPlaces, 1, 0};
  queue_ = ibv_create_srq(pd, &wanted);
  while (queue_ && region_ && used_ < kAtFirst)
    post(used_++);
}

Pool::~Pool() {
  if (queue_) ibv_destroy_srq(queue_);
  if (region_) ibv_dereg_mr(region_);
}

bool Pool::post(std::uint32_t place) {
  std::ranges::fill(area(place), std::byte{0});
  ibv_sge piece{reinterpret_cast<std::uint64_t>(area(place).data()), kRoom, region_->lkey};
  ibv_recv_wr request{};
  ibv_recv_wr* bad = nullptr;
  request.wr_id = kReceive | place;
  request.sg_list = &piece;
  request.num_sge = 1;
  posted_.posted(request.wr_id, {place, kRoom});
  return ibv_post_srq_recv(queue_, &request, &bad) == 0;
}

void Pool::replace_lost() {
  for (std::uint32_t i = 0; i < kReplaced && used_ < kPlaces; ++i)
    post(used_++);
}

}  // namespace chaos
