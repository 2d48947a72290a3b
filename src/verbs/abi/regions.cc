// SPDX-License-Identifier: MIT
// The older ways to register memory are the newest one with fewer arguments (ibv_reg_mr(3)).
#include <cerrno>

#include "verbs/abi/entry.h"

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) {
  const auto iova = reinterpret_cast<std::uintptr_t>(addr);
  return ibv_reg_mr_iova2(pd, addr, length, iova, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                        int access) {
  return ibv_reg_mr_iova2(pd, addr, length, iova, static_cast<unsigned>(access));
}

// Device memory of a GPU or the like, passed as a dma-buf: there is no bus here over which to reach
// it.
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}
