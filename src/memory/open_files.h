// SPDX-License-Identifier: MIT
// Who writes to the program's memory behind its back: io_uring and aio, found by the program's
// descriptors and mappings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/process_map.h"

namespace verbena::memory {

enum class AsynchronousIo : std::uint8_t { kNone, kThere, kUnknown };

// An io_uring among the program's descriptors or, unless there is no map, one or an aio context
// among its mappings. With no descriptor left to look at descriptors, the mappings decide.
AsynchronousIo find_asynchronous_io(const ProcessMap* map);

// Whether the kernel may write to the range by buffers that were registered with an io_uring, or
// by pins of somebody unknown. `pinned_bytes`: as ProcessFigures says.
bool may_be_pinned(const std::byte* begin, std::size_t length, std::uint64_t pinned_bytes);

}  // namespace verbena::memory
