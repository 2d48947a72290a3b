// SPDX-License-Identifier: MIT
// Small programs over verbs, one a name, whose memory must keep its meaning while it is registered
// and afterwards. run_memory.py runs them.
//
//   memory_probe NAME [process | thread | pid-namespace]    what the peer is
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "world.h"

namespace semantics {
namespace {

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> all;
  for (const auto& part : {allocator_scenarios(), mapping_scenarios(), fork_scenarios(),
                           writer_scenarios(), kernel_scenarios(), advice_scenarios(),
                           limit_scenarios(), place_scenarios(), adopted_scenarios()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The owner is the first of a pid namespace; the peers, begun before, are the first of theirs.
void run_apart(const Scenario& scenario) {
  if (geteuid() != 0) skip("pid namespaces need root");
  World world(PeerKind::kPidNamespace);
  require(unshare(CLONE_NEWPID) == 0, "unshare: %s", strerror(errno));
  in_child([&] {
    require(getpid() == 1, "not the first of its namespace");
    probe::i_am("owner");
    scenario.run(world);
  });
}

int run(std::string_view name, std::string_view peer) {
  for (const Scenario& each : all_scenarios()) {
    if (name != each.name) continue;
    probe::i_am("owner");
    if (peer == "pid-namespace") {
      run_apart(each);
      return 0;
    }
    World world(peer == "thread" ? PeerKind::kThread : PeerKind::kProcess);
    each.run(world);
    return 0;
  }
  dprintf(2, "FAIL there is no %.*s\n", static_cast<int>(name.size()), name.data());
  return 1;
}

}  // namespace
}  // namespace semantics

int main(int count, char** words) {
  if (count < 2) {
    for (const semantics::Scenario& each : semantics::all_scenarios())
      std::printf("%s\n", each.name);
    return 2;
  }
  return semantics::run(words[1], count > 2 ? words[2] : "process");
}
