// SPDX-License-Identifier: MIT
#include "write_to_client/progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace write_to_client {
namespace {

constexpr double kFrameSeconds = 0.05;
constexpr std::uint64_t kBarCells = 40;
constexpr double kMebi = 1024.0 * 1024.0;

double gigabytes_a_second(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

}  // namespace

Progress::Progress(std::uint64_t total, bool quiet)
    : total_(total), quiet_(quiet), is_terminal_(isatty(STDOUT_FILENO) == 1) {}

void Progress::at(std::uint64_t done, double seconds) {
  if (quiet_) return;
  const bool is_end = done == total_;
  if (is_terminal_) {
    if (seconds < next_seconds_ && !is_end) return;
    next_seconds_ = seconds + kFrameSeconds;
    draw(done, seconds);
    return;
  }
  const auto quarter = is_end ? 4u : static_cast<unsigned>(done / (total_ / 4 + 1));
  if (quarter < next_quarter_) return;
  next_quarter_ = quarter + 1;
  std::printf("  %3u %%  %.0f of %.0f MiB, %.1f GB/s\n", quarter * 25,
              static_cast<double>(done) / kMebi, static_cast<double>(total_) / kMebi,
              gigabytes_a_second(done, seconds));
  std::fflush(stdout);
}

void Progress::draw(std::uint64_t done, double seconds) {
  const std::uint64_t cells = total_ ? done * kBarCells / total_ : kBarCells;
  std::string bar;
  for (std::uint64_t i = 0; i < kBarCells; ++i)
    bar += i < cells ? "█" : "░";
  std::printf("\r  %s %3.0f %%  %.0f MiB  %.1f GB/s \033[K", bar.c_str(),
              total_ ? 100.0 * static_cast<double>(done) / static_cast<double>(total_) : 100.0,
              static_cast<double>(done) / kMebi, gigabytes_a_second(done, seconds));
  if (done == total_) std::printf("\n");
  std::fflush(stdout);
}

}  // namespace write_to_client
