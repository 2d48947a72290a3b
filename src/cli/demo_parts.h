// SPDX-License-Identifier: MIT
// The parts of `verbena demo`: each runs a pair of processes and says what came of it. The
// environment of this process is already the one that programs need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace verbena::cli {

// A server writes into the memory of a client, which is stopped meanwhile.
struct WriteToClient {
  std::string program;  // verbena-write-to-client
  std::string device;
  std::string address;      // the device's, where the two meet by rdma_cm
  std::string file;         // empty: made-up data
  std::uint64_t bytes = 0;  // of the file, or to make up
};
struct Written {
  std::uint64_t bytes = 0;
  std::uint64_t pieces = 0;
  double seconds = 0;
  double check_seconds = 0;
  bool was_stopped = false;   // the client, from before the first byte of the data to the last
  double client_seconds = 0;  // processor time of the client's process while the data came
  std::string checksum;
};
Result<Written, std::string> write_to_client(const WriteToClient& job);

// Debian's programs. A figure is what is said of it in a table: "11.8 GB/s".
struct Figure {
  std::string what;
  std::string value;
};
enum class Bench : std::uint8_t { kWriteBandwidth, kWriteLatency, kPingpong };
inline constexpr Bench kBenches[] = {Bench::kWriteBandwidth, Bench::kWriteLatency,
                                     Bench::kPingpong};

const char* program_of(Bench bench);
Result<Figure, std::string> measure(Bench bench, const std::string& device);

// What a bench's output says; nothing where it holds no result.
std::optional<Figure> read_figure(Bench bench, std::string_view output);

// Memory that can be used here without hurting anybody: of the machine and of the control group.
std::uint64_t available_memory();

// How much data to make up: `wanted`, or less where two copies would not fit.
std::uint64_t fitting_size(std::uint64_t wanted, std::uint64_t available);

}  // namespace verbena::cli
