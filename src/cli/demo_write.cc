// SPDX-License-Identifier: MIT
// The main job of the demo: two processes, one writes into the memory of the other.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include "base/unique_fd.h"
#include "cli/child.h"
#include "cli/demo_parts.h"

namespace verbena::cli {
namespace {

constexpr double kPrepareSeconds = 300;  // a slow machine makes up its data
constexpr double kSlowestBytesASecond = 20e6;
constexpr std::uint64_t kMebi = 1u << 20;
constexpr std::uint64_t kSlack = 128 * kMebi;  // for the programs themselves
constexpr std::uint64_t kSizeMin = kMebi;

// What a child reports by "name value" lines, collected as it comes.
class Report {
 public:
  Report() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) == 0) {
      read_ = UniqueFd(ends[0]);
      write_ = UniqueFd(ends[1]);
    }
  }
  int write_end() const { return write_.get(); }
  // The child has it now; when it ends, so does the report.
  void started() { write_.reset(); }
  const std::string& text() const { return text_; }

  // Waits for a value; nothing where the child ended before, or time is up.
  std::optional<std::string> wait_for(std::string_view name, double seconds) {
    const double end = seconds_now() + seconds;
    for (;;) {
      if (std::optional<std::string> value = value_in(text_, name)) return value;
      const double left = end - seconds_now();
      if (left <= 0 || !read_more(static_cast<int>(left * 1000))) return std::nullopt;
    }
  }
  void read_to_end() {
    while (read_more(1000)) {
    }
  }

 private:
  bool read_more(int milliseconds) {
    pollfd one = {.fd = read_.get(), .events = POLLIN, .revents = 0};
    const int ready = poll(&one, 1, milliseconds);
    if (ready < 0 && errno == EINTR) return true;
    if (ready <= 0) return false;
    char part[512];
    const ssize_t length = read(read_.get(), part, sizeof part);
    if (length > 0) text_.append(part, static_cast<std::size_t>(length));
    return length > 0;
  }

  UniqueFd read_;
  UniqueFd write_;
  std::string text_;
};

double number_in(const Report& report, std::string_view name) {
  return std::atof(value_in(report.text(), name).value_or("0").c_str());
}

Result<Child, std::string> start(const std::vector<std::string>& words, Report& report) {
  Result<Child, std::string> child =
      Child::start(words, {.captures_output = false, .inherited = report.write_end()});
  report.started();
  return child;
}

std::uint64_t number_in_file(const std::string& path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : otherwise;
}

std::uint64_t kibibytes_in_meminfo(std::string_view name) {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::uint64_t number = 0;
  while (file >> word) {
    if (word == name && file >> number) return number;
  }
  return 0;
}

// Where the control group of this process is mounted (cgroup v2), in a container its root.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "/sys/fs/cgroup";
}

Written result_of(const Report& server, const Report& client) {
  Written written;
  written.bytes = static_cast<std::uint64_t>(number_in(server, "bytes"));
  written.pieces = static_cast<std::uint64_t>(number_in(server, "pieces"));
  written.seconds = number_in(server, "seconds");
  written.checksum = value_in(server.text(), "checksum").value_or("");
  written.check_seconds = number_in(client, "check_seconds");
  written.client_thread_seconds = number_in(client, "client_thread_seconds");
  return written;
}

}  // namespace

std::optional<std::string> value_in(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    if (end == std::string_view::npos) return std::nullopt;  // still being written
    const std::string_view line = lines.substr(0, end);
    if (line.starts_with(name) && line.substr(name.size()).starts_with(' ')) {
      return std::string(line.substr(name.size() + 1));
    }
    lines.remove_prefix(end + 1);
  }
  return std::nullopt;
}

std::uint64_t available_memory() {
  const std::uint64_t machine = kibibytes_in_meminfo("MemAvailable:") * 1024;
  const std::string group = control_group();
  constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t most = number_in_file(group + "/memory.max", kNoLimit);
  const std::uint64_t used = number_in_file(group + "/memory.current", 0);
  return std::min(machine, most > used ? most - used : 0);
}

std::uint64_t fitting_size(std::uint64_t wanted, std::uint64_t available) {
  while (wanted > kSizeMin && 2 * wanted + kSlack > available)
    wanted /= 2;
  return wanted;
}

Result<Written, std::string> write_to_client(const WriteToClient& job) {
  Report server_report;
  Report client_report;
  if (server_report.write_end() < 0 || client_report.write_end() < 0) {
    return refuse(fmt::format("pipe: {}", std::strerror(errno)));
  }
  std::vector<std::string> words = {
      job.program, "server", "-d", job.device, "-r", std::to_string(server_report.write_end())};
  if (job.file.empty()) {
    words.insert(words.end(), {"-n", std::to_string(job.bytes)});
  } else {
    words.insert(words.end(), {"--", job.file});
  }
  Result<Child, std::string> server = start(words, server_report);
  if (!server) return refuse(server.error());
  const std::optional<std::string> port = server_report.wait_for("port", kPrepareSeconds);
  if (!port) return refuse(std::string("the server did not come up"));

  const std::string report = std::to_string(client_report.write_end());
  Result<Child, std::string> client =
      start({job.program, "client", "-d", job.device, "-p", *port, "-r", report}, client_report);
  if (!client) return refuse(client.error());

  const double patience = kPrepareSeconds + static_cast<double>(job.bytes) / kSlowestBytesASecond;
  const std::optional<int> client_status = client->wait(patience);
  if (!client_status) return refuse(std::string("the client did not finish"));
  const std::optional<int> server_status = server->wait(kPrepareSeconds);
  if (*client_status != 0) return refuse(fmt::format("the client failed ({})", *client_status));
  if (server_status != 0) return refuse(std::string("the server failed"));
  server_report.read_to_end();
  client_report.read_to_end();
  return result_of(server_report, client_report);
}

}  // namespace verbena::cli
