// SPDX-License-Identifier: MIT
#include "host/control.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <numeric>
#include <set>

#include "host/slots.h"
#include "host/test_node.h"

namespace verbena::host {
namespace {

TEST(Control, TakesASlotOfItsOwn) {
  Node a, b;
  EXPECT_NE(a.control->first_slot(), b.control->first_slot());
  EXPECT_NE(a.control->id(), b.control->id());
  EXPECT_EQ(a.control->page().magic, ProcessPage::kMagic);
  EXPECT_EQ(a.control->page().id, a.control->id());
  // Nobody else can have it: the kernel says so.
  const SlotAddress address(test_options().slot_name, a.control->first_slot());
  const PrivateFd thief(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_NE(bind(thief.get(), address.address(), address.size), 0);
  EXPECT_EQ(errno, EADDRINUSE);
}

TEST(Control, TakesFurtherSlotsUntilAllAreTaken) {
  ControlOptions options = test_options();
  options.slots_max = 1000;
  Node a(options), b(options);
  std::set<SlotNumber> taken{a.control->first_slot(), b.control->first_slot()};
  for (unsigned i = 0; i < 999; ++i) {
    const auto slot = a.control->take_another_slot();
    ASSERT_TRUE(slot);
    ASSERT_TRUE(taken.insert(*slot).second);
  }
  EXPECT_EQ(a.control->take_another_slot().error(), ControlError::kNoSlot);  // its own limit
  while (taken.size() < kSlotCount) {
    const auto slot = b.on_thread([&] { return b.control->take_another_slot(); });
    ASSERT_TRUE(slot);
    ASSERT_TRUE(taken.insert(*slot).second);
  }
  EXPECT_EQ(b.control->take_another_slot().error(), ControlError::kNoSlot);  // everybody's
  Node c;
  EXPECT_FALSE(c.control);
  EXPECT_EQ(c.error, ControlError::kNoSlot);
}

TEST(Control, GivesItsSlotsBack) {
  ControlOptions options = test_options();
  options.slots_max = kSlotCount;
  for (int round = 0; round < 2; ++round) {
    Node a(options);
    while (a.control->take_another_slot()) {
    }
    EXPECT_FALSE(Node().control);
  }
}

TEST(Control, LinksTwoProcesses) {
  Child child([](Node& node, Pipe& pipe) {
    EXPECT_TRUE(eventually([&] { return node.received("ping"); }));
    const PeerId id = node.peer(0).id();
    EXPECT_EQ(node.peer(0).pid(), getppid());
    EXPECT_TRUE(node.peer(0).memory_readable());
    EXPECT_TRUE(node.send(id, "pong"));
    pipe.take<char>();
    EXPECT_TRUE(eventually([&] { return node.control->page().summary[0] != 0; }));
  });
  Node node;
  const auto id = node.reach(child.slot);
  ASSERT_TRUE(id);
  ASSERT_EQ(node.count_up(), 1u);
  Peer& peer = node.peer(0);
  EXPECT_EQ(peer.id(), *id);
  EXPECT_EQ(peer.pid(), child.pid());
  EXPECT_TRUE(peer.memory_readable());
  EXPECT_EQ(peer.page().magic, ProcessPage::kMagic);
  EXPECT_EQ(peer.page().id, *id);
  EXPECT_TRUE(node.send(*id, "ping"));
  EXPECT_TRUE(eventually([&] { return node.received("pong"); }));
  peer.doorbell().ring_and_wake(17);
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(eventually([&] { return node.count_down() == 1; }));
  EXPECT_EQ(node.gone(0), *id);
  // The page is ours as long as we want it.
  peer.doorbell().ring_and_wake(18);
}

TEST(Control, CarriesMemory) {
  Child child([](Node& node, Pipe& pipe) {
    EXPECT_TRUE(eventually([&] { return node.with([&] { return !node.memories.empty(); }); }));
    node.with([&] { return node.memories[0].at<std::uint32_t>(0) = 4711; });
    pipe.give('d');
    pipe.take<char>();
  });
  Node node;
  const auto id = node.reach(child.slot);
  ASSERT_TRUE(id);
  SharedMemory memory = node.on_thread([&] {
    auto created = SharedMemory::create(4096);
    const std::string text = "here";
    EXPECT_TRUE(node.control->send(*id, std::as_bytes(std::span(text)), &created->fd));
    return std::move(created->memory);
  });
  child.pipe.take<char>();
  EXPECT_EQ(memory.at<std::uint32_t>(0), 4711u);
  EXPECT_EQ(child.finish(), 0);
}

TEST(Control, CarriesMessagesOfEverySizeInOrder) {
  Node a, b;
  const auto id = a.reach(b.control->first_slot());
  ASSERT_TRUE(id);
  a.on_thread([&] {
    for (std::size_t i = 0; i <= Control::kMessageMax; i += 64) {
      const std::string text(i, 'x');
      EXPECT_TRUE(a.control->send(*id, std::as_bytes(std::span(text))));
    }
    const std::string text(Control::kMessageMax + 1, 'x');
    EXPECT_FALSE(a.control->send(*id, std::as_bytes(std::span(text))));
    return 0;
  });
  constexpr std::size_t kCount = Control::kMessageMax / 64 + 1;
  ASSERT_TRUE(eventually([&] { return b.with([&] { return b.messages.size() == kCount; }); }));
  for (std::size_t i = 0; i < kCount; ++i)
    EXPECT_EQ(b.with([&] { return b.messages[i].size(); }), i * 64);
  EXPECT_EQ(a.count_down() + b.count_down(), 0u);
}

TEST(Control, SaysWhenNobodyIsThere) {
  Node node;
  const SlotNumber free{static_cast<std::uint16_t>((node.control->first_slot().value + 1) % 1024)};
  EXPECT_FALSE(node.reach(free));
  EXPECT_EQ(node.why, Refusal::kNobody);
  EXPECT_FALSE(node.reach(node.control->first_slot()));
  EXPECT_EQ(node.why, Refusal::kSelf);
  EXPECT_FALSE(node.reach(SlotNumber{kSlotCount}));
  EXPECT_EQ(node.why, Refusal::kNobody);
}

TEST(Control, HasOneLinkForAllSlotsOfAProcess) {
  Node a, b;
  const auto id = a.reach(b.control->first_slot());
  ASSERT_TRUE(id);
  EXPECT_EQ(a.reach(b.control->first_slot()), id);
  // Later ones too, whether or not the news has arrived.
  for (int i = 0; i < 20; ++i) {
    const auto another = b.control->take_another_slot();
    ASSERT_TRUE(another);
    EXPECT_EQ(a.reach(*another), id);
    EXPECT_EQ(a.on_thread([&] { return a.control->holder(*another); }), id);
  }
  EXPECT_EQ(b.reach(a.control->first_slot()), a.control->id());
  EXPECT_EQ(a.count_up(), 1u);
  EXPECT_EQ(b.count_up(), 1u);
  EXPECT_EQ(a.count_down() + b.count_down(), 0u);
}

TEST(Control, MakesOneLinkWhenBothAsk) {
  unsigned both_asked = 0;
  for (int round = 0; round < 150; ++round) {
    Node a, b;
    // Each asks for several slots of the other, so up to six connections cross.
    const SlotNumber a2 = *a.control->take_another_slot(), b2 = *b.control->take_another_slot();
    a.connect(b.control->first_slot());
    b.connect(a.control->first_slot());
    a.connect(b2);
    b.connect(a2);
    ASSERT_TRUE(eventually([&] { return a.with([&] { return a.answers.size() == 2; }); }));
    ASSERT_TRUE(eventually([&] { return b.with([&] { return b.answers.size() == 2; }); }));
    for (const auto& [slot, answer] : a.with([&] { return a.answers; }))
      ASSERT_EQ(answer.first, b.control->id());
    for (const auto& [slot, answer] : b.with([&] { return b.answers; }))
      ASSERT_EQ(answer.first, a.control->id());
    ASSERT_TRUE(a.send(b.control->id(), "from a"));
    ASSERT_TRUE(b.send(a.control->id(), "from b"));
    ASSERT_TRUE(eventually([&] { return a.received("from b") && b.received("from a"); }));
    ASSERT_EQ(a.count_up(), 1u);
    ASSERT_EQ(b.count_up(), 1u);
    ASSERT_EQ(a.count_down() + b.count_down(), 0u);
    ++both_asked;
  }
  EXPECT_EQ(both_asked, 150u);
}

TEST(Control, LinksEverybodyWithEverybody) {
  constexpr std::size_t kNodes = 16;
  std::vector<std::unique_ptr<Node>> nodes;
  for (std::size_t i = 0; i < kNodes; ++i)
    nodes.push_back(std::make_unique<Node>());
  for (const auto& from : nodes) {
    for (const auto& to : nodes) {
      if (from != to) from->connect(to->control->first_slot());
    }
  }
  for (const auto& node : nodes) {
    ASSERT_TRUE(
        eventually([&] { return node->with([&] { return node->answers.size() == kNodes - 1; }); }));
    for (const auto& [slot, answer] : node->with([&] { return node->answers; }))
      EXPECT_TRUE(answer.first);
    EXPECT_EQ(node->count_up(), kNodes - 1);
  }
  for (const auto& node : nodes)
    EXPECT_EQ(node->count_down(), 0u);
}

TEST(Control, KeepsToItsLimitOfPeers) {
  ControlOptions options = test_options();
  options.patience = Duration::seconds(3);
  options.peers_max = 2;
  Node small(options), a(options), b(options), c(options);
  EXPECT_TRUE(a.reach(small.control->first_slot()));
  EXPECT_TRUE(b.reach(small.control->first_slot()));
  EXPECT_FALSE(c.reach(small.control->first_slot()));
  EXPECT_EQ(c.why, Refusal::kBusy);
}

TEST(Control, RunsTasksInOrderAndAllOfThem) {
  std::vector<int> seen;
  {
    Node node;
    for (int i = 0; i < 1000; ++i) {
      EXPECT_TRUE(node.control->submit([&seen, i] { seen.push_back(i); }));
    }
  }
  std::vector<int> all(1000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(seen, all);
}

TEST(Control, RefusesTasksBeyondItsLimit) {
  ControlOptions options = test_options();
  options.tasks_max = 4;
  Node node(options);
  std::atomic<bool> may_go = false, entered = false;
  node.control->submit([&] {
    entered = true;
    eventually([&] { return may_go.load(); });
  });
  ASSERT_TRUE(eventually([&] { return entered.load(); }));
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(node.control->submit([] {}));
  EXPECT_FALSE(node.control->submit([] {}));
  may_go = true;
  EXPECT_TRUE(eventually([&] { return node.control->submit([] {}); }));
  EXPECT_TRUE(node.control->stop());
  EXPECT_FALSE(node.control->submit([] {}));
  EXPECT_EQ(node.control->take_another_slot().error(), ControlError::kNoAnswer);
}

TEST(Control, TicksAtTheTimeAskedFor) {
  Node node;
  const Instant before = Instant::at(std::chrono::steady_clock::now().time_since_epoch().count());
  const Instant asked = before + Duration::milliseconds(30);
  node.control->submit([&] { node.control->call_at(asked); });
  ASSERT_TRUE(eventually([&] { return node.with([&] { return !node.ticks.empty(); }); }));
  EXPECT_GE(node.with([&] { return node.ticks[0]; }), asked);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(node.with([&] { return node.ticks.size(); }), 1u);
}

// A task is done soon, whatever the program does with the signal that wakes the control thread.
TEST(Control, IsWokenWhateverTheProgramDoesWithTheSignal) {
  static std::atomic<int> caught;
  caught = 0;
  Node node;
  for (void (*handler)(int) : {SIG_DFL, SIG_IGN, +[](int) { ++caught; }}) {
    signal(SIGURG, handler);
    for (int i = 0; i < 50; ++i)
      node.on_thread([] { return 0; });
  }
  sigset_t urgent;
  sigemptyset(&urgent);
  sigaddset(&urgent, SIGURG);
  pthread_sigmask(SIG_BLOCK, &urgent, nullptr);
  for (int i = 0; i < 50; ++i)
    node.on_thread([] { return 0; });
  pthread_sigmask(SIG_UNBLOCK, &urgent, nullptr);
  EXPECT_EQ(caught, 0);  // the program never sees it
  kill(getpid(), SIGURG);
  EXPECT_TRUE(eventually([] { return caught == 1; }));  // and we do not take the program's
  pthread_sigmask(SIG_BLOCK, &urgent, nullptr);
  kill(getpid(), SIGURG);
  int taken = 0;
  EXPECT_EQ(sigwait(&urgent, &taken), 0);
  pthread_sigmask(SIG_UNBLOCK, &urgent, nullptr);
  signal(SIGURG, SIG_DFL);
}

TEST(Control, HidesItsDescriptorsFromTheProgram) {
  const std::size_t before = count_descriptors();
  Node a, b;
  ASSERT_TRUE(a.reach(b.control->first_slot()));
  EXPECT_EQ(count_descriptors(), before);
  EXPECT_GT(a.on_thread([] { return count_descriptors(gettid()); }), 6u);
}

std::uint64_t sleeps_of(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string word; status >> word;) {
    std::uint64_t count = 0;
    if (word == "voluntary_ctxt_switches:" && status >> count) return count;
  }
  return 0;
}

TEST(Control, UsesNoProcessorWhenIdle) {
  Node a, b;
  ASSERT_TRUE(a.reach(b.control->first_slot()));
  const pid_t thread = a.on_thread([] { return gettid(); });
  const std::uint64_t before = sleeps_of(thread);
  ASSERT_GT(before, 0u);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  // Each time it wakes it goes to sleep once more; what was under way at first counts too.
  EXPECT_LE(sleeps_of(thread), before + 2);
}

}  // namespace
}  // namespace verbena::host
