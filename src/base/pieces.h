// SPDX-License-Identifier: MIT
// A buffer that lies in equal pieces at equal distances: the payloads of packets that follow each
// other, with heads and checksums between them.
#pragma once

#include <cstddef>

#include "base/crc32.h"

namespace verbena {

struct Pieces {
  std::byte* first = nullptr;
  std::size_t bytes = 0;   // of each
  std::size_t stride = 0;  // from the beginning of one to that of the next
  std::size_t count = 1;
  // Of each piece, where they are wanted: what stands before it, and then that and the piece.
  CrcBlock* crcs = nullptr;

  std::size_t total() const { return bytes * count; }
};

// The same to be read.
struct ConstPieces {
  const std::byte* first = nullptr;
  std::size_t bytes = 0;
  std::size_t stride = 0;
  std::size_t count = 1;

  std::size_t total() const { return bytes * count; }
};

}  // namespace verbena
