// SPDX-License-Identifier: MIT
// Some bytes of ours to be written into a peer's memory by pwritev, and the iovec that names them:
// the peer can take it back up to the moment when the kernel reads it, by emptying it.
//
//      bytes │ nothing       iov_base │ iov_len
//    ────────┼──────────  ────────────┼──────────────
//     a page │ no access       a page │ the first of the conduit, a second time
//
// Its length lies in the conduit, where the peer can write 0; where the bytes lie is ours alone.
// A peer that writes a larger length gets an error and not what lies behind: nothing does.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <utility>

#include "local/conduit.h"

namespace verbena::local {

class RevocablePiece {
 public:
  static constexpr std::size_t kMost = 8;
  // At the same time in a process; each takes four mappings.
  static constexpr unsigned kPieces = 256;

  RevocablePiece() = default;
  // Empty where the system or the number of pieces allows no more.
  explicit RevocablePiece(ConduitHeader& header);
  RevocablePiece(RevocablePiece&& other) noexcept { *this = std::move(other); }
  RevocablePiece& operator=(RevocablePiece&& other) noexcept {
    std::swap(pages_, other.pages_);
    std::swap(process_, other.process_);
    return *this;
  }
  ~RevocablePiece();

  explicit operator bool() const { return pages_ != nullptr; }
  // Null: the bytes cannot be read. How many go is what the header says.
  const iovec* fill(const std::byte* from, std::size_t length) const;

 private:
  std::byte* pages_ = nullptr;
  pid_t process_ = 0;
};

}  // namespace verbena::local
