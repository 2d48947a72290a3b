// SPDX-License-Identifier: MIT
// Copying out of a program's memory (guarded_copy.h) what a checksum is to cover: each byte is read
// once, so what is sent is what was counted, even when the program writes there meanwhile.
#pragma once

#include <cstddef>

#include "base/crc32.h"

namespace verbena::memory {

// Copies to memory of our own, and folds the CRC over the copy. False, and `crc` as it was or
// behind some of the bytes, when the memory at `from` is not there. The ranges do not overlap.
bool guarded_copy_and_crc(std::byte* to, const std::byte* from, std::size_t length, CrcBlock& crc);

}  // namespace verbena::memory
