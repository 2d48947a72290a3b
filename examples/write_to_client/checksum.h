// SPDX-License-Identifier: MIT
// XXH64, as `xxh64sum` computes it: fast enough to check memory at about the speed it is read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace write_to_client {

std::uint64_t xxh64(const void* data, std::size_t size);

}  // namespace write_to_client
