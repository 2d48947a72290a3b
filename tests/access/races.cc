// SPDX-License-Identifier: MIT
// Memory that changes hands while something else happens to it: a region that is registered anew
// under a peer's WRITEs, and one that goes while another thread ends the connection.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

#include "traffic.h"

namespace access_test {

using probe::require;

namespace {

// What two processes see without asking each other.
struct Board {
  std::atomic<std::uint32_t> round{0};    // in which the writer shall write
  std::atomic<std::uint32_t> written{0};  // the last in which it has
  std::atomic<std::uint64_t> first{0};    // of its WRITEs in that round,
  std::atomic<std::uint64_t> behind{0};   // and behind the last
  std::atomic<bool> is_over{false};
};

Board& make_board() {
  void* const page =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(page != MAP_FAILED, "mmap");
  return *new (page) Board;
}

void spin(std::chrono::microseconds how_long) {
  const auto end = std::chrono::steady_clock::now() + how_long;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// -- registered anew --------------------------------------------------------------------------

constexpr std::size_t kRegion = std::size_t{8} << 20;
constexpr std::uint64_t kWords = kRegion / sizeof(std::uint64_t);
constexpr int kWritesInRound = 50;

// Neighbours are on different pages.
std::uint64_t place_of(std::uint64_t write) { return write * 513 % kWords; }

void register_anew(probe::Wire& wire, Board& board) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(kRegion);
  std::memset(memory, 0, kRegion);
  ibv_mr* const mr = node.reg(memory, kRegion);
  probe::Address peer;
  node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer);
  const auto* const words = reinterpret_cast<const volatile std::uint64_t*>(memory);
  const std::uint32_t rounds = is_long() ? 1000 : 60;
  std::uint64_t lost = 0;
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    board.round = round;
    require(
        ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, probe::kAllAccess) == 0,
        "ibv_rereg_mr");
    while (board.written != round)
      usleep(50);
    for (std::uint64_t write = board.first; write < board.behind; ++write)
      lost += words[place_of(write)] != write + 1;
  }
  board.is_over = true;
  require(lost == 0, "%llu of %llu acknowledged WRITEs are not there",
          static_cast<unsigned long long>(lost),
          static_cast<unsigned long long>(board.behind.load()));
  wire.meet();
}

void write_in_rounds(probe::Wire& wire, Board& board) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(4096);
  ibv_mr* const mr = node.reg(memory, 4096);
  probe::Address peer;
  ibv_qp* const qp = node.meet(wire, {}, peer);
  std::uint64_t writes = 0;
  for (std::uint32_t seen = 0; !board.is_over;) {
    if (board.round == seen) continue;
    seen = board.round;
    board.first = writes;
    spin(std::chrono::microseconds(300 + seen * 37 % 600));
    for (int i = 0; i < kWritesInRound; ++i) {
      const std::uint64_t value = writes + 1;
      std::memcpy(memory, &value, sizeof value);
      require(probe::post(qp, {.id = writes,
                               .memory = memory,
                               .length = sizeof value,
                               .local_key = mr->lkey,
                               .remote = peer.memory + place_of(writes) * sizeof value,
                               .remote_key = peer.key}) == 0,
              "ibv_post_send");
      node.wait_success(writes++);
    }
    board.behind = writes;
    board.written = seen;
  }
  wire.meet();
}

// -- taken beside the end of the connection -----------------------------------------------------

constexpr std::size_t kTaken = 512 * 1024;
// Seen were up to four milliseconds.
constexpr int kLooks = 10;

void end_connection(ibv_qp* qp, bool destroys) {
  if (destroys) return require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RESET;
  require(ibv_modify_qp(qp, &to, IBV_QP_STATE) == 0, "ibv_modify_qp");
}

std::uint32_t beside_rounds() { return is_long() ? 1000 : 80; }

void take_beside(probe::Wire& wire, Board& board) {
  probe::Node node;
  for (std::uint32_t round = 1; round <= beside_rounds(); ++round) {
    std::byte* const memory = probe::map_pages(kTaken);
    std::memset(memory, 0, kTaken);
    ibv_mr* const mr = node.reg(memory, kTaken);
    probe::Address peer;
    ibv_qp* const qp =
        node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer);
    while (board.written < 20)
      usleep(20);
    std::atomic<bool> has_begun{false};
    std::thread other([&] {
      has_begun = true;
      end_connection(qp, round % 2 == 0);
    });
    while (!has_begun) {
    }
    spin(std::chrono::microseconds(round * 37 % 200));
    require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    std::memset(memory, static_cast<int>(kOurs), kTaken);
    for (int look = 0; look < kLooks; ++look) {
      usleep(500);
      require(std::all_of(memory, memory + kTaken, [](std::byte each) { return each == kOurs; }),
              "round %u: written after ibv_dereg_mr", round);
    }
    other.join();
    board.round = round;
    wire.meet();
    board.written = 0;
    wire.meet();
    munmap(memory, kTaken);
  }
}

void write_to_the_end(probe::Wire& wire, Board& board) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(kTaken);
  std::memset(memory, static_cast<int>(kWritten), kTaken);
  ibv_mr* const mr = node.reg(memory, kTaken);
  for (std::uint32_t round = 1; round <= beside_rounds(); ++round) {
    probe::Address peer;
    ibv_qp* const qp = node.meet(wire, {}, peer);
    const auto is_going_on = [&] { return board.round != round; };
    bool is_refused = false;
    while (is_going_on() && !is_refused) {
      is_refused = probe::post(qp, {.memory = memory,
                                    .length = kTaken,
                                    .local_key = mr->lkey,
                                    .remote = peer.memory,
                                    .remote_key = peer.key}) != 0;
      std::optional<ibv_wc> done;
      while (!is_refused && !done && is_going_on())
        done = node.poll_for(0);
      is_refused = is_refused || !done || done->status != IBV_WC_SUCCESS;
      if (!is_refused) ++board.written;
    }
    while (is_going_on())
      usleep(100);
    require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
    while (node.poll_for(0)) {
    }
    wire.meet();
    wire.meet();
  }
}

}  // namespace

void registered_anew() {
  Board& board = make_board();
  require(probe::run_two([&](probe::Wire& wire) { register_anew(wire, board); },
                         [&](probe::Wire& wire) { write_in_rounds(wire, board); },
                         is_long() ? 900 : 100),
          "see above");
}

void taken_beside() {
  Board& board = make_board();
  require(probe::run_two([&](probe::Wire& wire) { take_beside(wire, board); },
                         [&](probe::Wire& wire) { write_to_the_end(wire, board); },
                         is_long() ? 900 : 100),
          "see above");
}

}  // namespace access_test
