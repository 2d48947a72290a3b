// SPDX-License-Identifier: MIT
#include "local/revocable_piece.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/assert.h"
#include "host/raw_memory.h"
#include "memory/guarded_copy.h"

namespace verbena::local {
namespace {

enum Page : std::size_t { kBytes, kNothing, kBase, kLength, kPages };

constinit std::atomic<unsigned> pieces{0};

// Where its address is within a page, the length is not.
static_assert(offsetof(iovec, iov_len) == sizeof(void*));

}  // namespace

RevocablePiece::RevocablePiece(ConduitHeader& header) {
  const std::size_t page = host::page_size();
  if (reinterpret_cast<std::uintptr_t>(&header) % page != 0) return;
  if (pieces.fetch_add(1, std::memory_order_relaxed) >= kPieces) {
    pieces.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  void* const at = host::raw_map(kPages * page, MAP_PRIVATE | MAP_ANONYMOUS, -1, PROT_NONE);
  std::byte* const pages = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  const bool is_made = pages &&
                       host::raw_protect(pages + kBytes * page, page, PROT_READ | PROT_WRITE) &&
                       host::raw_protect(pages + kBase * page, page, PROT_READ | PROT_WRITE) &&
                       host::raw_map_again(&header, page, pages + kLength * page) &&
                       // A child would read the length from a conduit that is not its own.
                       host::raw_advise(pages, kPages * page, MADV_DONTFORK);
  if (!is_made) {
    if (pages) host::raw_unmap(pages, kPages * page);
    pieces.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  pages_ = pages;
  process_ = getpid();
}

RevocablePiece::~RevocablePiece() {
  if (!pages_ || process_ != getpid()) return;
  host::raw_unmap(pages_, kPages * host::page_size());
  pieces.fetch_sub(1, std::memory_order_relaxed);
}

const iovec* RevocablePiece::fill(const std::byte* from, std::size_t length) const {
  VERBENA_ASSERT(pages_ && length <= kMost);
  const std::size_t page = host::page_size();
  std::byte* const bytes = pages_ + kNothing * page - length;
  if (!memory::guarded_copy(bytes, from, length)) return nullptr;
  auto* const piece = reinterpret_cast<iovec*>(pages_ + kLength * page - sizeof(void*));
  piece->iov_base = bytes;
  return piece;
}

}  // namespace verbena::local
