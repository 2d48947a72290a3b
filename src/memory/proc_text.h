// SPDX-License-Identifier: MIT
// What text of /proc says, without the files. Nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "memory/process_map.h"

namespace verbena::memory {

// A line of /proc/self/maps: "7f00-7fff rw-p 00000000 00:00 0     [heap]", perhaps without the end
// of a long name. All zeros: it is none.
Mapping parse_mapping(std::string_view line, char (&name)[64]);

// /proc/self/status. Nothing: a figure is missing.
std::optional<ProcessFigures> parse_status(std::string_view text);

// /proc/ID/fdinfo/N: whether the file was opened past the page cache, or it does not say.
bool may_be_direct(std::string_view fdinfo);

// A number alone on its line, as files below /proc/sys hold it.
std::optional<std::uint64_t> parse_figure(std::string_view text);

// What a buffer that is registered with an io_uring pins, in whole pages.
struct PinnedRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
// "0x7f8260359064/300000". Nothing: it is none.
std::optional<PinnedRange> parse_buffer(std::string_view text, std::uint64_t page);

}  // namespace verbena::memory
