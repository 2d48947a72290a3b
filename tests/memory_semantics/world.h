// SPDX-License-Identifier: MIT
// A program whose memory is registered, and peers that use it. Each scenario is the owner of the
// memory and an ordinary user of verbs; a peer is another process (or another thread of this one,
// or a process in a pid namespace of its own) that does what the owner tells it through a socket.
//
// Contents are patterns: a pseudo-random sequence that a seed names, so that a byte from another
// time, place or owner is never mistaken for the right one.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "environment/node.h"

namespace semantics {

using probe::fail;
using probe::kAllAccess;
using probe::map_pages;
using probe::require;
using probe::skip;

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kKilo = 1024;
inline constexpr std::size_t kMega = 1 << 20;

// Bytes `first` and on of the pattern.
void fill(void* at, std::size_t size, std::uint64_t seed, std::size_t first = 0);
// Ends the process when it is not there, with what is there instead.
void expect(const void* at, std::size_t size, std::uint64_t seed, const char* when,
            std::size_t first = 0);
void expect_zero(const void* at, std::size_t size, const char* when);

// A small generator; every run has the same numbers unless VERBENA_TEST_SEED says otherwise.
class Numbers {
 public:
  explicit Numbers(std::uint64_t stream);
  std::uint64_t next();
  // From `least` to `most`, both possible.
  std::size_t between(std::size_t least, std::size_t most);
  // The same, small ones as likely as large ones.
  std::size_t size_between(std::size_t least, std::size_t most);

 private:
  std::uint64_t state_;
};

enum class Act : std::uint32_t {
  kWrite,
  kRead,
  kSend,
  kReceive,
  kAdd,
  kSwap,
  kShow,
  kCheck,
  kAdds
};

// What the owner tells a peer; the answer is a number.
struct Command {
  Act act;
  std::uint32_t key = 0;
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  std::uint64_t seed = 0;
  std::uint64_t first = 0;  // of the pattern
  std::uint64_t operand = 0;
};

// What a peer does: until the owner leaves.
void serve(probe::Wire wire);

// A connection to a peer, with a device context, a domain and a queue pair of its own.
class Peer {
 public:
  explicit Peer(int wire_fd);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  ibv_mr* reg(void* memory, std::size_t size, unsigned access = kAllAccess);
  static void dereg(ibv_mr* mr);

  // The peer WRITEs the pattern there; READs and finds the pattern.
  void write(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed);
  void read(const ibv_mr* mr, const void* at, std::size_t size, std::uint64_t seed);
  // It SENDs the pattern into a receive that we post there.
  void receive(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed);
  // We SEND or WRITE what is there, and it finds the pattern. We READ the pattern from it.
  void send(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed);
  void put(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed);
  void fetch(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed);
  // Atomics of the peer on 8 bytes of ours; they give the value before.
  std::uint64_t add(const ibv_mr* mr, std::uint64_t* at, std::uint64_t operand);
  std::uint64_t swap(const ibv_mr* mr, std::uint64_t* at, std::uint64_t is, std::uint64_t becomes);
  // The peer adds 1 over and over, until it is told to end; then it says how often.
  void begin_adds(const ibv_mr* mr, std::uint64_t* at);
  std::uint64_t end_adds();

  // All of that and the owner's own loads and stores; then the memory holds the pattern.
  void use(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed);
  // WRITE and READ only; then the memory holds the pattern.
  void touch(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed);

 private:
  using Piece = std::function<void(std::byte* at, std::uint32_t size, std::size_t first)>;
  static void in_pieces(const void* at, std::size_t size, const Piece& piece);
  std::uint64_t tell(const Command& command);
  void post_own(ibv_wr_opcode opcode, const ibv_mr* mr, void* at, std::uint32_t size);

  probe::Wire wire_;
  probe::Node node_;
  ibv_qp* qp_ = nullptr;
  probe::Address peer_;
};

enum class PeerKind : std::uint8_t { kProcess, kThread, kPidNamespace };

// The peers, which exist before anything else of the process does.
class World {
 public:
  static constexpr int kPeers = 4;
  explicit World(PeerKind kind);
  // The next of them.
  int next();
  PeerKind kind() const { return kind_; }

 private:
  PeerKind kind_;
  std::vector<int> wires_;
};

// VERBENA_TEST_MODE=long has more rounds, VERBENA_TEST_BRIEF fewer.
unsigned rounds(unsigned quick, unsigned in_long);
// Whether the library may adopt memory in this run.
bool may_adopt();
// Whether the kernel maps a shared object there.
bool is_shared(const std::byte* wanted);
// Runs in a child made by fork; the child's failure is ours.
void in_child(const std::function<void()>& body);
void require_child(pid_t child);
// Runs `body(i)` in so many threads.
void in_threads(unsigned count, const std::function<void(unsigned)>& body);

// A scenario: its name, and what it does. It ends the process when something is wrong.
struct Scenario {
  const char* name;
  void (*run)(World&);
};
std::vector<Scenario> allocator_scenarios();
std::vector<Scenario> mapping_scenarios();
std::vector<Scenario> fork_scenarios();
std::vector<Scenario> writer_scenarios();
std::vector<Scenario> kernel_scenarios();
std::vector<Scenario> advice_scenarios();
std::vector<Scenario> limit_scenarios();
std::vector<Scenario> place_scenarios();
std::vector<Scenario> adopted_scenarios();

}  // namespace semantics
