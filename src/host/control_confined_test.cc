// SPDX-License-Identifier: MIT
// Control threads where the system gives less: pid namespaces, filters of system calls, no
// descriptor table of their own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include "host/control.h"
#include "host/test_node.h"

namespace verbena::host {
namespace {

// In a pid namespace below ours, which cannot see us.
TEST(ControlConfined, LinksAcrossPidNamespaces) {
  Pipe pipe;
  const ControlOptions options = test_options();  // their names hold our pid
  const pid_t middle = fork();
  if (middle == 0) {
    pipe.use(1);
    const auto to = pipe.take<SlotNumber>();
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    const pid_t inner = fork();
    if (inner == 0) {
      {
        Node node(options);
        if (!node.reach(to)) _exit(2);
        EXPECT_EQ(node.peer(0).pid(), 0);
        EXPECT_FALSE(node.peer(0).memory_readable());
        EXPECT_TRUE(node.send(node.peer(0).id(), "from below"));
        EXPECT_TRUE(eventually([&] { return node.received("from above"); }));
      }
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    waitpid(inner, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  pipe.use(0);
  Node node;
  pipe.give(node.control->first_slot());
  int status = -1;
  bool ended = false;
  EXPECT_TRUE(eventually([&] {
    ended = ended || waitpid(middle, &status, WNOHANG) > 0;
    return ended || node.received("from below");
  }));
  if (ended && WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs a pid namespace";
  ASSERT_FALSE(ended);
  EXPECT_GT(node.peer(0).pid(), 0);
  EXPECT_TRUE(node.send(node.peer(0).id(), "from above"));
  waitpid(middle, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(hears_of_death(node));
}

// Refuses these system calls, as the filters of some containers do.
void deny(std::initializer_list<unsigned> calls) {
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  EXPECT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(ControlConfined, WorksUnderStrictFilters) {
  Child child(
      [](Node& node, Pipe& pipe) {
        EXPECT_TRUE(eventually([&] { return node.received("ping"); }));
        EXPECT_FALSE(node.peer(0).memory_readable());
        // The program's table: nothing else was allowed.
        EXPECT_EQ(node.on_thread([] { return count_descriptors(gettid()); }), count_descriptors());
        EXPECT_TRUE(node.send(node.peer(0).id(), "pong"));
        pipe.take<char>();
      },
      test_options(),
      [] {
        deny({SYS_close_range, SYS_unshare, SYS_process_vm_readv, SYS_pidfd_open, SYS_fallocate,
              SYS_setrlimit, SYS_prlimit64, SYS_sched_setscheduler});
      });
  ASSERT_LT(child.slot.value, kSlotCount);
  Node node;
  const auto id = node.reach(child.slot);
  ASSERT_TRUE(id);
  EXPECT_TRUE(node.send(*id, "ping"));
  EXPECT_TRUE(eventually([&] { return node.received("pong"); }));
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(hears_of_death(node));
}

ControlOptions shared_table() {
  ControlOptions options = test_options();
  options.own_table = false;
  return options;
}

// What follows is for systems that give us no descriptor table of our own.
TEST(ControlWithSharedTable, LinksAndSeesDeathAlthoughChildrenLive) {
  Child child(
      [](Node& node, Pipe& pipe) {
        EXPECT_TRUE(eventually([&] { return node.received("hello"); }));
        const pid_t grandchild = fork();
        if (grandchild == 0) {
          for (;;)
            pause();
        }
        pipe.give(grandchild);
        pipe.take<char>();
      },
      shared_table());
  Node node;
  const auto id = node.reach(child.slot);
  ASSERT_TRUE(id);
  EXPECT_TRUE(node.send(*id, "hello"));
  const auto grandchild = child.pipe.take<pid_t>();
  child.kill_now();
  EXPECT_TRUE(hears_of_death(node));
  kill(grandchild, SIGKILL);
}

TEST(ControlWithSharedTable, KeepsAwayFromLowNumbersAndFromExec) {
  Child child(
      [](Node&, Pipe& pipe) {
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        unsigned high = 0;
        for (int fd = 0; fd < 40'000; ++fd) {
          const int flags = fcntl(fd, F_GETFD);
          if (flags < 0 || fd <= 2 || fd == pipe.fd()) continue;
          if (static_cast<rlim_t>(fd) * 4 < std::min<rlim_t>(limit.rlim_cur, 65536)) continue;
          ++high;
          EXPECT_EQ(flags, FD_CLOEXEC);
        }
        EXPECT_GE(high, 4u);
      },
      shared_table());
  EXPECT_EQ(child.finish(), 0);
}

TEST(ControlWithSharedTable, LosesItsLinksWhenTheProgramClosesThem) {
  Child child(
      [](Node& node, Pipe& pipe) {
        EXPECT_TRUE(eventually([&] { return node.count_up() == 1; }));
        pipe.take<char>();
        // And gets the same numbers for something else, which we must leave alone.
        std::vector<int> files;
        for (int fd = 3; fd < 70'000; ++fd) {
          if (fd == pipe.fd() || close(fd) != 0) continue;
          EXPECT_EQ(dup2(pipe.fd(), fd), fd);
          files.push_back(fd);
        }
        EXPECT_GE(files.size(), 5u);
        EXPECT_TRUE(eventually([&] {
          node.control->submit([] {});
          return node.count_down() == 1;
        }));
        EXPECT_TRUE(node.control->stop());
        for (const int fd : files)
          EXPECT_GE(fcntl(fd, F_GETFD), 0) << fd;
        pipe.take<char>();
      },
      shared_table());
  Node node;
  ASSERT_TRUE(node.reach(child.slot));
  child.pipe.give('c');
  EXPECT_TRUE(hears_of_death(node));
  EXPECT_EQ(child.finish(), 0);
}

}  // namespace
}  // namespace verbena::host
