// SPDX-License-Identifier: MIT
// `verbena demo`: a server writes into the memory of a client by RDMA, then programs from Debian
// run, all of it between two processes and without RDMA hardware.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/demo_parts.h"
#include "cli/launch.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "nic/device.h"
#include "wire/ip.h"

namespace verbena::cli {
namespace {

constexpr std::uint64_t kDefaultBytes = std::uint64_t{1} << 30;
constexpr char kProgram[] = "verbena-write-to-client";
constexpr std::uint16_t kMeetingPort = 20'049;  // of rdma_cm, for two machines

int failed(const std::string& why) {
  fmt::print(stderr, "{} {}\n", styled(Style::kBad, "verbena demo:"), why);
  return 1;
}

// An address by which the device can be named; nothing where it has only link-local ones.
std::optional<std::string> address_of(const nic::Device& device) {
  for (const Gid& gid : device.gids) {
    char text[INET6_ADDRSTRLEN] = "";
    const bool is_ipv4 = wire::is_ipv4(gid);
    if (!is_ipv4 && gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80) continue;
    if (inet_ntop(is_ipv4 ? AF_INET : AF_INET6, gid.bytes + (is_ipv4 ? 12 : 0), text,
                  sizeof text)) {
      return text;
    }
  }
  return std::nullopt;
}

// The first device that can be used.
const nic::Device* usable(const std::vector<nic::Device>& devices) {
  for (const nic::Device& device : devices) {
    if (device.is_up && address_of(device)) return &device;
  }
  return nullptr;
}

bool is_in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string_view left = path ? path : "/usr/bin:/bin";
  while (!left.empty()) {
    const std::size_t end = std::min(left.find(':'), left.size());
    const std::string candidate = std::string(left.substr(0, end)) + "/" + program;
    if (access(candidate.c_str(), X_OK) == 0) return true;
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return false;
}

class Demo final : public Command {
 public:
  explicit Demo(CLI::App& app) {
    app.add_option("FILE", file_, "What the server writes; 1 GiB of made-up data without it");
    app.add_option("--bytes", bytes_, "Make up so many bytes instead");
    app.add_flag("--only-write", only_write_, "Leave Debian's programs out");
    auto* const listen =
        app.add_flag("--listen", listens_, "Be the server, for a client on another machine");
    app.add_option("--connect", host_, "Be the client of the server on this machine")
        ->type_name("HOST")
        ->excludes(listen);
    app.add_option("--port", port_, "The port of rdma_cm where the two meet")
        ->capture_default_str();
  }
  int run(const std::vector<std::string>&) override;

 private:
  Result<WriteToClient, std::string> plan(const nic::Device& device);
  bool run_benches(const std::string& device, std::vector<Row>& rows);
  int run_half(const WriteToClient& job) const;

  std::string file_;
  std::uint64_t bytes_ = kDefaultBytes;
  bool only_write_ = false;
  bool listens_ = false;
  std::string host_;
  std::uint16_t port_ = kMeetingPort;
};

Result<WriteToClient, std::string> Demo::plan(const nic::Device& device) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  WriteToClient job = {.program = (self.parent_path() / kProgram).string(),
                       .device = device.name,
                       .address = address_of(device).value_or(""),
                       .file = file_,
                       .bytes = bytes_};
  if (access(job.program.c_str(), X_OK) != 0) return refuse(job.program + " is missing");
  const std::uint64_t available = available_memory();
  if (!file_.empty()) {
    struct stat status = {};
    if (stat(file_.c_str(), &status) != 0) return refuse(file_ + ": " + std::strerror(errno));
    if (!S_ISREG(status.st_mode)) return refuse(file_ + ": not a regular file");
    job.bytes = static_cast<std::uint64_t>(status.st_size);
    if (job.bytes > available) {
      return refuse(fmt::format("{} has {}, and the client has memory for {}", file_,
                                spell_bytes(job.bytes), spell_bytes(available)));
    }
    return job;
  }
  job.bytes = fitting_size(bytes_, available);
  if (job.bytes < bytes_) {
    fmt::print("Memory is short here ({} to spare): {} of data instead of {}.\n\n",
               spell_bytes(available), spell_bytes(job.bytes), spell_bytes(bytes_));
  }
  return job;
}

void introduce(const WriteToClient& job) {
  const bool has_hardware = access("/sys/class/infiniband", F_OK) == 0;
  fmt::print("{}\n\n", styled(Style::kBold, "A server writes into the memory of a client by RDMA"));
  fmt::print("  device  {}, made of software{}\n", job.device,
             has_hardware ? "" : ": this machine has no RDMA hardware");
  fmt::print("  data    {}{}\n", spell_bytes(job.bytes),
             job.file.empty() ? ", made up" : ", " + job.file);
  fmt::print("  client  connects by rdma_cm, tells where its memory is, and its key, and sleeps\n");
  fmt::print("  server  writes there with RDMA WRITE; the client takes no part in it\n");
  std::fflush(stdout);
}

std::vector<Row> rows_of(const Written& written) {
  const double bytes = static_cast<double>(written.bytes);
  const double rate = written.seconds > 0 ? bytes / written.seconds : 0;
  const double check_rate = written.check_seconds > 0 ? bytes / written.check_seconds : 0;
  return {{"RDMA WRITE to the client",
           fmt::format("{} in {} piece{}", spell_bytes(written.bytes), spell_count(written.pieces),
                       written.pieces == 1 ? "" : "s"),
           spell_rate(rate)},
          {"the client meanwhile",
           written.was_stopped ? "stopped (SIGSTOP)" : "took part (was not stopped)",
           fmt::format("{:.1f} ms of CPU", written.client_seconds * 1e3)},
          {"its memory afterwards", "XXH64 " + written.checksum,
           fmt::format("right, checked at {}", spell_rate(check_rate))}};
}

// Returns whether all of them ran.
bool Demo::run_benches(const std::string& device, std::vector<Row>& rows) {
  bool all = true;
  for (const Bench bench : kBenches) {
    const std::string program = program_of(bench);
    if (!is_in_path(program)) {
      rows.push_back({program, "not installed", "apt install perftest ibverbs-utils"});
      continue;
    }
    fmt::print("  {} ...", program);
    std::fflush(stdout);
    const Result<Figure, std::string> figure = measure(bench, device);
    if (figure) {
      fmt::print(" {}\n", figure->value);
      rows.push_back({program, figure->what, figure->value});
    } else {
      fmt::print(" {}\n{}\n", styled(Style::kBad, "failed"), figure.error());
      rows.push_back({program, "", "failed"});
      all = false;
    }
  }
  return all;
}

void print_results(std::vector<Row> rows) {
  for (Row& row : rows) {
    const bool is_bad = row.back() == "failed";
    row.back() = styled(is_bad ? Style::kBad : Style::kGood, row.back());
  }
  std::string lines = aligned(rows);
  fmt::print("\n{}\n", styled(Style::kBold, "Between two processes of this machine"));
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    fmt::print("  {}\n", lines.substr(0, end));
    lines.erase(0, end + 1);
  }
}

// One of the two only: it takes the place of this process, and says by itself how it goes.
int Demo::run_half(const WriteToClient& job) const {
  std::vector<std::string> words = {job.program, host_.empty() ? "server" : "client", "-p",
                                    std::to_string(port_)};
  if (!host_.empty()) {
    words.insert(words.end(), {"--", host_});
  } else {
    fmt::print("On the other machine:  verbena demo --connect ADDRESS{}\n",
               port_ == kMeetingPort ? "" : fmt::format(" --port {}", port_));
    words.insert(words.end(), {"-b", "::"});
    if (job.file.empty()) {
      words.insert(words.end(), {"-n", std::to_string(job.bytes)});
    } else {
      words.insert(words.end(), {"--", job.file});
    }
  }
  std::fflush(stdout);
  std::vector<char*> arguments;
  for (std::string& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  return failed(words[0] + ": " + std::strerror(errno));
}

int Demo::run(const std::vector<std::string>&) {
  const std::vector<nic::Device> devices = nic::devices();
  const nic::Device* device = usable(devices);
  if (!device) return failed("no network interface has an address, not even lo");
  const Result<WriteToClient, std::string> job = plan(*device);
  if (!job) return failed(job.error());
  const bool is_half = listens_ || !host_.empty();
  if (!is_half) introduce(*job);
  const Result<LaunchEnvironment, std::string> environment = launch_environment();
  if (!environment) return failed(environment.error());
  apply(*environment);
  if (is_half) return run_half(*job);

  const Result<Written, std::string> written = write_to_client(*job);
  if (!written) return failed(written.error());
  std::vector<Row> rows = rows_of(*written);
  bool all = true;
  if (!only_write_) {
    fmt::print("\n{}\n\n", styled(Style::kBold, "Unmodified programs from Debian on the same NIC"));
    all = run_benches(job->device, rows);
  }
  print_results(std::move(rows));
  return all ? 0 : 1;
}

}  // namespace

std::unique_ptr<Command> add_demo(CLI::App& app) {
  app.footer(
      "Everything runs on this machine, as an ordinary user, and ends with this command. With\n"
      "--listen here and --connect HOST there it runs between two machines.");
  return std::make_unique<Demo>(app);
}

}  // namespace verbena::cli
