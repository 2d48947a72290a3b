// SPDX-License-Identifier: MIT
#include "other_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace verbena::verbs::testing {
namespace {

constexpr const char* kVariable = "VERBENA_TEST_PARENT";
constexpr int kPatience = 30'000;  // ms: a busy machine is no failure

std::string folder_of_this_program() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  const std::string whole(path.data(), length < 0 ? 0 : static_cast<std::size_t>(length));
  return whole.substr(0, whole.rfind('/'));
}

union Control {
  cmsghdr head;
  char room[CMSG_SPACE(sizeof(int))];
};

}  // namespace

void Talk::say(std::uint64_t number, int fd) const {
  iovec part{&number, sizeof number};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  if (fd >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
  }
  ASSERT_EQ(static_cast<ssize_t>(sizeof number), sendmsg(socket_.get(), &message, MSG_NOSIGNAL));
}

std::optional<Talk::Word> Talk::hear() const {
  pollfd waiting{socket_.get(), POLLIN, 0};
  if (poll(&waiting, 1, kPatience) != 1) return std::nullopt;
  Word word;
  iovec part{&word.number, sizeof word.number};
  Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) != sizeof word.number) return std::nullopt;
  if (const cmsghdr* const head = CMSG_FIRSTHDR(&message)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
    word.fd = UniqueFd(fd);
  }
  return word;
}

std::uint64_t Talk::number() const {
  const auto word = hear();
  EXPECT_TRUE(word) << "the other process says nothing";
  return word ? word->number : 0;
}

OtherProcess::OtherProcess(const char* scene) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  talk_ = Talk(UniqueFd(ends[0]));
  const UniqueFd theirs(ends[1]);
  // All of it before the fork: the child of a process with threads may do little.
  std::vector<std::string> words{folder_of_this_program() + "/verbs_other_process",
                                 std::string("--gtest_filter=*.") + scene};
  std::array<char, 64> parent{};
  std::snprintf(parent.data(), parent.size(), "%s=%d", kVariable, theirs.get());
  std::vector<std::string> variables{parent.data()};
  for (char** each = environ; *each; ++each) {
    // The report of gtest is the parent's.
    if (std::strncmp(*each, "GTEST_", 6) != 0) variables.emplace_back(*each);
  }
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts)
      all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  const std::vector<char*> arguments = pointers(words);
  const std::vector<char*> environment = pointers(variables);
  pid_ = fork();
  if (pid_ != 0) return;
  fcntl(theirs.get(), F_SETFD, 0);
  execve(arguments[0], arguments.data(), environment.data());
  _exit(127);
}

OtherProcess::~OtherProcess() { kill(); }

void OtherProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

// Waits until it stands.
void OtherProcess::stop() {
  ::kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);
}

void OtherProcess::go_on() { ::kill(pid_, SIGCONT); }

bool OtherProcess::ended_well() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, 0) != pid_) return false;
  pid_ = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Talk OtherProcess::parent() {
  const char* const number = std::getenv(kVariable);
  return Talk(UniqueFd(number ? std::atoi(number) : -1));
}

}  // namespace verbena::verbs::testing
