// SPDX-License-Identifier: MIT
#include "cli/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "cli/system_text.h"

namespace verbena::cli {
namespace {

constexpr long kLookNanoseconds = 2'000'000;  // between two looks at a child
constexpr std::size_t kOutputMax = 1 << 20;

// In the child: nothing but system calls.
[[noreturn]] void become(char** words, int output, const std::vector<int>& inherited,
                         pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before we asked
  if (output >= 0) {
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) _exit(127);
    if (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0) _exit(127);
  }
  for (const int descriptor : inherited)
    fcntl(descriptor, F_SETFD, 0);
  execvp(words[0], words);
  _exit(127);
}

void pause_between_looks() {
  const timespec pause = {.tv_sec = 0, .tv_nsec = kLookNanoseconds};
  nanosleep(&pause, nullptr);
}

bool has_listener(const char* table, unsigned port) {
  std::ifstream file(table);
  std::string line;
  while (std::getline(file, line)) {
    if (is_listener(line, port)) return true;
  }
  return false;
}

}  // namespace

Result<Child, std::string> Child::start(const std::vector<std::string>& words, Options options) {
  std::vector<std::string> copies = words;
  std::vector<char*> arguments;
  for (std::string& word : copies)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  UniqueFd output;
  if (options.captures_output) {
    output = UniqueFd(memfd_create("output", MFD_CLOEXEC));
    if (output.get() < 0) return refuse(fmt::format("memfd_create: {}", std::strerror(errno)));
    // Programs that write line by line and by two descriptors must not overwrite each other.
    fcntl(output.get(), F_SETFL, O_APPEND);
  }
  std::fflush(stdout);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return refuse(fmt::format("fork: {}", std::strerror(errno)));
  if (pid == 0) become(arguments.data(), output.get(), options.inherited, parent);
  return Child(pid, std::move(output));
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      status_(other.status_),
      output_(std::move(other.output_)) {}

Child::~Child() { kill(); }

std::optional<int> Child::wait(double seconds) {
  const double end = seconds_now() + seconds;
  while (!status_) {
    int raw = 0;
    const pid_t ended = waitpid(pid_, &raw, WNOHANG);
    if (ended == pid_) {
      note_end(raw);
    } else if (ended < 0 && errno != EINTR) {
      status_ = 127;
    } else if (seconds_now() >= end) {
      return std::nullopt;
    } else {
      pause_between_looks();
    }
  }
  return status_;
}

void Child::note_end(int raw) { status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw); }

bool Child::stop(double seconds) {
  if (pid_ < 0 || status_ || ::kill(pid_, SIGSTOP) != 0) return false;
  for (const double end = seconds_now() + seconds; seconds_now() < end; pause_between_looks()) {
    int raw = 0;
    const pid_t changed = waitpid(pid_, &raw, WNOHANG | WUNTRACED);
    if (changed != pid_) continue;
    if (WIFSTOPPED(raw)) return stands_still(end);
    note_end(raw);
    return false;
  }
  return false;
}

// The last thread to stop says so before it leaves its processor.
bool Child::stands_still(double end) const {
  for (auto before = cpu_nanoseconds(); seconds_now() < end;) {
    pause_between_looks();
    const auto after = cpu_nanoseconds();
    if (before == after) return true;
    before = after;
  }
  return false;
}

void Child::resume() {
  if (pid_ >= 0 && !status_) ::kill(pid_, SIGCONT);
}

bool Child::was_resumed() {
  int raw = 0;
  if (pid_ < 0 || status_ || waitpid(pid_, &raw, WNOHANG | WCONTINUED) != pid_) return false;
  if (!WIFCONTINUED(raw)) note_end(raw);
  return WIFCONTINUED(raw);
}

std::optional<std::uint64_t> Child::cpu_nanoseconds() const {
  clockid_t clock = 0;
  timespec time = {};
  if (pid_ < 0 || status_ || clock_getcpuclockid(pid_, &clock) != 0) return std::nullopt;
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

void Child::kill() {
  if (pid_ < 0 || status_) return;
  ::kill(pid_, SIGKILL);
  int raw = 0;
  while (waitpid(pid_, &raw, 0) < 0 && errno == EINTR) {
  }
  status_ = 128 + SIGKILL;
}

std::string Child::output() const {
  std::string text(kOutputMax, '\0');
  const ssize_t length = output_ ? pread(output_.get(), text.data(), text.size(), 0) : 0;
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return text;
}

unsigned free_port() {
  const UniqueFd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(probe.get(), generic, size) != 0) return 0;
  if (getsockname(probe.get(), generic, &size) != 0) return 0;
  return be16toh(address.sin_port);
}

bool is_listening(unsigned port) {
  return has_listener("/proc/self/net/tcp", port) || has_listener("/proc/self/net/tcp6", port);
}

double seconds_now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace verbena::cli
