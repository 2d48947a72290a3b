// SPDX-License-Identifier: MIT
#include "traffic.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace access_test {

using probe::require;
using Clock = std::chrono::steady_clock;

namespace {

// Long enough for a peer on a busy machine, and for whatever it still has in hands.
constexpr int kPatience = 20;

bool is_told_to_stop(probe::Wire& wire) {
  char byte = 0;
  return recv(wire.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0;
}

void write_until_stopped(probe::Node& node, ibv_qp* qp, ibv_mr* mr, const Invitation& to,
                         probe::Wire& wire) {
  constexpr std::uint32_t kSizes[] = {8, 4096, 64, 65536, kUsed, 1, 16384};
  std::uint64_t round = 0;
  [[maybe_unused]] unsigned open = 0;
  while (!is_told_to_stop(wire)) {
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t size = to.operation ? to.operation : kSizes[++round % std::size(kSizes)];
      const probe::Work work{.id = round,
                             .memory = mr->addr,
                             .length = size,
                             .local_key = mr->lkey,
                             .remote = to.address.memory,
                             .remote_key = to.address.key};
      open += probe::post(qp, work) == 0;
      ibv_wc completion{};
      while (ibv_poll_cq(node.cq, 1, &completion) == 1)
        --open;
    }
  }
}

}  // namespace

void write_all_the_time(probe::Wire& wire, std::uint32_t queue_pairs_before) {
  probe::Node node;
  for (std::uint32_t i = 0; i < queue_pairs_before; ++i)
    node.create({.depth = 1, .sges = 1, .inline_max = 0});
  std::byte* const source = probe::map_pages(kUsed);
  std::memset(source, static_cast<int>(kWritten), kUsed);
  ibv_mr* const mr = node.reg(source, kUsed);
  wire.put(getpid());
  for (;;) {
    const auto invitation = wire.get<Invitation>();
    if (invitation.is_last) return;
    probe::Address peer;
    ibv_qp* const qp = node.meet(wire, {}, peer);
    Invitation to = invitation;
    to.address = peer;
    write_until_stopped(node, qp, mr, to, wire);
    wire.meet();
    ibv_destroy_qp(qp);
    ibv_wc completion{};
    while (ibv_poll_cq(node.cq, 1, &completion) == 1) {
    }
  }
}

void dismiss(probe::Wire& wire) { wire.put(Invitation{.address = {}, .is_last = true}); }

Victim::Victim(probe::Node& node, probe::Wire& wire, std::size_t bytes, std::uint32_t operation)
    : size(bytes), node_(node), wire_(wire) {
  memory = probe::map_pages(size);
  other_memory = probe::map_pages(size);
  std::memset(memory, 0, kUsed);
  std::memset(other_memory, 0, kUsed);
  mr = node.reg(memory, size);
  wire.put(Invitation{.address = {}, .operation = operation});
  probe::Address peer;
  qp = node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer);
}

Victim::~Victim() {
  if (is_running_) stop_traffic();
  if (qp) ibv_destroy_qp(qp);
  if (mr) deregister();
  ibv_wc completion{};
  while (ibv_poll_cq(node_.cq, 1, &completion) == 1) {
  }
  munmap(memory, size);
  munmap(other_memory, size);
}

void Victim::deregister() {
  require(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
  mr = nullptr;
}

// More than once, so that the peer has everything mapped that it may map.
void Victim::wait_for_traffic() {
  const auto end = Clock::now() + std::chrono::seconds(kPatience);
  for (int round = 0; round < 5; ++round) {
    static_cast<volatile std::byte*>(memory)[0] = std::byte{0};
    while (static_cast<volatile std::byte*>(memory)[0] != kWritten) {
      require(Clock::now() < end, "no WRITE arrives");
      ibv_wc completion{};
      ibv_poll_cq(node_.cq, 1, &completion);
      sched_yield();
    }
  }
}

void Victim::stop_traffic() {
  is_running_ = false;
  wire_.meet();
}

void Victim::mark() {
  std::memset(memory, static_cast<int>(kOurs), kUsed);
  std::memset(other_memory, static_cast<int>(kOurs), kUsed);
}

bool Victim::is_untouched() const {
  const auto is_ours = [](std::byte byte) { return byte == kOurs; };
  return std::all_of(memory, memory + kUsed, is_ours) &&
         std::all_of(other_memory, other_memory + kUsed, is_ours);
}

bool is_set(const char* variable, const char* value) {
  const char* const set = std::getenv(variable);
  return set && std::strcmp(set, value) == 0;
}

bool is_long() { return is_set("VERBENA_TEST_MODE", "long"); }

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace access_test
