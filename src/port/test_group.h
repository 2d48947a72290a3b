// SPDX-License-Identifier: MIT
// For tests: processes that are members of a socket group, linked by unix sockets, and do what they
// are told through a pipe.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "port/socket_group.h"
#include "port/test_packets.h"

namespace verbena::port {

inline Instant real_now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return Instant::at(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Links by abstract names: one listens for each slot, whoever needs it connects.
class Links final : public GroupEvents {
 public:
  Links(std::string prefix, GroupOptions options)
      : prefix_(std::move(prefix)), group_(*this, options) {}

  static int open_socket(const std::string& name, bool listens) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const auto* const as = reinterpret_cast<const sockaddr*>(&address);
    const bool good =
        listens ? bind(fd, as, size) == 0 && ::listen(fd, 128) == 0 : connect(fd, as, size) == 0;
    if (good) return fd;
    close(fd);
    return -1;
  }
  bool take_slot(SlotNumber slot) {
    slot_ = slot;
    listener_ = UniqueFd(open_socket(name_of(slot), true));
    return static_cast<bool>(listener_);
  }

  // Joins with everybody who is there; serves others meanwhile. The lock is waited for.
  bool join() {
    const auto end = real_now() + Duration::seconds(120);
    std::optional<JoinLock> lock;
    while (!(lock = JoinLock::try_take(prefix_ + "join")) && real_now() < end)
      serve(2);
    if (!lock) return false;
    outcome_.reset();
    group_.join(slot_, connect_all(), real_now());
    while (!outcome_ && real_now() < end)
      serve(2);
    return outcome_.value_or(false);
  }
  bool serve_service(std::uint64_t id) { return group_.serve({id, slot_}, connect_all()); }

  // Answers for so many milliseconds, or until there was something.
  void serve(int milliseconds, int extra = -1) {
    std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}, {extra, POLLIN, 0}};
    std::vector<host::PeerId> who{{}, {}};
    for (const auto& [id, fd] : peers_) {
      watched.push_back({fd.get(), POLLIN, 0});
      who.push_back(id);
    }
    poll(watched.data(), watched.size(), milliseconds);
    if (watched[0].revents != 0) accept_one();
    for (std::size_t i = 2; i < watched.size(); ++i)
      if (watched[i].revents != 0) receive(who[i]);
    group_.tick(real_now());
  }

  SocketGroup& group() { return group_; }
  Steering steering;
  int die_after_holds = -1;  // the newcomer's death, after so many have its socket
  bool die_before_bind = false;

 private:
  std::string name_of(SlotNumber slot) const { return prefix_ + std::to_string(slot.value); }

  host::PeerId add(int fd) {
    const host::PeerId id{1, ++last_id_};
    peers_.emplace(id, UniqueFd(fd));
    return id;
  }
  void accept_one() {
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) add(fd);
  }
  std::vector<host::PeerId> connect_all() {
    std::vector<host::PeerId> members;
    for (std::uint16_t i = 0; i < kSlots; ++i) {
      if (i == slot_.value) continue;
      const int fd = open_socket(name_of({i}), false);
      if (fd >= 0) members.push_back(add(fd));
    }
    return members;
  }
  void receive(host::PeerId id) {
    const auto at = peers_.find(id);
    if (at == peers_.end()) return;
    std::byte bytes[256];
    iovec piece{bytes, sizeof bytes};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t size = recvmsg(at->second.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size <= 0) {
      peers_.erase(at);
      return group_.peer_down(id, real_now());
    }
    host::PrivateFd attached;
    if (const cmsghdr* const found = CMSG_FIRSTHDR(&message)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(found), sizeof fd);
      attached = host::PrivateFd(fd);
    }
    group_.message(id, std::span(bytes).first(static_cast<std::size_t>(size)), std::move(attached),
                   real_now());
  }

  bool send(host::PeerId to, std::span<const std::byte> bytes,
            const host::PrivateFd* attachment) override {
    const auto at = peers_.find(to);
    if (at == peers_.end()) return false;
    const auto says = parse_group_message(bytes);
    EXPECT_TRUE(says.has_value());
    const bool holds = says->says == GroupSays::kHold;
    if (holds && die_after_holds == 0) raise(SIGKILL);
    if (holds) --die_after_holds;
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (attachment) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = attachment->get();
      std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    return sendmsg(at->second.get(), &message, MSG_NOSIGNAL) > 0;
  }
  bool is_held(SlotNumber slot) override {
    if (slot == slot_) return true;
    const UniqueFd fd(open_socket(name_of(slot), false));
    return static_cast<bool>(fd);
  }
  void joined(SlotNumber slot, const host::PrivateFd& socket) override {
    EXPECT_EQ(slot, slot_);
    EXPECT_GE(socket.get(), 0);
    outcome_ = true;
  }
  void not_joined(SlotNumber, GroupError why) override {
    ADD_FAILURE() << to_string(why);
    outcome_ = false;
  }
  void steering_changed(const Steering& now) override { steering = now; }

 public:
  static constexpr std::uint16_t kSlots = 64;  // of these tests

 private:
  const std::string prefix_;
  SlotNumber slot_;
  UniqueFd listener_;
  std::map<host::PeerId, UniqueFd> peers_;
  std::uint64_t last_id_ = 0;
  std::optional<bool> outcome_;
  SocketGroup group_;
};

struct MemberState {
  std::uint32_t came = 0;          // packets for the slot, since the last time
  std::uint32_t misdelivered = 0;  // since it joined
  std::uint32_t positions = 0;
  std::uint32_t silent = 0;
  std::uint32_t conflicts = 0;
  std::uint32_t services = 0;
};

// A forked process that joins at once.
class Member {
 public:
  struct Setup {
    std::string prefix{};
    std::uint16_t port = 0;
    SlotNumber slot{};
    int die_after_holds = -1;
    Duration patience = GroupOptions().patience;
    bool waits = false;  // for let_join(), when others can reach it
  };
  explicit Member(const Setup& setup) : slot_(setup.slot) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      run(setup, ends[1]);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    close(ends[1]);
    pipe_ = UniqueFd(ends[0]);
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() { kill_now(); }

  SlotNumber slot() const { return slot_; }
  bool wait_reachable() { return answer() == 'l'; }
  void let_join() { EXPECT_EQ(write(pipe_.get(), "j", 1), 1); }
  // After the fork, so that several join at the same time. False: it is dead.
  bool wait_joined() { return answer() == 'j'; }
  MemberState ask(char what = 's') {
    MemberState state;
    EXPECT_EQ(write(pipe_.get(), &what, 1), 1);
    EXPECT_EQ(read(pipe_.get(), &state, sizeof state), ssize_t{sizeof state}) << slot_.value;
    return state;
  }
  void signal(int number) { kill(pid_, number); }
  void kill_now() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  int finish() {
    const char quit = 'q';
    EXPECT_EQ(write(pipe_.get(), &quit, 1), 1);
    int status = -1;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }

 private:
  char answer() {
    char what = 0;
    return read(pipe_.get(), &what, 1) == 1 ? what : '\0';
  }
  static void run(const Setup& setup, int pipe) {
    Links links(setup.prefix,
                {.port = setup.port, .receiver = {.buffer = 1 << 20}, .patience = setup.patience});
    links.die_after_holds = setup.die_after_holds;
    if (!links.take_slot(setup.slot)) return;
    char begin = 0;
    if (setup.waits && (write(pipe, "l", 1) != 1 || read(pipe, &begin, 1) != 1)) return;
    if (!links.join()) return;
    UdpPort port({.port = setup.port});
    const int socket = dup(links.group().socket_of(setup.slot)->get());
    if (!port.add_receiver(setup.slot, UniqueFd(socket))) return;
    drain(port);  // what was there for the slot's former owner
    const auto before = misdelivered(port);
    if (write(pipe, "j", 1) != 1) return;
    while (true) {
      links.serve(1000, pipe);
      char what = 0;
      const ssize_t got = recv(pipe, &what, 1, MSG_DONTWAIT);
      if (got == 0 || what == 'q') return;
      if (got < 0) continue;
      if (what == 'v') links.serve_service(setup.slot.value);
      port.set_steering(links.steering);
      MemberState state;
      state.came = static_cast<std::uint32_t>(drain(port).size());
      state.misdelivered = static_cast<std::uint32_t>(misdelivered(port) - before);
      state.positions = static_cast<std::uint32_t>(links.group().size());
      state.silent = static_cast<std::uint32_t>(links.group().stats().silent_members);
      state.conflicts = static_cast<std::uint32_t>(links.group().stats().conflicts);
      state.services = static_cast<std::uint32_t>(links.steering.services().size());
      if (write(pipe, &state, sizeof state) != ssize_t{sizeof state}) return;
    }
  }
  static std::uint64_t misdelivered(UdpPort& port) {
    return port.counters()[Count::kDroppedForeign] + port.counters()[Count::kDroppedNobody];
  }

  const SlotNumber slot_;
  pid_t pid_ = 0;
  UniqueFd pipe_;
};

}  // namespace verbena::port
