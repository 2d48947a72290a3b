// SPDX-License-Identifier: MIT
#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace verbena::cli {
namespace {

const char* code_of(Style style) {
  switch (style) {
    case Style::kBold: return "1";
    case Style::kFaint: return "2";
    case Style::kGood: return "1;32";
    case Style::kBad: return "1;31";
  }
  return "0";
}

}  // namespace

bool has_colours() {
  const char* refused = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && !(refused && *refused) &&
         !(terminal && std::string_view(terminal) == "dumb");
}

std::string styled(Style style, const std::string& text) {
  if (!has_colours()) return text;
  return fmt::format("\033[{}m{}\033[0m", code_of(style), text);
}

std::string spell_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes == 1) return "1 byte";
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit)
    value /= 1024;
  // At most one digit behind the point, and none where it would be 0.
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text + " " + kUnits[unit];
}

std::string spell_count(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t i = text.size(); i > 3; i -= 3)
    text.insert(i - 3, ",");
  return text;
}

std::string spell_rate(double bytes_a_second) {
  if (bytes_a_second >= 1e9) return fmt::format("{:.1f} GB/s", bytes_a_second / 1e9);
  return fmt::format("{:.0f} MB/s", bytes_a_second / 1e6);
}

}  // namespace verbena::cli
