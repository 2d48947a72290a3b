// SPDX-License-Identifier: MIT
// The main job of the demo: two processes, one writes into the memory of the other, which is
// stopped while that happens.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "cli/child.h"
#include "cli/demo_parts.h"
#include "cli/demo_report.h"

namespace verbena::cli {
namespace {

constexpr double kPrepareSeconds = 300;  // a slow machine makes up its data
constexpr double kSlowestBytesASecond = 20e6;
constexpr double kStopSeconds = 5;
constexpr double kSilenceSeconds = 2;  // without any news of the data

// The server waits for the end of this pipe.
struct StartSignal {
  static Result<StartSignal, std::string> make() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0) return refuse(fmt::format("pipe: {}", std::strerror(errno)));
    return StartSignal{.read = UniqueFd(ends[0]), .write = UniqueFd(ends[1])};
  }
  void give() { write.reset(); }

  UniqueFd read;
  UniqueFd write;
};

// A child that is stopped for as long as this lives. Should we be killed, it is killed, too.
class Stopped {
 public:
  explicit Stopped(Child& child) : child_(child), is_stopped_(child.stop(kStopSeconds)) {}
  ~Stopped() { child_.resume(); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  explicit operator bool() const { return is_stopped_; }

 private:
  Child& child_;
  bool is_stopped_;
};

void say(const std::string& line) {
  fmt::print("  {}\n", line);
  std::fflush(stdout);
}

// Lets the data come while the client is stopped. The client's processor time meanwhile; nothing
// where it had to take part.
std::optional<double> write_to_stopped(Child& client, Report& server, StartSignal& signal) {
  const Stopped stopped(client);
  if (!stopped) {
    say("client  could not be stopped\n");
    signal.give();
    return std::nullopt;
  }
  say("client  is stopped by SIGSTOP while the data comes\n");
  const auto before = client.cpu_nanoseconds();
  client.was_resumed();  // forget what was before
  signal.give();
  const bool is_written = server.wait_while_moving("written", kSilenceSeconds).has_value();
  const auto after = client.cpu_nanoseconds();
  if (client.was_resumed()) {
    say("client  was let go on by somebody else");
    return std::nullopt;
  }
  if (!is_written) {
    if (!server.has_ended()) {
      say(fmt::format("client  goes on by SIGCONT: nothing moved for {:.0f} s, it has to take part",
                      kSilenceSeconds));
    }
    return std::nullopt;
  }
  if (!before || !after) {
    say("client  goes on by SIGCONT; the system does not tell its CPU time");
    return std::nullopt;
  }
  const double seconds = static_cast<double>(*after - *before) * 1e-9;
  say(fmt::format("client  goes on by SIGCONT; it has used {:.1f} ms of CPU meanwhile",
                  seconds * 1e3));
  return seconds;
}

Result<Child, std::string> start_server(const WriteToClient& job, Report& report,
                                        StartSignal& signal) {
  const int reports_to = report.write_end();
  std::vector<std::string> words = {job.program, "server",
                                    "-b",        job.address,
                                    "-r",        std::to_string(reports_to),
                                    "-w",        std::to_string(signal.read.get())};
  if (job.file.empty()) {
    words.insert(words.end(), {"-n", std::to_string(job.bytes)});
  } else {
    words.insert(words.end(), {"--", job.file});
  }
  Result<Child, std::string> server =
      Child::start(words, {.captures_output = false, .inherited = {reports_to, signal.read.get()}});
  report.started();
  signal.read.reset();
  return server;
}

Result<Child, std::string> start_client(const WriteToClient& job, const std::string& port,
                                        Report& report) {
  const int reports_to = report.write_end();
  Result<Child, std::string> client = Child::start(
      {job.program, "client", "-p", port, "-r", std::to_string(reports_to), job.address},
      {.captures_output = false, .inherited = {reports_to}});
  report.started();
  return client;
}

Written result_of(const Report& server, const Report& client, std::optional<double> stopped) {
  Written written;
  written.bytes = static_cast<std::uint64_t>(server.number("bytes"));
  written.pieces = static_cast<std::uint64_t>(server.number("pieces"));
  written.seconds = server.number("written");
  written.checksum = server.value("checksum").value_or("");
  written.check_seconds = client.number("check_seconds");
  written.was_stopped = stopped.has_value();
  written.client_seconds = stopped.value_or(client.number("client_process_seconds"));
  return written;
}

}  // namespace

Result<Written, std::string> write_to_client(const WriteToClient& job) {
  Report server_report;
  Report client_report;
  if (server_report.write_end() < 0 || client_report.write_end() < 0) {
    return refuse(fmt::format("pipe: {}", std::strerror(errno)));
  }
  Result<StartSignal, std::string> signal = StartSignal::make();
  if (!signal) return refuse(signal.error());
  Result<Child, std::string> server = start_server(job, server_report, *signal);
  if (!server) return refuse(server.error());
  const std::optional<std::string> port = server_report.wait_for("port", kPrepareSeconds);
  if (!port) return refuse(std::string("the server did not come up"));
  Result<Child, std::string> client = start_client(job, *port, client_report);
  if (!client) return refuse(client.error());

  // Where they do not connect, they say why themselves.
  std::optional<double> stopped;
  if (server_report.wait_for("connected", kPrepareSeconds)) {
    stopped = write_to_stopped(*client, server_report, *signal);
  }
  signal->give();
  const double patience = kPrepareSeconds + static_cast<double>(job.bytes) / kSlowestBytesASecond;
  const std::optional<int> client_status = client->wait(patience);
  if (!client_status) return refuse(std::string("the client did not finish"));
  const std::optional<int> server_status = server->wait(kPrepareSeconds);
  if (*client_status != 0) return refuse(fmt::format("the client failed ({})", *client_status));
  if (server_status != 0) return refuse(std::string("the server failed"));
  server_report.read_to_end();
  client_report.read_to_end();
  return result_of(server_report, client_report, stopped);
}

}  // namespace verbena::cli
