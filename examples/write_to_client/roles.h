// SPDX-License-Identifier: MIT
// The two roles of this program. Reading path: server.cc, client.cc, endpoint.cc.
//
//   server                                             client
//     |  <----------- rdma_cm: connects ---------------  |
//     |  ---- rdma_cm: accepts; size, checksum ------->  |  allocates and registers memory
//     |  <---- SEND: address and key of its memory ----  |  sleeps until an event
//     |  ==== RDMA WRITE, a few bytes, twice ==========> |
//     |  (with -w: waits; the client may be stopped now) |
//     |  ==== RDMA WRITE, a few bytes =================> |
//     |  ==== RDMA WRITE, 1 MiB each, many at once ===>  |
//     |  ==== an empty RDMA WRITE with immediate ======> |  wakes up, checks its memory
//     |  <---- SEND: verdict --------------------------  |
//
// Plain WRITEs ask nothing of the client's program, so it may be stopped while they come; the one
// with immediate takes a receive and needs the client. For a program above us the server reports
// `connected` after the first few bytes, `moving` (with the bytes so far) when the second ones have
// arrived and now and then from there on, and `written` when all the data has.
#pragma once

#include <cstdint>
#include <string>

namespace write_to_client {

struct Options {
  std::string address = "127.0.0.1";  // of an interface; its device is used
  std::uint16_t port = 0;             // of rdma_cm; the server takes a free one for 0
  std::uint64_t generate = 0;         // bytes of data to make up when there is no file
  std::string file;
  int report = -1;    // a descriptor for "name value" lines, for the program above us
  int wait_for = -1;  // a descriptor: the server writes no data before it gives a byte or ends
  bool quiet = false;
};

inline constexpr std::uint32_t kDone = 0xD04E;  // the immediate data of the last WRITE
inline constexpr std::uint32_t kGreetingBytes = 16;
inline constexpr std::uint32_t kPieceBytes = 1u << 20;
inline constexpr unsigned kPiecesInFlight = 32;

// Both return the exit status.
int run_server(const Options& options);
int run_client(const Options& options);

// Says why on standard error and ends the program.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);

// "name value" for the program above us, if there is one.
void report(const Options& options, const char* name, const std::string& value);

// Seconds since some fixed moment.
double now();

}  // namespace write_to_client
