// SPDX-License-Identifier: MIT
#include "port/fault_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace verbena::port {
namespace {

constexpr double kMillion = 1e6;
// So much may wait behind a delay where no rate is asked for.
constexpr std::uint32_t kQueueBytes = 64 << 20;

struct Unit {
  std::string_view name;
  double factor;
};
constexpr std::array kTimes{Unit{"ns", 1}, Unit{"us", 1e3}, Unit{"ms", 1e6}, Unit{"s", 1e9}};
constexpr std::array kRates{Unit{"bit", 1.0 / 8}, Unit{"kbit", 1e3 / 8}, Unit{"Mbit", 1e6 / 8},
                            Unit{"Gbit", 1e9 / 8}};
constexpr std::array kSizes{Unit{"KiB", 1024}, Unit{"MiB", 1 << 20}};
constexpr std::array kParts{Unit{"%", kMillion / 100}};

// A number with one of the units, in what the units count; none: it is not one, or too much.
template <class Units>
std::optional<double> quantity(std::string_view text, const Units& units, double most) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const Unit& each : units) {
    if (each.name != unit) continue;
    const double value = number * each.factor;
    // Not so little that nothing is left of it.
    const bool fits = value <= most && (number == 0 || value >= 1);
    return fits ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

constexpr double kDurationMost = 10e9;  // ten seconds
constexpr double kRateMost = 1e12;
constexpr double kQueueMost = 1 << 30;

bool set_part(Impairment& line, std::string_view key, std::string_view value) {
  std::uint32_t* part = nullptr;
  if (key == "drop") part = &line.drop;
  if (key == "duplicate") part = &line.duplicate;
  if (key == "corrupt") part = &line.corrupt;
  if (key == "reorder") part = &line.reorder;
  if (key == "full") part = &line.full;
  const auto number = part ? quantity(value, kParts, kMillion) : std::nullopt;
  if (number) *part = static_cast<std::uint32_t>(std::lround(*number));
  return number.has_value();
}

bool set_time(Impairment& line, std::string_view key, std::string_view value) {
  Duration* time = nullptr;
  if (key == "delay") time = &line.delay;
  if (key == "jitter") time = &line.jitter;
  if (key == "reorder_by") time = &line.reorder_by;
  const auto number = time ? quantity(value, kTimes, kDurationMost) : std::nullopt;
  if (number) *time = Duration::nanoseconds(std::llround(*number));
  return number.has_value();
}

bool set_volume(Impairment& line, std::string_view key, std::string_view value) {
  if (key == "rate") {
    const auto number = quantity(value, kRates, kRateMost);
    if (number) line.bytes_per_second = static_cast<std::uint64_t>(std::llround(*number));
    return number.has_value();
  }
  if (key != "queue") return false;
  const auto number = quantity(value, kSizes, kQueueMost);
  if (number) line.queue_bytes_max = static_cast<std::uint32_t>(std::lround(*number));
  return number.has_value();
}

bool set(Impairment& line, std::string_view key, std::string_view value) {
  return set_part(line, key, value) || set_time(line, key, value) || set_volume(line, key, value);
}

bool set_seed(ImpairedOptions& to, std::string_view value) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), to.seed);
  return error == std::errc() && end == value.data() + value.size();
}

bool set_one(ImpairedOptions& to, std::string_view key, std::string_view value) {
  if (key == "seed") return set_seed(to, value);
  // Only who sends finds a socket full.
  if (key == "full") return set(to.out, key, value);
  if (key == "in.full") return false;
  if (key.starts_with("in.")) return set(to.in, key.substr(3), value);
  if (key.starts_with("out.")) return set(to.out, key.substr(4), value);
  return set(to.in, key, value) && set(to.out, key, value);
}

}  // namespace

Result<ImpairedOptions, std::string> parse_faults(std::string_view text) {
  ImpairedOptions options;
  options.in.queue_bytes_max = options.out.queue_bytes_max = kQueueBytes;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const std::size_t sign = item.find('=');
    const bool is_good = sign != std::string_view::npos &&
                         set_one(options, item.substr(0, sign), item.substr(sign + 1));
    if (!is_good) {
      return refuse("\"" + std::string(item) +
                    "\" is not understood: drop, duplicate, corrupt, reorder, full as 1%; delay, "
                    "jitter, reorder_by as 2ms; rate as 100Mbit; queue as 64KiB; seed as 7; all "
                    "but seed and full also as in.drop, out.drop");
    }
  }
  return options;
}

}  // namespace verbena::port
