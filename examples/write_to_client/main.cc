// SPDX-License-Identifier: MIT
// A server writes a file into the memory of a client by RDMA.
//
//   verbena-write-to-client server [-b ADDRESS] [-p PORT] [-n BYTES | FILE]
//   verbena-write-to-client client -p PORT [HOST]
#include <getopt.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "write_to_client/roles.h"

namespace write_to_client {

void fail(const char* format, ...) {
  std::fputs("write-to-client: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::exit(1);
}

void report(const Options& options, const char* name, const std::string& value) {
  if (options.report < 0) return;
  const std::string line = std::string(name) + " " + value + "\n";
  if (write(options.report, line.data(), line.size()) < 0) fail("report: %s", std::strerror(errno));
}

double now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

namespace {

[[noreturn]] void usage(int status) {
  std::fputs(
      "A server writes a file into the memory of a client by RDMA.\n"
      "  verbena-write-to-client server [OPTIONS] [FILE]   waits for a client\n"
      "  verbena-write-to-client client [OPTIONS] [HOST]   offers memory to the server\n"
      "Options:\n"
      "  -p PORT      the port of rdma_cm to meet at (the server takes a free one)\n"
      "  -b ADDRESS   where the server listens (127.0.0.1); 0.0.0.0: everywhere\n"
      "  -n BYTES     make up so much data instead of reading a file (1 GiB)\n"
      "  -r FD        write results to this descriptor, as `name value` lines\n"
      "  -w FD        (server) write no data before this descriptor gives a byte or ends\n"
      "  -q           print no progress\n",
      status == 0 ? stdout : stderr);
  std::exit(status);
}

std::uint64_t number(const char* text, std::uint64_t most) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end || errno || value > most) {
    fail("'%s' is not a number from 0 to %llu", text, static_cast<unsigned long long>(most));
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  options.generate = std::uint64_t{1} << 30;
  for (int option = 0; (option = getopt(argc, argv, "p:b:n:r:w:qh")) != -1;) {
    switch (option) {
      case 'p': options.port = static_cast<std::uint16_t>(number(optarg, 65535)); break;
      case 'b': options.address = optarg; break;
      case 'n': options.generate = number(optarg, std::uint64_t{1} << 46); break;
      case 'r': options.report = static_cast<int>(number(optarg, 1 << 20)); break;
      case 'w': options.wait_for = static_cast<int>(number(optarg, 1 << 20)); break;
      case 'q': options.quiet = true; break;
      case 'h': usage(0);
      default: usage(2);
    }
  }
  return options;
}

}  // namespace
}  // namespace write_to_client

int main(int argc, char** argv) {
  using namespace write_to_client;  // NOLINT(google-build-using-namespace): main
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "-h" || role == "--help") usage(0);
  if (role != "server" && role != "client") usage(2);
  Options options = parse(argc - 1, argv + 1);
  const int left = argc - 1 - optind;
  const char* rest = left > 0 ? argv[1 + optind] : nullptr;
  if (left > 1) usage(2);
  if (role == "server") {
    if (rest) options.file = rest;
    return run_server(options);
  }
  if (rest) options.address = rest;
  if (options.port == 0) fail("a client needs the server's port (-p)");
  return run_client(options);
}
