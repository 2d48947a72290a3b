// SPDX-License-Identifier: MIT
// Text for people: emphasis where it is a terminal that they read, sizes and rates in their units.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::cli {

enum class Style : std::uint8_t { kBold, kFaint, kGood, kBad };

// Whether standard output is a terminal that wants colours (https://no-color.org).
bool has_colours();

// The text in the style, or as it is.
std::string styled(Style style, const std::string& text);

// "1 GiB", "1.5 MiB", "17 bytes".
std::string spell_bytes(std::uint64_t bytes);

// "1,024".
std::string spell_count(std::uint64_t count);

// "12.3 GB/s", "350 MB/s".
std::string spell_rate(double bytes_a_second);

}  // namespace verbena::cli
