// SPDX-License-Identifier: MIT
// What small programs over verbs need: a device, queue pairs that are connected through a socket,
// and two processes that talk. Whatever fails ends the process with a line that says why.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace probe {

// Prints "FAIL <who>: ..." and ends the process.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
[[noreturn]] void skip(const char* why);
template <class... Values>
void require(bool is_right, const char* format, Values... values) {
  if (is_right) return;
  if constexpr (sizeof...(values) == 0) {
    fail("%s", format);
  } else {
    fail(format, values...);
  }
}
// Whether this machine and VERBENA_PATH let processes write some bytes to each other's memory by
// its file: then a program that does not do so has a reason that a test shall tell.
bool may_write_by_file();
// Names this process in what it prints.
void i_am(const char* name);

struct Address {
  std::uint32_t qpn = 0;
  std::uint32_t key = 0;
  std::uint64_t memory = 0;
  ibv_gid gid{};
};

// A socket to another process: values of fixed size, in order.
class Wire {
 public:
  explicit Wire(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  template <class Value>
  void put(const Value& value) {
    put_bytes(&value, sizeof value);
  }
  template <class Value>
  Value get() {
    Value value;
    get_bytes(&value, sizeof value);
    return value;
  }
  // Both come here before either goes on.
  void meet() {
    put(std::uint32_t{0x6d656574});
    get<std::uint32_t>();
  }

 private:
  void put_bytes(const void* from, std::size_t size);
  void get_bytes(void* to, std::size_t size);
  int fd_;
};

struct QpOptions {
  ibv_qp_type type = IBV_QPT_RC;
  std::uint32_t depth = 64;
  std::uint32_t sges = 4;
  std::uint32_t inline_max = 64;
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC;
  std::uint8_t rnr_retry = 7;
  std::uint8_t timeout = 14;
  std::uint8_t retries = 7;
};

inline constexpr std::uint32_t kQkey = 0x1234;
inline constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

class Node {
 public:
  // The first device.
  Node();
  // Queue pairs and regions end with the process.
  ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_gid gid{};

  ibv_qp* create(const QpOptions& options = {});
  void connect(ibv_qp* qp, const Address& peer, const QpOptions& options = {});
  // Both sides call this: a connected queue pair.
  ibv_qp* meet(Wire& wire, Address mine, Address& peers, const QpOptions& options = {});
  ibv_mr* reg(void* memory, std::size_t size, unsigned access = kAllAccess);

  // The next completion; fails when none comes for so long.
  ibv_wc wait(int seconds = 30);
  // Whether one comes.
  std::optional<ibv_wc> poll_for(int milliseconds);
  void wait_success(std::uint64_t id);
};

// One-piece requests. 0 or an errno.
struct Work {
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  std::uint64_t id = 1;
  void* memory = nullptr;
  std::uint32_t length = 0;
  std::uint32_t local_key = 0;
  std::uint64_t remote = 0;
  std::uint32_t remote_key = 0;
  unsigned flags = IBV_SEND_SIGNALED;
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
};
int post(ibv_qp* qp, const Work& work);
int post_receive(ibv_qp* qp, void* memory, std::uint32_t length, std::uint32_t key,
                 std::uint64_t id = 100);

// Whole pages.
std::byte* map_pages(std::size_t size);

// Runs each function in a process of its own, with wires between the first two; waits for all.
// False when one fails, hangs or crashes.
bool run_two(const std::function<void(Wire&)>& one, const std::function<void(Wire&)>& other,
             int seconds = 60);
// One process, with a child's fate: true when it ends with 0 in time.
bool run_one(const std::function<void()>& body, int seconds = 60);

// Rounds of WRITE, READ back and SEND, with content, from both sides at a time.
void talk(Node& node, Wire& wire, unsigned rounds = 50);

}  // namespace probe
