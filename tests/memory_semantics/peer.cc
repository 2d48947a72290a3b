// SPDX-License-Identifier: MIT
// The owner's end of a connection, and the peer's.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "world.h"

namespace semantics {
namespace {

// What the peer has for its side of every operation.
constexpr std::size_t kPeerMemory = 4 * kMega;
constexpr std::uint64_t kReceived = 100;

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

// The peer's end: a node, a queue pair, and memory of its own.
class Agent {
 public:
  explicit Agent(probe::Wire wire) : wire_(wire) {}
  // Takes commands until the owner leaves.
  void run();

 private:
  std::uint64_t obey(const Command& command);
  void one_sided(ibv_wr_opcode opcode, const Command& command);
  std::uint64_t atomic(ibv_wr_opcode opcode, const Command& command);
  std::uint64_t add_until_told(const Command& command);
  bool is_told() const;

  probe::Wire wire_;
  std::byte* memory_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  probe::Node* node_ = nullptr;
};

// Whether there is something to read; ends the thread's work at the end of the stream.
bool is_over(int fd) {
  char byte = 0;
  return recv(fd, &byte, 1, MSG_PEEK) <= 0;
}

void Agent::run() {
  if (is_over(wire_.fd())) return;
  probe::Node node;
  node_ = &node;
  memory_ = map_pages(kPeerMemory);
  mr_ = node.reg(memory_, kPeerMemory);
  probe::Address owner;
  qp_ = node.meet(wire_, {0, mr_->rkey, number(memory_), {}}, owner);
  while (!is_over(wire_.fd()))
    wire_.put(obey(wire_.get<Command>()));
}

void Agent::one_sided(ibv_wr_opcode opcode, const Command& command) {
  const probe::Work work{.opcode = opcode,
                         .memory = memory_,
                         .length = command.length,
                         .local_key = mr_->lkey,
                         .remote = command.address,
                         .remote_key = command.key};
  require(post(qp_, work) == 0, "the peer's ibv_post_send");
  node_->wait_success(1);
}

std::uint64_t Agent::atomic(ibv_wr_opcode opcode, const Command& command) {
  const probe::Work work{.opcode = opcode,
                         .memory = memory_,
                         .length = 8,
                         .local_key = mr_->lkey,
                         .remote = command.address,
                         .remote_key = command.key,
                         .compare_add = command.seed,
                         .swap = command.operand};
  require(post(qp_, work) == 0, "the peer's ibv_post_send");
  node_->wait_success(1);
  std::uint64_t before = 0;
  memcpy(&before, memory_, sizeof before);
  return before;
}

bool Agent::is_told() const {
  pollfd entry{wire_.fd(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

std::uint64_t Agent::add_until_told(const Command& command) {
  Command one = command;
  one.seed = 1;
  std::uint64_t count = 0;
  wire_.put(count);  // the first is on its way
  do {
    atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, one);
    ++count;
  } while (!is_told());
  if (!is_over(wire_.fd())) wire_.get<Command>();
  return count;
}

std::uint64_t Agent::obey(const Command& command) {
  switch (command.act) {
    case Act::kWrite:
      fill(memory_, command.length, command.seed, command.first);
      one_sided(IBV_WR_RDMA_WRITE, command);
      return 0;
    case Act::kRead:
      memset(memory_, 0x55, command.length);
      one_sided(IBV_WR_RDMA_READ, command);
      expect(memory_, command.length, command.seed, "the peer's READ", command.first);
      return 0;
    case Act::kSend:
      fill(memory_, command.length, command.seed, command.first);
      one_sided(IBV_WR_SEND, command);
      return 0;
    case Act::kReceive:
      memset(memory_, 0x55, command.length);
      require(probe::post_receive(qp_, memory_, command.length, mr_->lkey, kReceived) == 0,
              "the peer's ibv_post_recv");
      wire_.put(std::uint64_t{0});
      node_->wait_success(kReceived);
      expect(memory_, command.length, command.seed, "the owner's SEND", command.first);
      return 0;
    case Act::kAdd: return atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, command);
    case Act::kSwap: return atomic(IBV_WR_ATOMIC_CMP_AND_SWP, command);
    case Act::kShow: fill(memory_, command.length, command.seed, command.first); return 0;
    case Act::kCheck:
      expect(memory_, command.length, command.seed, "the owner's WRITE", command.first);
      return 0;
    case Act::kAdds: return add_until_told(command);
  }
  fail("no such command");
}

}  // namespace

void serve(probe::Wire wire) { Agent(wire).run(); }

Peer::Peer(int wire_fd) : wire_(wire_fd) { qp_ = node_.meet(wire_, {}, peer_); }

// The peer's end sees that we leave. What it had of ours is gone with the process.
Peer::~Peer() { require(ibv_destroy_qp(qp_) == 0, "ibv_destroy_qp"); }

ibv_mr* Peer::reg(void* memory, std::size_t size, unsigned access) {
  return node_.reg(memory, size, access);
}

void Peer::dereg(ibv_mr* mr) {
  const int error = ibv_dereg_mr(mr);
  require(error == 0, "ibv_dereg_mr: %s", strerror(error));
}

std::uint64_t Peer::tell(const Command& command) {
  wire_.put(command);
  return wire_.get<std::uint64_t>();
}

void Peer::in_pieces(const void* at, std::size_t size, const Piece& piece) {
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(at));
  for (std::size_t done = 0; done < size; done += kPeerMemory) {
    const std::size_t length = std::min(size - done, kPeerMemory);
    piece(bytes + done, static_cast<std::uint32_t>(length), done);
  }
}

void Peer::write(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed) {
  in_pieces(at, size, [&](std::byte* piece, std::uint32_t length, std::size_t first) {
    tell({Act::kWrite, mr->rkey, number(piece), length, seed, first, 0});
  });
}

void Peer::read(const ibv_mr* mr, const void* at, std::size_t size, std::uint64_t seed) {
  in_pieces(at, size, [&](const std::byte* piece, std::uint32_t length, std::size_t first) {
    tell({Act::kRead, mr->rkey, number(piece), length, seed, first, 0});
  });
}

void Peer::receive(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed) {
  in_pieces(at, size, [&](std::byte* piece, std::uint32_t length, std::size_t first) {
    require(probe::post_receive(qp_, piece, length, mr->lkey, kReceived) == 0, "ibv_post_recv");
    tell({Act::kSend, 0, 0, length, seed, first, 0});
    node_.wait_success(kReceived);
  });
}

void Peer::post_own(ibv_wr_opcode opcode, const ibv_mr* mr, void* at, std::uint32_t size) {
  const probe::Work work{.opcode = opcode,
                         .memory = at,
                         .length = size,
                         .local_key = mr->lkey,
                         .remote = peer_.memory,
                         .remote_key = peer_.key};
  require(post(qp_, work) == 0, "ibv_post_send");
  node_.wait_success(1);
}

void Peer::send(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed) {
  in_pieces(at, size, [&](std::byte* piece, std::uint32_t length, std::size_t first) {
    tell({Act::kReceive, 0, 0, length, seed, first, 0});
    post_own(IBV_WR_SEND, mr, piece, length);
    wire_.get<std::uint64_t>();
  });
}

void Peer::put(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed) {
  in_pieces(at, size, [&](std::byte* piece, std::uint32_t length, std::size_t first) {
    post_own(IBV_WR_RDMA_WRITE, mr, piece, length);
    tell({Act::kCheck, 0, 0, length, seed, first, 0});
  });
}

void Peer::fetch(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed) {
  in_pieces(at, size, [&](std::byte* piece, std::uint32_t length, std::size_t first) {
    tell({Act::kShow, 0, 0, length, seed, first, 0});
    post_own(IBV_WR_RDMA_READ, mr, piece, length);
  });
}

std::uint64_t Peer::add(const ibv_mr* mr, std::uint64_t* at, std::uint64_t operand) {
  return tell({Act::kAdd, mr->rkey, number(at), 8, operand, 0, 0});
}

std::uint64_t Peer::swap(const ibv_mr* mr, std::uint64_t* at, std::uint64_t is,
                         std::uint64_t becomes) {
  return tell({Act::kSwap, mr->rkey, number(at), 8, is, 0, becomes});
}

void Peer::begin_adds(const ibv_mr* mr, std::uint64_t* at) {
  tell({Act::kAdds, mr->rkey, number(at), 8, 0, 0, 0});
}

std::uint64_t Peer::end_adds() { return tell({.act = Act::kAdds}); }

void Peer::touch(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed) {
  write(mr, at, size, seed + 1);
  expect(at, size, seed + 1, "after the peer's WRITE");
  fill(at, size, seed);
  read(mr, at, size, seed);
}

void Peer::use(const ibv_mr* mr, void* at, std::size_t size, std::uint64_t seed) {
  receive(mr, at, size, seed + 2);
  expect(at, size, seed + 2, "after a RECEIVE");
  fill(at, size, seed + 3);
  send(mr, at, size, seed + 3);
  fetch(mr, at, size, seed + 4);
  expect(at, size, seed + 4, "after our own READ");
  put(mr, at, size, seed + 4);
  auto* const word = reinterpret_cast<std::uint64_t*>((number(at) + 7) & ~std::uint64_t{7});
  if (number(word) + sizeof *word <= number(at) + size) {
    *word = 40;
    require(add(mr, word, 2) == 40 && *word == 42, "an atomic add went astray");
    require(swap(mr, word, 42, 7) == 42 && *word == 7, "an atomic swap went astray");
  }
  touch(mr, at, size, seed);
}

}  // namespace semantics
