// SPDX-License-Identifier: MIT
// Connections that end with messages under way: what is lent to the peer is the sender's own again
// as soon as that hears of the end, what was sent before it arrives, and a peer's death is noticed
// behind its last messages.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "traffic.h"

namespace access_test {

using probe::require;

namespace {

constexpr std::uint32_t kPayload = 64 * 1024;
constexpr std::size_t kRegionSize = 256 * 1024;
constexpr std::uint64_t kSend = 7;
constexpr std::uint8_t kThen = 1;   // what the message holds
constexpr std::uint8_t kLater = 2;  // and what lies there afterwards

void modify(ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr to{};
  to.qp_state = state;
  require(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 0, "ibv_modify_qp");
}

// What the receiver tells of a message: its first byte where all are alike.
constexpr int kNothing = -1;
constexpr int kMixed = -2;

struct Order {
  bool goes_on = false;
  bool is_new_connection = false;
  int milliseconds = 0;
};

void receive_by_order(probe::Wire& wire) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(kRegionSize);
  ibv_mr* const mr = node.reg(memory, kRegionSize);
  ibv_qp* qp = nullptr;
  wire.put(getpid());
  for (Order order = wire.get<Order>(); order.goes_on; order = wire.get<Order>()) {
    if (order.is_new_connection) {
      if (qp) require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
      probe::Address peer;
      qp = node.meet(wire, {}, peer);
      require(probe::post_receive(qp, memory, kPayload, mr->lkey) == 0, "ibv_post_recv");
      wire.meet();
      continue;
    }
    wire.put(true);
    const std::optional<ibv_wc> came = node.poll_for(order.milliseconds);
    int told = kNothing;
    if (came && came->status == IBV_WC_SUCCESS) {
      const bool is_whole =
          came->byte_len == kPayload &&
          std::all_of(memory, memory + kPayload, [&](std::byte b) { return b == memory[0]; });
      told = is_whole ? static_cast<int>(memory[0]) : kMixed;
      require(probe::post_receive(qp, memory, kPayload, mr->lkey) == 0, "ibv_post_recv");
    }
    wire.put(told);
  }
}

class Sender {
 public:
  explicit Sender(probe::Wire& wire) : wire_(wire), receiver_(wire.get<pid_t>()) {
    memory_ = probe::map_pages(kRegionSize);
    mr_ = node_.reg(memory_, kRegionSize);
  }
  // The receiver ends.
  void dismiss() { wire_.put(Order{}); }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  void connect() {
    wire_.put(Order{.goes_on = true, .is_new_connection = true});
    probe::Address peer;
    qp_ = node_.meet(wire_, {}, peer);
    wire_.meet();
  }
  void stop_receiver() {
    require(kill(receiver_, SIGSTOP) == 0, "kill");
    // It stops soon, and is not our child.
    usleep(5000);
  }
  void send() {
    std::memset(memory_, kThen, kPayload);
    require(probe::post(qp_, {.opcode = IBV_WR_SEND,
                              .id = kSend,
                              .memory = memory_,
                              .length = kPayload,
                              .local_key = mr_->lkey}) == 0,
            "ibv_post_send");
  }
  void change() { std::memset(memory_, kLater, kPayload); }
  // What the receiver sees within so long; it goes on if it was stopped.
  void look(int milliseconds) {
    wire_.put(Order{.goes_on = true, .milliseconds = milliseconds});
    require(kill(receiver_, SIGCONT) == 0, "kill");
    wire_.get<bool>();
  }
  int seen() { return wire_.get<int>(); }
  void wait_success() { node_.wait_success(kSend); }
  // Messages are taken from our memory by now: the receiver finds what a program that does not wait
  // for its completion writes there.
  bool is_lent() {
    for (int i = 0; i < 100; ++i) {
      stop_receiver();
      send();
      change();
      look(5000);
      const int told = seen();
      require(told != kNothing, "a message does not arrive");
      wait_success();
      if (told == kLater) return true;
    }
    return false;
  }
  void end(std::string_view how) {
    if (how == "destroy") {
      require(ibv_destroy_qp(qp_) == 0, "ibv_destroy_qp");
    } else {
      modify(qp_, how == "reset" ? IBV_QPS_RESET : IBV_QPS_ERR);
    }
    if (how != "error") return;
    const ibv_wc ended = node_.wait();
    require(ended.wr_id == kSend, "another completion");
    require(ended.status == IBV_WC_WR_FLUSH_ERR || ended.status == IBV_WC_SUCCESS, "ended with %s",
            ibv_wc_status_str(ended.status));
  }

 private:
  probe::Node node_;
  probe::Wire& wire_;
  pid_t receiver_;
  std::byte* memory_;
  ibv_mr* mr_;
  ibv_qp* qp_ = nullptr;
};

constexpr std::string_view kEndings[] = {"error", "reset", "destroy"};

// The receiver does not run until its message has been taken back.
void take_back(Sender& sender) {
  for (int round = 0; round < (is_long() ? 100 : 5); ++round) {
    for (const std::string_view how : kEndings) {
      sender.connect();
      if (!sender.is_lent()) {
        sender.dismiss();
        probe::skip("this carrier lends nothing here");
      }
      sender.stop_receiver();
      sender.send();
      sender.end(how);
      sender.change();
      sender.look(50);
      const int told = sender.seen();
      require(told == kNothing || told == kThen, "after %s the receiver got %d",
              std::string(how).c_str(), told);
    }
  }
}

// The receiver runs, and the connection ends right behind the message.
void end_behind_last(Sender& sender) {
  const int rounds = is_long() ? 300 : 10;
  int heard = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const std::string_view how : kEndings) {
      sender.connect();
      static_cast<void>(sender.is_lent());
      sender.look(200);
      usleep(static_cast<useconds_t>(round * 37 % 500));
      sender.send();
      sender.end(how);
      sender.change();
      const int told = sender.seen();
      require(told == kNothing || told == kThen, "after %s the receiver got %d",
              std::string(how).c_str(), told);
      heard += told == kThen;
    }
  }
  const int sent = rounds * static_cast<int>(std::size(kEndings));
  std::printf("%d of %d last messages arrived\n", heard, sent);
  // Where the receiver does not get a processor in time they may not be taken.
  require(heard > 0, "none of %d last messages arrived", sent);
}

void send_to_receiver(void (*scene)(Sender&)) {
  require(probe::run_two(
              receive_by_order,
              [scene](probe::Wire& wire) {
                Sender sender(wire);
                scene(sender);
                sender.dismiss();
              },
              is_long() ? 900 : 100),
          "see above");
}

// A peer that answers, leaves some messages and dies; then the program looks away for a moment.
struct Death {
  int messages;
  int microseconds;
};

void die_behind_messages(probe::Wire& wire, int messages) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(kRegionSize);
  ibv_mr* const mr = node.reg(memory, kRegionSize);
  probe::Address peer;
  ibv_qp* const qp = node.meet(wire, {}, peer);
  for (int i = 0; i < 32; ++i)
    require(probe::post_receive(qp, memory + 4096, 64, mr->lkey) == 0, "ibv_post_recv");
  wire.meet();
  const probe::Work message{
      .opcode = IBV_WR_SEND, .id = kSend, .memory = memory, .length = 8, .local_key = mr->lkey};
  for (int i = 0; i < 16; ++i) {
    require(probe::post(qp, message) == 0, "ibv_post_send");
    node.wait_success(kSend);
  }
  wire.get<bool>();
  for (int i = 0; i < messages; ++i)
    require(probe::post(qp, message) == 0, "ibv_post_send");
  wire.put(true);
  raise(SIGSTOP);
}

// One that is about to stop may answer until it does.
void wait_until_stopped(pid_t process) {
  for (int i = 0; i < 10'000; ++i) {
    std::ifstream said("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    std::getline(said, line);
    const std::size_t name_end = line.rfind(')');  // the name may hold anything
    if (name_end != std::string::npos && line.compare(name_end, 3, ") T") == 0) return;
    usleep(1'000);
  }
  probe::fail("the peer does not stop");
}

void survive(probe::Wire& wire, pid_t peer, const Death& death) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(kRegionSize);
  ibv_mr* const mr = node.reg(memory, kRegionSize);
  probe::Address other;
  ibv_qp* const qp = node.meet(wire, {}, other);
  for (int i = 0; i < 48; ++i)
    require(probe::post_receive(qp, memory + 4096, 64, mr->lkey) == 0, "ibv_post_recv");
  wire.meet();
  for (int i = 0; i < 16; ++i)
    require(node.wait().status == IBV_WC_SUCCESS, "a message before the death");
  // Long enough that our NIC thread leaves the looking to us.
  node.poll_for(50);
  wire.put(true);
  wire.get<bool>();
  wait_until_stopped(peer);
  require(probe::post(qp, {.opcode = IBV_WR_SEND,
                           .id = kSend,
                           .memory = memory,
                           .length = 8,
                           .local_key = mr->lkey}) == 0,
          "ibv_post_send");
  kill(peer, SIGKILL);
  if (death.microseconds > 0) usleep(static_cast<useconds_t>(death.microseconds));
  int received = 0;
  ibv_wc wc = node.wait();
  for (; wc.wr_id != kSend; wc = node.wait())
    received += wc.status == IBV_WC_SUCCESS;
  require(wc.status != IBV_WC_SUCCESS, "who is stopped has answered");
  require(received == death.messages, "%d of %d messages", received, death.messages);
}

}  // namespace

void taken_back() { send_to_receiver(take_back); }

void last_words() { send_to_receiver(end_behind_last); }

void death_behind_messages() {
  for (const int messages : {0, 1, 3, 20}) {
    for (const int microseconds : {0, 100, 300, 600}) {
      int fds[2];
      require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        probe::i_am("who dies");
        close(fds[0]);
        probe::Wire wire(fds[1]);
        die_behind_messages(wire, messages);
        _exit(0);
      }
      close(fds[1]);
      const bool good = probe::run_one([&] {
        probe::i_am("who survives");
        probe::Wire wire(fds[0]);
        survive(wire, child, {messages, microseconds});
      });
      close(fds[0]);
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      require(good, "%d messages, %d us", messages, microseconds);
    }
  }
}

}  // namespace access_test
