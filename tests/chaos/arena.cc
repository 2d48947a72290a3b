// SPDX-License-Identifier: MIT
#include "arena.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "pattern.h"

namespace chaos {
namespace {

constexpr std::size_t kGrhRoom = 40;  // before every datagram
constexpr int kFlushGlobal = 1 << 8;  // came after the headers that we are built with

}  // namespace

Arena::Arena(const Shape& shape, std::uint64_t seed)
    : key_(seed ^ 0x67756172), places_(shape.depth) {
  stride_ = (shape.message_max + kGrhRoom + 63) & ~std::size_t{63};
  const std::size_t area = stride_ * places_;
  std::size_t end = 0;
  std::size_t guard = 0;
  const auto take = [&](std::size_t size) {
    guards_[guard++] = end;
    const std::size_t begin = end + kGuard;
    end = begin + size;
    return begin;
  };
  source_ = take(area);
  receive_ = take(area * shape.habits.queues);
  back_ = take(area);
  window_ = take(area);
  cells_ = take(kGuard);
  guards_[guard] = end;
  size_ = (end + kGuard + 4095) & ~std::size_t{4095};
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) abort();
  base_ = static_cast<std::byte*>(memory);
  for (std::size_t i = 0; i < kGuards; ++i)
    fill({base_ + guards_[i], kGuard}, key_ + i);
}

Arena::~Arena() {
  deregister();
  munmap(base_, size_);
}

bool Arena::register_at(ibv_pd* pd) {
  local_ = ibv_reg_mr(pd, base_ + source_, window_ - kGuard - source_, int{IBV_ACCESS_LOCAL_WRITE});
  remote_ = ibv_reg_mr(pd, base_ + window_, cells_ + sizeof(Cells) - window_,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | kFlushGlobal);
  return local_ && remote_;
}

int Arena::revoke() { return ibv_dereg_mr(std::exchange(remote_, nullptr)); }

void Arena::deregister() {
  if (local_) ibv_dereg_mr(local_);
  if (remote_) ibv_dereg_mr(remote_);
  local_ = remote_ = nullptr;
}

std::uint32_t Arena::local_key() const { return local_->lkey; }
std::uint32_t Arena::remote_key() const { return remote_->rkey; }

bool Arena::guards_are_whole(std::string& what) const {
  for (std::size_t i = 0; i < kGuards; ++i) {
    const std::ptrdiff_t at = difference({base_ + guards_[i], kGuard}, key_ + i);
    if (at < 0) continue;
    what = "guard " + std::to_string(i) + " changed at byte " + std::to_string(at);
    return false;
  }
  return true;
}

}  // namespace chaos
