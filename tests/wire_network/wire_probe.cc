// SPDX-License-Identifier: MIT
// Small programs over verbs on the wire, one a name: each has both of its sides.
// run_wire_network.py runs them.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "environment/node.h"

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

struct Scene {
  const char* name;
  bool (*run)();
};
constexpr Scene kScenes[] = {
    {"exit", leave_after_the_last_message},
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
