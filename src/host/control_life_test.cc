// SPDX-License-Identifier: MIT
// Control threads in programs that die, fork, exec, close what they do not know, and run out of
// things.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "host/control.h"
#include "host/test_node.h"

// Under the thread sanitizer a child of a process with threads may have threads too.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace verbena::host {
namespace {

// Closes like programs that daemonize: everything but what the test needs.
void close_everything_but(int keep) {
  for (int fd = 3; fd < 4096; ++fd) {
    if (fd != keep) close(fd);
  }
}

TEST(ControlLife, SeesAPeerKilled) {
  Child child;
  Node node;
  ASSERT_TRUE(node.reach(child.slot));
  EXPECT_EQ(node.count_down(), 0u);
  child.kill_now();
  EXPECT_TRUE(hears_of_death(node));
  EXPECT_FALSE(node.send(node.gone(0), "hello?"));
  EXPECT_FALSE(node.reach(child.slot));
  EXPECT_EQ(node.why, Refusal::kNobody);
  EXPECT_EQ(node.count_down(), 1u);
}

TEST(ControlLife, HearsTheLastWordsOfAPeer) {
  Child child([](Node& node, Pipe& pipe) {
    // Dies with something of the other's unread, which resets the connection.
    auto react = [&](PeerId from, const std::string&) {
      const std::string text = "last words";
      node.control->send(from, std::as_bytes(std::span(text)));
      raise(SIGKILL);
    };
    node.with([&] { return node.on_message = react, 0; });
    pipe.give('r');
    eventually([] { return false; });
  });
  EXPECT_EQ(child.pipe.take<char>(), 'r');
  Node node;
  const auto id = node.reach(child.slot);
  ASSERT_TRUE(id);
  node.on_thread([&] {
    for (const std::string text : {"one", "two", "three"}) {
      EXPECT_TRUE(node.control->send(*id, std::as_bytes(std::span(text))));
    }
    return 0;
  });
  EXPECT_TRUE(hears_of_death(node));
  EXPECT_TRUE(node.received("last words"));
}

// Without a descriptor table of its own, a process sends what tells of its end. That is ready
// together with what it sent, which is more than one turn takes.
TEST(ControlLife, HearsAllThatADeadPeerSaid) {
  constexpr int kMessages = 100;
  ControlOptions options = test_options();
  options.own_table = false;
  Child child(
      [](Node& node, Pipe& pipe) {
        EXPECT_TRUE(eventually([&] { return node.count_up() == 1; }));
        pipe.take<char>();
        for (int i = 0; i < kMessages; ++i)
          EXPECT_TRUE(node.send(node.peer(0).id(), std::to_string(i)));
        pipe.give('s');
        pipe.take<char>();
      },
      options);
  Node node(options);
  ASSERT_TRUE(node.reach(child.slot));
  std::atomic<bool> is_dead = false;
  ASSERT_TRUE(node.control->submit([&] { eventually([&] { return is_dead.load(); }); }));
  child.pipe.give('g');
  EXPECT_EQ(child.pipe.take<char>(), 's');
  child.kill_now();
  is_dead = true;
  EXPECT_TRUE(hears_of_death(node));
  for (int i = 0; i < kMessages; ++i)
    EXPECT_TRUE(node.received(std::to_string(i))) << i;
}

TEST(ControlLife, SeesAPeerKilledWhoseChildrenLive) {
  Child child([](Node& node, Pipe& pipe) {
    EXPECT_TRUE(eventually([&] { return node.count_up() == 1; }));
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      for (;;)
        pause();
    }
    pipe.give(grandchild);
    pipe.take<char>();
  });
  Node node;
  ASSERT_TRUE(node.reach(child.slot));
  const auto grandchild = child.pipe.take<pid_t>();
  child.kill_now();
  EXPECT_TRUE(hears_of_death(node));
  EXPECT_EQ(kill(grandchild, 0), 0);
  kill(grandchild, SIGKILL);
}

TEST(ControlLife, SeesAPeerExec) {
  Child child([](Node& node, Pipe& pipe) {
    EXPECT_TRUE(eventually([&] { return node.count_up() == 1; }));
    pipe.take<char>();
    execl("/bin/sleep", "sleep", "1000", nullptr);
  });
  Node node;
  ASSERT_TRUE(node.reach(child.slot));
  child.pipe.give('x');
  EXPECT_TRUE(hears_of_death(node));
  EXPECT_EQ(kill(child.pid(), 0), 0);
}

TEST(ControlLife, OutlivesAProgramThatClosesAllDescriptors) {
  Child child([](Node& node, Pipe& pipe) {
    EXPECT_TRUE(eventually([&] { return node.count_up() == 1; }));
    close_everything_but(pipe.fd());
    pipe.give('c');
    const PeerId id = node.peer(0).id();
    EXPECT_TRUE(eventually([&] { return node.received("still there?"); }));
    EXPECT_TRUE(node.send(id, "yes"));
    EXPECT_TRUE(node.control->take_another_slot());
    pipe.take<char>();
  });
  Node node;
  const auto id = node.reach(child.slot);
  ASSERT_TRUE(id);
  child.pipe.take<char>();
  EXPECT_TRUE(node.send(*id, "still there?"));
  EXPECT_TRUE(eventually([&] { return node.received("yes"); }));
  EXPECT_EQ(node.count_down(), 0u);
  EXPECT_EQ(child.finish(), 0);
}

TEST(ControlLife, KeepsNothingOfTheProgramOpen) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Node node;
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);  // end of file: nobody else holds the other end
  close(ends[0]);
}

TEST(ControlLife, CanBeAbandonedInAForkedChild) {
  auto* node = new Node;
  Node other;
  ASSERT_TRUE(node->reach(other.control->first_slot()));
  const pid_t child = fork();
  if (child == 0) {
    EXPECT_FALSE(node->control->submit([] {}));
    EXPECT_FALSE(node->control->take_another_slot());
    node->control->abandon();
    node->control.reset();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(node->send(other.control->id(), "nothing happened"));
  EXPECT_EQ(other.count_down(), 0u);
  delete node;
}

TEST(ControlLife, StartsAfreshInAForkedChild) {
  Child child([](Node& node, Pipe& pipe) {
    EXPECT_TRUE(eventually([&] { return node.count_up() == 1; }));
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      node.control->abandon();
      Node fresh;
      EXPECT_TRUE(fresh.control);
      const auto id = fresh.reach(pipe.take<SlotNumber>());
      EXPECT_TRUE(id && fresh.send(*id, "I am new"));
      pipe.take<char>();
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    waitpid(grandchild, &status, 0);
    EXPECT_EQ(status, 0);
  });
  Node node;
  ASSERT_TRUE(node.reach(child.slot));
  child.pipe.give(node.control->first_slot());
  EXPECT_TRUE(eventually([&] { return node.received("I am new"); }));
  EXPECT_EQ(node.count_up(), 2u);
  EXPECT_EQ(node.count_down(), 0u);
  EXPECT_EQ(child.finish(), 0);
}

// 100 processes would take long to start; their control threads are as good.
TEST(ControlLife, HasMorePeersThanTheProgramHasDescriptors) {
  Child child(
      [](Node& node, Pipe& pipe) {
        EXPECT_TRUE(eventually([&] { return node.count_up() == 100; }));
        // While a descriptor is passed the limit is a higher one.
        EXPECT_TRUE(eventually([] {
          rlimit limit{};
          return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 32;
        }));
        // None of the program's are used up.
        for (int fd = 3; fd < 30; ++fd)
          dup(pipe.fd());
        pipe.take<char>();
        EXPECT_EQ(node.count_down(), 0u);
      },
      test_options(),
      [] {
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = 32;
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
      });
  ASSERT_LT(child.slot.value, kSlotCount);
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 100; ++i)
    nodes.push_back(std::make_unique<Node>());
  for (const auto& node : nodes)
    node->connect(child.slot);
  for (const auto& node : nodes)
    EXPECT_TRUE(node->reach(child.slot));
  EXPECT_EQ(child.finish(), 0);
}

// More than one greets at a time, and each has asked all others before it accepts any.
TEST(ControlLife, LinksManyThatAskEachOtherAtOnce) {
  constexpr std::size_t kNodes = 66;
  ControlOptions options = test_options();
  options.patience = Duration::seconds(20);
  std::atomic<std::size_t> asking = 0;
  std::vector<std::unique_ptr<Node>> nodes;
  while (nodes.size() < kNodes)
    nodes.push_back(std::make_unique<Node>(options));
  for (const auto& node : nodes) {
    ASSERT_TRUE(node->control->submit([&] {
      ++asking;
      eventually([&] { return asking == kNodes; });
      for (const auto& other : nodes)
        if (other != node) node->control->connect(other->control->first_slot());
    }));
  }
  for (const auto& node : nodes) {
    EXPECT_TRUE(
        eventually([&] { return node->with([&] { return node->answers.size() == kNodes - 1; }); }));
    EXPECT_EQ(node->count_up(), kNodes - 1);
  }
}

TEST(ControlLife, RefusesPeersWhenThereIsNoDescriptorForThem) {
  Child child(
      [](Node& node, Pipe& pipe) {
        pipe.take<char>();
        EXPECT_TRUE(eventually([&] { return node.count_up() >= 5; }));
        EXPECT_LT(node.count_up(), 20u);
        // Those who wait in vain cost no processor time.
        rusage before{}, after{};
        getrusage(RUSAGE_SELF, &before);
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        getrusage(RUSAGE_SELF, &after);
        EXPECT_LE(after.ru_nvcsw - before.ru_nvcsw, 40);
        pipe.give('m');
        EXPECT_TRUE(eventually([&] { return node.with([&] { return !node.memories.empty(); }); }));
        pipe.take<char>();
      },
      test_options(),
      [] {
        const rlimit limit{20, 20};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
      });
  ASSERT_LT(child.slot.value, kSlotCount);
  ControlOptions options = test_options();
  options.patience = Duration::seconds(4);
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 30; ++i)
    nodes.push_back(std::make_unique<Node>(options));
  for (const auto& node : nodes)
    node->connect(child.slot);
  unsigned reached = 0;
  auto count = [&](Node& node) {
    return node.with([&] { return node.answers.size() == 1 && node.answers[child.slot].first; });
  };
  // As many as it has room for come up; the others wait.
  EXPECT_TRUE(eventually([&] {
    reached = 0;
    for (const auto& node : nodes)
      reached += count(*node);
    return reached >= 5;
  }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  child.pipe.give('m');
  EXPECT_EQ(child.pipe.take<char>(), 'm');
  Node* linked = nullptr;
  for (const auto& node : nodes) {
    const auto id = node->reach(child.slot);
    EXPECT_TRUE(id || node->why == Refusal::kBusy);
    if (id) linked = node.get();
  }
  // Those who are linked can pass memory none the less.
  ASSERT_TRUE(linked);
  EXPECT_TRUE(linked->on_thread([&] {
    auto created = SharedMemory::create(4096);
    return linked->control->send(linked->peer(0).id(), {}, &created->fd);
  }));
  EXPECT_EQ(child.finish(), 0);
}

TEST(ControlLife, DoesNotWaitForAStoppedPeer) {
  ControlOptions options = test_options();
  options.patience = Duration::seconds(3);
  Child linked, unlinked;
  Node node(options);
  const auto id = node.reach(linked.slot);
  ASSERT_TRUE(id);
  linked.stop();
  unlinked.stop();
  EXPECT_FALSE(node.reach(unlinked.slot));
  EXPECT_EQ(node.why, Refusal::kBusy);
  // Messages wait, and are given up with the link when there are too many.
  const std::string text(4000, 'x');
  unsigned sent = 0;
  while (node.send(*id, text))
    ASSERT_LT(++sent, 2000u);
  EXPECT_GT(sent, 200u);
  EXPECT_TRUE(hears_of_death(node));
}

TEST(ControlLife, DeliversLateToAPeerThatWasStopped) {
  Child child([](Node& node, Pipe& pipe) {
    EXPECT_TRUE(eventually([&] { return node.with([&] { return node.messages.size(); }) == 200; }));
    for (int i = 0; i < 200; ++i)
      EXPECT_EQ(node.with([&] { return node.messages[std::size_t(i)][0]; }), char('a' + i % 26));
    EXPECT_EQ(node.with([&] { return node.memories.size(); }), 200u);
    pipe.take<char>();
  });
  Node node;
  const auto id = node.reach(child.slot);
  ASSERT_TRUE(id);
  child.stop();
  node.on_thread([&] {
    for (int i = 0; i < 200; ++i) {
      auto created = SharedMemory::create(4096);
      const std::string text(4000, char('a' + i % 26));
      EXPECT_TRUE(node.control->send(*id, std::as_bytes(std::span(text)), &created->fd));
    }
    return 0;
  });
  kill(child.pid(), SIGCONT);
  EXPECT_EQ(child.finish(), 0);
}

TEST(ControlLife, RefusesOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be somebody else";
  Child other(
      [](Node& node, Pipe& pipe) {
        EXPECT_FALSE(node.reach(pipe.take<SlotNumber>()));
        EXPECT_EQ(node.why, Refusal::kOtherUser);
        pipe.take<char>();
        EXPECT_EQ(node.count_up(), 0u);
      },
      test_options(), [] { EXPECT_EQ(setuid(65534), 0); });
  ASSERT_LT(other.slot.value, kSlotCount);
  Node node;
  other.pipe.give(node.control->first_slot());
  EXPECT_FALSE(node.reach(other.slot));
  EXPECT_EQ(node.why, Refusal::kOtherUser);
  EXPECT_EQ(other.finish(), 0);
  EXPECT_EQ(node.count_up(), 0u);
}

TEST(ControlLife, FollowsAProgramThatDropsItsPrivileges) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to drop it";
  Child server([](Node&, Pipe& pipe) {
    EXPECT_EQ(setuid(65534), 0);
    pipe.give('d');
    pipe.take<char>();
  });
  Child client(
      [](Node& node, Pipe& pipe) {
        const auto slot = pipe.take<SlotNumber>();
        // The first who comes may find it as it was.
        EXPECT_TRUE(eventually([&] { return node.reach(slot).has_value(); }));
        pipe.take<char>();
      },
      test_options(), [] { EXPECT_EQ(setuid(65534), 0); });
  EXPECT_EQ(server.pipe.take<char>(), 'd');
  client.pipe.give(server.slot);
  EXPECT_EQ(client.finish(), 0);
  EXPECT_EQ(server.finish(), 0);
}

}  // namespace
}  // namespace verbena::host
