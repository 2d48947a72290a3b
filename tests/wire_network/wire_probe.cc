// SPDX-License-Identifier: MIT
// Small programs over verbs on the wire, one a name: each has both of its sides.
// run_wire_network.py runs them.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "environment/node.h"
#include "verbena/dv.h"

namespace {

using namespace probe;

// A program that ends as soon as it has what it wants, without destroying anything: what it has
// taken is acknowledged all the same.
bool leave_after_the_last_message() {
  constexpr unsigned kRounds = 30;
  constexpr unsigned kMessages = 40;  // so that the receiver is known as one that polls
  for (unsigned round = 0; round < kRounds; ++round) {
    const auto send = [](Wire& wire) {
      Node node;
      std::byte* const memory = map_pages(4096);
      ibv_mr* const mr = node.reg(memory, 4096);
      Address peer;
      ibv_qp* const qp = node.meet(wire, {}, peer);
      wire.meet();
      for (unsigned message = 0; message < kMessages; ++message) {
        require(post(qp, {.opcode = IBV_WR_SEND,
                          .id = message,
                          .memory = memory,
                          .length = 64,
                          .local_key = mr->lkey}) == 0,
                "ibv_post_send");
        node.wait_success(message);
      }
    };
    const auto receive = [](Wire& wire) {
      Node node;
      std::byte* const memory = map_pages(4096);
      ibv_mr* const mr = node.reg(memory, 4096);
      Address peer;
      ibv_qp* const qp = node.meet(wire, {}, peer);
      for (unsigned message = 0; message < kMessages; ++message)
        require(post_receive(qp, memory, 4096, mr->lkey, message) == 0, "ibv_post_recv");
      wire.meet();
      for (unsigned message = 0; message < kMessages; ++message)
        node.wait_success(message);
      exit(0);
    };
    if (!run_two(send, receive)) return false;
  }
  return true;
}

verbena_dv_qp service_of(ibv_qp* qp) {
  verbena_dv_qp service = {};
  service.comp_mask = VERBENA_DV_QP_WIRE;
  require(verbena_dv_query_qp(qp, &service) == 0, "verbena_dv_query_qp");
  require(service.comp_mask == VERBENA_DV_QP_WIRE, "nothing about the wire");
  require(service.carrier == VERBENA_DV_CARRIER_WIRE, "not by the wire, but by %u",
          service.carrier);
  return service;
}

// Two ends agree when both may; a caller that knows nothing of later fields keeps its memory.
bool agree() {
  constexpr std::uint32_t kMessages = 10;
  const auto side = [](Wire& wire, const char* mine, const char* others) {
    setenv("VERBENA_AGREE", mine, 1);
    Node node;
    std::byte* const memory = map_pages(8192);
    ibv_mr* const mr = node.reg(memory, 8192);
    Address peer;
    const Address own{0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}};
    ibv_qp* const qp = node.meet(wire, own, peer);
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      require(post(qp, {.id = i,
                        .memory = memory,
                        .length = 64,
                        .local_key = mr->lkey,
                        .remote = peer.memory + 4096,
                        .remote_key = peer.key}) == 0,
              "ibv_post_send");
      node.wait_success(i);
    }
    wire.meet();
    const verbena_dv_qp service = service_of(qp);
    const bool may = std::strcmp(mine, "auto") == 0 && std::strcmp(others, "auto") == 0;
    require(service.wire_agreed == (may ? 1u : 0u), "agreed: %u", service.wire_agreed);
    require(service.wire_packets >= kMessages, "%u packets",
            static_cast<unsigned>(service.wire_packets));
    verbena_dv_qp older;
    std::memset(&older, 0x5a, sizeof older);
    older.comp_mask = 0;
    require(verbena_dv_query_qp(qp, &older) == 0 && older.comp_mask == 0, "verbena_dv_query_qp");
    require(older.wire_packets == 0x5a5a5a5a5a5a5a5a, "a later field was written");
    wire.meet();
  };
  const auto run = [&](const char* one, const char* other) {
    return run_two([&](Wire& wire) { side(wire, one, other); },
                   [&](Wire& wire) { side(wire, other, one); });
  };
  return run("auto", "auto") && run("auto", "never") && run("never", "never");
}

struct Scene {
  const char* name;
  bool (*run)();
};
constexpr Scene kScenes[] = {
    {"exit", leave_after_the_last_message},
    {"agree", agree},
};

}  // namespace

int main(int count, char** words) {
  for (const Scene& each : kScenes) {
    if (count == 2 && std::strcmp(each.name, words[1]) == 0) return each.run() ? 0 : 1;
  }
  std::fprintf(stderr, "usage: wire_probe SCENE, one of:\n");
  for (const Scene& each : kScenes)
    std::fprintf(stderr, "  %s\n", each.name);
  return 2;
}
