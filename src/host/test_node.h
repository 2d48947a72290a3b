// SPDX-License-Identifier: MIT
// For tests: a control thread that remembers what it was told, and forked processes with one.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/control.h"

namespace verbena::host {

// Waits for something that is bound to happen soon; false after a time that no machine needs.
template <class Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// Its own names, so that tests that run at the same time do not meet.
inline ControlOptions test_options() {
  static const std::string name = "verbena-test/" + std::to_string(getpid()) + "/";
  return {.slot_name = name};
}

class Node final : public ControlEvents {
 public:
  explicit Node(ControlOptions options = test_options()) {
    auto started = Control::start(*this, random_, std::move(options));
    if (started) {
      control = std::move(*started);
    } else {
      error = started.error();
    }
  }
  ~Node() { EXPECT_TRUE(!control || control->stop()); }

  // Runs on the control thread, and waits for it.
  template <class Body>
  auto on_thread(Body body) {
    decltype(body()) result{};
    std::atomic<bool> done = false;
    EXPECT_TRUE(control->submit([&] {
      result = body();
      done = true;
    }));
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    return result;
  }

  // Looks at what was recorded.
  template <class Body>
  auto with(Body body) {
    const std::lock_guard lock(mutex_);
    return body();
  }
  void connect(SlotNumber slot) {
    EXPECT_TRUE(control->submit([this, slot] { control->connect(slot); }));
  }
  // connect() and its answer. The peer, or none and why.
  std::optional<PeerId> reach(SlotNumber slot) {
    connect(slot);
    EXPECT_TRUE(eventually([&] { return with([&] { return answers.contains(slot); }); }));
    return with([&] {
      const auto answer = answers.extract(slot).mapped();
      why = answer.second;
      return answer.first;
    });
  }
  bool send(PeerId to, const std::string& text) {
    return on_thread([&] { return control->send(to, std::as_bytes(std::span(text))); });
  }

  std::size_t count_up() {
    return with([&] { return peers.size(); });
  }
  std::size_t count_down() {
    return with([&] { return down.size(); });
  }
  Peer& peer(std::size_t i) {
    return *with([&] { return peers.at(i).get(); });
  }
  PeerId gone(std::size_t i) {
    return with([&] { return down.at(i); });
  }
  bool received(const std::string& text) {
    return with([&] { return std::ranges::count(messages, text) > 0; });
  }

  std::unique_ptr<Control> control;
  ControlError error{};
  std::optional<Refusal> why;

  // What was recorded: looked at in with(), or by the calls above.
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<PeerId> down;
  std::map<SlotNumber, std::pair<std::optional<PeerId>, std::optional<Refusal>>> answers;
  std::vector<std::string> messages;
  std::vector<SharedMemory> memories;  // what came attached
  std::vector<Instant> ticks;
  std::function<void(PeerId, const std::string&)> on_message;

 private:
  void started(Control& started) override {
    EXPECT_TRUE(started.on_control_thread());
    EXPECT_EQ(started.page().id, started.id());
    EXPECT_LT(started.first_slot().value, kSlotCount);
  }
  void peer_up(std::unique_ptr<Peer> peer) override {
    with([&] { peers.push_back(std::move(peer)); });
  }
  void peer_down(PeerId id) override {
    with([&] { down.push_back(id); });
  }
  void slot_reached(SlotNumber slot, PeerId id) override {
    with([&] { answers[slot] = {id, std::nullopt}; });
  }
  void slot_unreachable(SlotNumber slot, Refusal refusal) override {
    with([&] { answers[slot] = {std::nullopt, refusal}; });
  }
  void message(PeerId from, std::span<const std::byte> bytes, PrivateFd attachment) override {
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto reaction = with([&] { return on_message; });
    if (reaction) reaction(from, text);
    auto memory = SharedMemory::adopt(attachment, 4096);
    with([&] {
      messages.push_back(text);
      if (memory) memories.push_back(std::move(*memory));
    });
  }
  void tick(Instant now) override {
    with([&] { ticks.push_back(now); });
  }

  KernelRandom random_;
  std::mutex mutex_;
};

// A pipe for whole values between a test and its child.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0); }
  ~Pipe() {
    for (const int end : ends_)
      close(end);
  }
  void use(int side) {
    close(std::exchange(ends_[1 - side], -1));
    fd_ = ends_[side];
  }
  int fd() const { return fd_; }
  template <class T>
  void give(const T& value) {
    EXPECT_EQ(write(fd_, &value, sizeof value), ssize_t{sizeof value});
  }
  // A value of zeros when the other side is gone.
  template <class T>
  T take() {
    T value{};
    EXPECT_GE(read(fd_, &value, sizeof value), 0);
    return value;
  }

 private:
  int ends_[2];
  int fd_ = -1;
};

// A forked process with a node. Fork children before the test has nodes of its own.
class Child {
 public:
  // `body(node, pipe)` runs in the child, which then exits: 0 if nothing was found wrong.
  template <class Body>
  explicit Child(Body body, ControlOptions options = test_options(), void (*before)() = nullptr) {
    pid_ = fork();
    if (pid_ != 0) {
      pipe.use(0);
      slot = pipe.take<SlotNumber>();
      return;
    }
    pipe.use(1);
    {
      if (before) before();
      Node node(std::move(options));
      pipe.give(node.control ? node.control->first_slot() : SlotNumber{kSlotCount});
      if (node.control) body(node, pipe);
    }
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  // One that lives until it is told to go, or killed.
  Child() : Child([](Node&, Pipe& p) { p.take<char>(); }) {}
  ~Child() {
    if (pid_ > 0) kill_now();
  }

  pid_t pid() const { return pid_; }
  void kill_now() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  // Stops it; all its threads stand still afterwards.
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  // Tells it to go, and gives its exit status.
  int finish() {
    pipe.give('q');
    int status = -1;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }

  Pipe pipe;
  SlotNumber slot;

 private:
  pid_t pid_ = 0;
};

// How many descriptors a thread's table has (0: the calling process's main thread).
inline std::size_t count_descriptors(pid_t thread = 0) {
  const std::string path = "/proc/self/task/" + std::to_string(thread ? thread : getpid()) + "/fd";
  DIR* folder = opendir(path.c_str());
  std::size_t count = 0;
  while (folder && readdir(folder))
    ++count;
  if (folder) closedir(folder);
  return count;
}

// Of one peer's.
inline bool hears_of_death(Node& node) {
  return eventually([&] { return node.count_down() == 1; });
}

}  // namespace verbena::host
