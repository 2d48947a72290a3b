// SPDX-License-Identifier: MIT
// What the exchange between two machines is made of: an end with one queue pair and one region, a
// socket to the other end, and a client that knows what every byte on both sides must be.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace exchange {

inline constexpr std::uint32_t kRegion = 1 << 17;
inline constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr ibv_wc_status kOk = IBV_WC_SUCCESS;
inline constexpr std::uint32_t kQkey = 0x00771122;
// Soon after the start the number wraps: 24 bits.
inline constexpr std::uint32_t kFirstPsn = 0xfffff0;

// Ends the process: the test itself cannot go on.
[[noreturn, gnu::format(printf, 1, 2)]] void die(const char* format, ...);

struct Setting {
  std::string device;
  int gid_index = 1;
  std::uint32_t mtu = 1024;
  std::string server;  // empty: this is the server
  std::uint16_t port = 0;
};

// How a connection is made; sent to the server.
struct Plan {
  std::uint32_t type = IBV_QPT_RC;
  std::uint32_t server_access = kAllAccess;
  std::uint32_t rnr_retry = 7;
  std::uint32_t is_misaddressed = 0;  // the client sends to a number that nobody has
};

struct Completion {
  std::uint64_t id = 0;
  std::uint32_t status = 0;
  std::uint32_t opcode = 0;
  std::uint32_t bytes = 0;
  std::uint32_t flags = 0;
  std::uint32_t immediate = 0;  // as the sender's program wrote it
  std::uint32_t source = 0;     // the sender's queue pair, for UD
};

// What the client may ask of the server.
struct Request {
  enum Verb : std::uint32_t { kConnect, kReceive, kPoll, kLook, kBye } verb = kBye;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
  std::uint32_t pieces = 1;  // of a receive
  std::uint32_t count = 0;   // of completions
  Plan plan = {};
};

struct Identity {
  std::uint32_t qpn = 0;
  std::uint32_t key = 0;
  std::uint64_t memory = 0;
  ibv_gid gid{};
  char device[64] = {};
};

// A socket to the other end: values of fixed size, in order.
class Talk {
 public:
  explicit Talk(const Setting& setting);
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
  void put_bytes(const void* from, std::size_t size);
  void get_bytes(void* to, std::size_t size);

 private:
  int fd_ = -1;
};

// One end. Both have the same region, filled anew for each connection.
class End {
 public:
  explicit End(const Setting& setting);
  // A fresh queue pair, connected to the other end's. Returns who that is.
  Identity connect(Talk& talk, const Plan& plan, bool is_client);
  void post_receive(const Request& request);
  // The next completions; fewer when they do not come.
  std::vector<Completion> poll(std::uint32_t count);

  std::byte* memory() { return memory_.data(); }
  std::uint32_t key() const { return mr_->lkey; }
  ibv_qp* qp() { return qp_; }
  ibv_ah* address() { return address_; }

 private:
  void create(const Plan& plan, bool is_client);
  void ready(const Plan& plan, const Identity& peer, bool is_client);

  Setting setting_;
  std::vector<std::byte> memory_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  ibv_ah* address_ = nullptr;
};

// What a region holds before anything happens; different on the two sides.
void fill(std::byte* memory, std::uint32_t seed);
// Does what the client asks for until it has enough.
void serve(const Setting& setting);

// A work request of the client.
struct Work {
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::uint32_t length = 0;
  std::uint32_t local = 0;  // offsets in the regions
  std::uint32_t remote = 0;
  std::uint32_t immediate = 0;
  std::uint32_t pieces = 1;
  unsigned flags = IBV_SEND_SIGNALED;
  std::uint64_t compare_or_add = 0;
  std::uint64_t swap = 0;
  std::uint32_t key_change = 0;  // what is wrong with the key
  std::uint32_t qkey = kQkey;
};

// The client's side of a scenario. Once something is not as expected, everything else is left out
// until the next connection.
class Client {
 public:
  explicit Client(const Setting& setting)
      : mtu(setting.mtu),
        is_rxe(setting.device.starts_with("rxe")),
        talk_(setting),
        end_(setting) {}

  void begin(const char* name, const Plan& plan = {});
  // Closes a scenario: prints how it went.
  void finish();
  int failures() const { return failures_; }
  int passed() const { return passed_; }
  void bye() { talk_.put(Request{}); }

  [[gnu::format(printf, 3, 4)]] void expect(bool holds, const char* format, ...);
  void post(const Work& work);
  void receive(std::uint32_t offset, std::uint32_t length, std::uint32_t pieces = 1);
  // The client's own completions: exactly these statuses.
  void await(std::initializer_list<ibv_wc_status> wanted);
  // Any of the statuses, and after that everything is flushed.
  void await_refusal(std::initializer_list<ibv_wc_status> allowed);
  std::vector<Completion> server_completions(std::uint32_t count);
  // Both regions are, byte for byte, what the models below say.
  void check(const char* what, std::uint32_t size);
  // The same, where `count` bytes at `offset` of the server's region may be anything.
  void check_beside(std::uint32_t offset, std::uint32_t count, std::uint32_t size);
  // What a request that was carried out changes.
  void model_write(const Work& work) { model_copy(work, work.remote); }
  void model_copy(const Work& work, std::uint32_t remote);
  void model_read(const Work& work);
  bool has_failed() const { return has_failed_; }
  bool server_is_rxe() const { return std::string(peer_.device).starts_with("rxe"); }
  std::uint32_t own_qpn() { return end_.qp()->qp_num; }

  std::uint32_t mtu;
  bool is_rxe;                         // this end; see also server_is_rxe
  std::vector<std::byte> here, there;  // the models

 private:
  std::vector<std::byte> look();
  void compare(const std::byte* seen, const std::vector<std::byte>& model, const char* where);

  Talk talk_;
  End end_;
  Identity peer_;
  std::string name_;
  bool has_failed_ = false;
  int failures_ = 0;
  int passed_ = 0;
  std::uint64_t posted_ = 0;
};

void reliable(Client& client);
void reliable_refusals(Client& client);
void unreliable(Client& client);
void datagrams(Client& client);

}  // namespace exchange
