// SPDX-License-Identifier: MIT
// Debian's RDMA programs as parts of the demo.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "cli/child.h"
#include "cli/demo_parts.h"
#include "cli/terminal.h"

namespace verbena::cli {
namespace {

constexpr double kStartSeconds = 20;
constexpr double kRunSeconds = 120;
constexpr double kBytesInMebi = 1024.0 * 1024.0;

std::vector<std::string> words_of(Bench bench, const std::string& device, unsigned port) {
  const std::string number = std::to_string(port);
  switch (bench) {
    case Bench::kWriteBandwidth:
    case Bench::kWriteLatency:
      // -F: no warning about the processor's changing frequency.
      return {program_of(bench), "-F", "-d", device, "-p", number};
    case Bench::kPingpong: return {program_of(bench), "-d", device, "-g", "0", "-p", number};
  }
  return {};
}

// The last lines of what a program said, for the one who has to find out why it failed.
std::string tail(const std::string& output) {
  constexpr std::size_t kMost = 2000;
  return output.size() > kMost ? output.substr(output.size() - kMost) : output;
}

// The numbers of the first line that consists of `count` of them or more.
std::vector<double> first_row(std::string_view output, std::size_t count) {
  std::istringstream lines{std::string(output)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<double> numbers;
    for (double number = 0; words >> number;)
      numbers.push_back(number);
    if (numbers.size() >= count && words.eof()) return numbers;
  }
  return {};
}

// "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]"
std::optional<Figure> read_bandwidth(std::string_view output) {
  const std::vector<double> row = first_row(output, 5);
  if (row.empty()) return std::nullopt;
  return Figure{spell_bytes(static_cast<std::uint64_t>(row[0])) + " a WRITE",
                spell_rate(row[3] * kBytesInMebi)};
}

// "#bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%", in microseconds
std::optional<Figure> read_latency(std::string_view output) {
  const std::vector<double> row = first_row(output, 8);
  if (row.empty()) return std::nullopt;
  return Figure{spell_bytes(static_cast<std::uint64_t>(row[0])) + " a WRITE, one way",
                fmt::format("{:.2f} us (99 %: {:.2f})", row[4], row[7])};
}

// "1000 iters in 0.01 seconds = 7.24 usec/iter"
std::optional<Figure> read_pingpong(std::string_view output) {
  const std::size_t end = output.find(" usec/iter");
  if (end == std::string_view::npos) return std::nullopt;
  const std::size_t start = output.rfind(' ', end - 1);
  const double microseconds = std::atof(std::string(output.substr(start + 1, end)).c_str());
  return Figure{"4 KiB by SEND and back", fmt::format("{:.2f} us", microseconds)};
}

}  // namespace

const char* program_of(Bench bench) {
  switch (bench) {
    case Bench::kWriteBandwidth: return "ib_write_bw";
    case Bench::kWriteLatency: return "ib_write_lat";
    case Bench::kPingpong: return "ibv_rc_pingpong";
  }
  return "";
}

std::optional<Figure> read_figure(Bench bench, std::string_view output) {
  switch (bench) {
    case Bench::kWriteBandwidth: return read_bandwidth(output);
    case Bench::kWriteLatency: return read_latency(output);
    case Bench::kPingpong: return read_pingpong(output);
  }
  return std::nullopt;
}

Result<Figure, std::string> measure(Bench bench, const std::string& device) {
  const char* program = program_of(bench);
  const unsigned port = free_port();
  std::vector<std::string> words = words_of(bench, device, port);
  Result<Child, std::string> server = Child::start(words, {});
  if (!server) return refuse(server.error());
  for (const double start = seconds_now(); !is_listening(port);) {
    if (server->wait(0.01)) {
      return refuse(fmt::format("{} (server) ended at once:\n{}", program, tail(server->output())));
    }
    if (seconds_now() - start > kStartSeconds) {
      return refuse(fmt::format("{} (server) did not start to listen", program));
    }
  }
  words.emplace_back("127.0.0.1");
  Result<Child, std::string> client = Child::start(words, {});
  if (!client) return refuse(client.error());
  const std::optional<int> status = client->wait(kRunSeconds);
  if (!status) {
    return refuse(fmt::format("{} did not finish in {:.0f} seconds:\n{}", program, kRunSeconds,
                              tail(client->output())));
  }
  const std::optional<Figure> figure = read_figure(bench, client->output());
  if (*status != 0 || !figure) {
    return refuse(
        fmt::format("{} failed:\n{}{}", program, tail(client->output()), tail(server->output())));
  }
  if (server->wait(kStartSeconds) != 0) {
    return refuse(fmt::format("{} (server) failed:\n{}", program, tail(server->output())));
  }
  return *figure;
}

}  // namespace verbena::cli
