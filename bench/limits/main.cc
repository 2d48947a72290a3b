// SPDX-License-Identifier: MIT
// What the machine allows, for scripts/bench:
//
//   bench_limits ticks                            ticks a microsecond
//   bench_limits line CORE OTHER-CORE ROUNDS      a cache line that both write, one way
//   bench_limits two-lines CORE OTHER-CORE ROUNDS a line for each direction
//   bench_limits udp CORE OTHER-CORE ROUNDS       a packet by UDP over loopback, both spinning
//   bench_limits udp-train CORE OTHER-CORE ROUNDS the same as RoCEv2 needs it
//   bench_limits udp-stream CORE OTHER-CORE PACKET TRAINS   packets of this size, in trains
//   bench_limits copy SIZE TIMES                  memcpy, on the core that it was started on
//
// Prints lines of a name and a number.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "limits/limits.h"
#include "limits/ticks.h"

namespace verbena::bench {
namespace {

constexpr std::uint64_t kMaxRounds = 100'000'000;
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 32U;
constexpr std::uint64_t kMaxTimes = 100'000'000'000;

std::optional<std::uint64_t> number(std::string_view word, std::uint64_t least,
                                    std::uint64_t most) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || value < least || value > most) {
    return std::nullopt;
  }
  return value;
}

int fail(const char* what) {
  std::fprintf(stderr, "bench_limits: %s\n", what);
  return 1;
}

void print(const char* name, double value) { std::printf("%s %.6g\n", name, value); }

// The mean of the middle half of sorted samples. Where the counter advances in large steps (26
// ticks of 2.6 GHz have been seen) the median is a multiple of them, and this is not.
double middle_half(std::span<const std::uint64_t> sorted) {
  const auto middle = sorted.subspan(sorted.size() / 4, sorted.size() - 2 * (sorted.size() / 4));
  const auto sum = std::accumulate(middle.begin(), middle.end(), std::uint64_t{0});
  return static_cast<double>(sum) / static_cast<double>(middle.size());
}

// `play(core, other_core, rounds)` gives the ticks of each round.
template <class Play>
int rounds_between_cores(std::span<const std::string_view> words, Play&& play) {
  const auto core = number(words[0], 0, 1 << 16);
  const auto other = number(words[1], 0, 1 << 16);
  const auto rounds = number(words[2], 1, kMaxRounds);
  if (!core || !other || !rounds || *core == *other) {
    return fail("two different cores and a number of rounds, please");
  }
  const double per_ns = ticks_per_us() / 1000;
  auto taken = play(static_cast<int>(*core), static_cast<int>(*other), *rounds);
  if (!taken) {
    return fail("cannot play on these cores");
  }
  std::sort(taken->begin(), taken->end());
  const auto one_way = [&](std::uint64_t at) {
    return static_cast<double>((*taken)[at]) / per_ns / 2;
  };
  print("one_way_ns_min", one_way(0));
  print("one_way_ns_middle", middle_half(*taken) / per_ns / 2);
  print("one_way_ns_median", one_way(*rounds / 2));
  print("one_way_ns_p99", one_way(*rounds - 1 - *rounds / 100));
  return 0;
}

int line(Lines lines, std::span<const std::string_view> words) {
  return rounds_between_cores(words, [lines](int core, int other, std::uint64_t rounds) {
    return line_rounds(lines, core, other, rounds);
  });
}

int udp(Packets packets, std::span<const std::string_view> words) {
  return rounds_between_cores(words, [packets](int core, int other, std::uint64_t rounds) {
    return udp_rounds(packets, core, other, rounds);
  });
}

int copy(std::span<const std::string_view> words) {
  const auto size = number(words[0], 1, kMaxSize);
  const auto times = number(words[1], 1, kMaxTimes);
  if (!size || !times) {
    return fail("a size and a number of copies, please");
  }
  const double per_ns = ticks_per_us() / 1000;
  const auto taken = copy_ticks(*size, *times);
  if (!taken) {
    return fail("no memory");
  }
  const double seconds_e9 = static_cast<double>(*taken) / per_ns;
  print("gb_per_second", static_cast<double>(*size) * static_cast<double>(*times) / seconds_e9);
  print("ns_per_copy", seconds_e9 / static_cast<double>(*times));
  return 0;
}

int stream(std::span<const std::string_view> words) {
  constexpr std::uint64_t kPacketMax = 65'507;
  const auto core = number(words[0], 0, 1 << 16);
  const auto other = number(words[1], 0, 1 << 16);
  const auto packet = number(words[2], 1, kPacketMax);
  const auto trains = number(words[3], 1, kMaxTimes);
  if (!core || !other || !packet || !trains || *core == *other)
    return fail("two different cores, the size of a packet and a number of trains, please");
  const double per_ns = ticks_per_us() / 1000;
  const auto done = udp_stream(static_cast<int>(*core), static_cast<int>(*other), *packet, *trains);
  if (!done) return fail("cannot send trains between these cores");
  print("gb_per_second",
        static_cast<double>(done->bytes) / (static_cast<double>(done->ticks) / per_ns));
  return 0;
}

int run(std::span<const std::string_view> words) {
  const std::string_view what = words.empty() ? "" : words[0];
  if (what == "ticks" && words.size() == 1) {
    print("ticks_per_us", ticks_per_us());
    return 0;
  }
  if (what == "line" && words.size() == 4) {
    return line(Lines::kOne, words.subspan(1));
  }
  if (what == "two-lines" && words.size() == 4) {
    return line(Lines::kTwo, words.subspan(1));
  }
  if (what == "udp" && words.size() == 4) {
    return udp(Packets::kPlain, words.subspan(1));
  }
  if (what == "udp-train" && words.size() == 4) {
    return udp(Packets::kTrain, words.subspan(1));
  }
  if (what == "udp-stream" && words.size() == 5) {
    return stream(words.subspan(1));
  }
  if (what == "copy" && words.size() == 3) {
    return copy(words.subspan(1));
  }
  std::fprintf(stderr,
               "bench_limits ticks | copy SIZE TIMES"
               " | {line | two-lines | udp | udp-train} CORE OTHER-CORE ROUNDS"
               " | udp-stream CORE OTHER-CORE PACKET TRAINS\n");
  return 2;
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  return verbena::bench::run(words);
}
