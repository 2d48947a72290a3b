// SPDX-License-Identifier: MIT
// A forked child has memory of its own.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <utility>

#include "memory/adoption.h"
#include "memory/test_adoption.h"

namespace verbena::memory {
namespace {

// Handlers that are registered first run last before a fork, so this one comes before any test.
const std::function<void()>* before_fork = nullptr;
[[maybe_unused]] const int kHasHandler = pthread_atfork(
    [] {
      if (before_fork) (*std::exchange(before_fork, nullptr))();
    },
    nullptr, nullptr);

class AdoptionAndFork : public testing::TestWithParam<Means> {
 protected:
  Adoption adoption{with(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Means, AdoptionAndFork,
                         testing::Values(Means::kEverything, Means::kNoUserfault), name_of);

TEST_P(AdoptionAndFork, WritesReachNobodyElse) {
  const TestPages pages(30);
  fill_pattern(pages.begin(), pages.size());
  pages.begin()[12 * kPage] = std::byte{0};
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  const PeerView peer(adoption, *adopted);
  int to_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t child = fork();
  if (child == 0) {
    char go = 0;
    // The parent has written meanwhile.
    if (read(to_child[0], &go, 1) != 1) _exit(1);
    if (pages.begin()[0] != pattern(0)) _exit(2);
    pages.begin()[12 * kPage] = pattern(12 * kPage);
    if (first_difference(pages.begin(), pages.size()) != pages.size()) _exit(3);
    if (is_shared(pages.begin())) _exit(4);
    pages.fill(0);
    _exit(0);
  }
  pages.begin()[0] = std::byte{0};
  ASSERT_EQ(write(to_child[1], "", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  close(to_child[0]);
  close(to_child[1]);
  EXPECT_TRUE(is_shared(pages.begin()));
  pages.begin()[0] = pattern(0);
  pages.begin()[12 * kPage] = pattern(12 * kPage);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  EXPECT_EQ(first_difference(peer.bytes(), pages.size()), pages.size());
  adoption.release(adopted->id);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionAndFork, TheChildDiscardsAndFrees) {
  const TestPages pages(40);
  fill_pattern(pages.begin(), pages.size());
  ASSERT_TRUE(adoption.adopt(pages.begin() + 8 * kPage, 16 * kPage, true));
  ASSERT_TRUE(adoption.adopt(pages.begin() + 30 * kPage, 4 * kPage, false));
  EXPECT_EQ(in_child([&] {
              if (is_shared(pages.begin() + 8 * kPage)) return 1;
              if (first_difference(pages.begin(), pages.size()) != pages.size()) return 2;
              if (madvise(pages.begin(), pages.size(), MADV_DONTNEED) != 0) return 3;
              for (const std::byte each : pages.bytes()) {
                if (each != std::byte{0}) return 4;
              }
              if (munmap(pages.begin(), pages.size()) != 0) return 5;
              return 0;
            }),
            0);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionAndFork, TheChildIsRefusedAndItsChildrenAreFine) {
  const TestPages pages(4);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  EXPECT_EQ(in_child([&] {
              const auto refused = adoption.adopt(pages.begin(), pages.size(), true);
              if (refused || refused.error() != AdoptRefusal::kShutDown) return 1;
              if (adoption.overlaps(pages.begin(), pages.size())) return 2;
              adoption.release(adopted->id);
              pages.begin()[1] = std::byte{0};
              // An object of its own works.
              Adoption own{with(GetParam())};
              const auto again = own.adopt(pages.begin(), pages.size(), true);
              if (!again || !is_shared(pages.begin())) return 3;
              const int grandchild = in_child([&] {
                if (is_shared(pages.begin())) return 1;
                return pages.begin()[1] == std::byte{0} ? 0 : 2;
              });
              if (grandchild != 0) return 10 + grandchild;
              own.release(again->id);
              return is_shared(pages.begin()) ? 4 : 0;
            }),
            0);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionAndFork, WhereTheProgramHasMovedTheMemory) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  void* const at = mremap(pages.begin(), pages.size(), 16 * kPage, MREMAP_MAYMOVE);
  ASSERT_NE(at, MAP_FAILED);
  auto* const moved = static_cast<std::byte*>(at);
  EXPECT_EQ(in_child([&] {
              if (is_shared(moved)) return 1;
              if (first_difference(moved, pages.size()) != pages.size()) return 2;
              std::memset(moved, 0, 16 * kPage);
              return 0;
            }),
            0);
  EXPECT_EQ(first_difference(moved, pages.size()), pages.size());
  munmap(at, 16 * kPage);
}

TEST_P(AdoptionAndFork, RightsThatTheProgramHasChanged) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  pages.protect(0, 8, PROT_READ);
  const auto check = [&] {
    const auto mapping = mapping_at(pages.begin());
    if (!mapping || mapping->is_shared || mapping->rights != PROT_READ) return 1;
    return first_difference(pages.begin(), pages.size()) == pages.size() ? 0 : 2;
  };
  EXPECT_EQ(in_child(check), 0);
  pages.protect(2, 1, PROT_NONE);
  EXPECT_EQ(in_child([&] {
              const auto mapping = mapping_at(pages.begin());
              return mapping && !mapping->is_shared ? 0 : 1;
            }),
            0);
  pages.protect(0, 8, PROT_READ | PROT_WRITE);
  adoption.release(adopted->id);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionAndFork, WhatNobodyMightUseIsItsOwnToo) {
  for (const std::size_t closed : {std::size_t{1}, std::size_t{8}}) {
    const TestPages pages(8);
    fill_pattern(pages.begin(), pages.size());
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    ASSERT_TRUE(adopted);
    pages.protect(0, closed, PROT_NONE);
    EXPECT_EQ(in_child([&] {
                for (std::size_t page = 0; page < closed; ++page) {
                  const auto mapping = mapping_at(pages.begin() + page * kPage);
                  if (!mapping || mapping->is_shared || mapping->rights != PROT_NONE) return 1;
                }
                pages.protect(0, closed, PROT_READ | PROT_WRITE);
                if (first_difference(pages.begin(), pages.size()) != pages.size()) return 2;
                pages.fill(0);
                return 0;
              }),
              0)
        << closed;
    pages.protect(0, closed, PROT_READ | PROT_WRITE);
    EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size()) << closed;
    adoption.release(adopted->id);
  }
}

TEST_P(AdoptionAndFork, SomethingElseInTheOldPlaceIsLeftAlone) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  ASSERT_TRUE(adoption.adopt(pages.begin(), pages.size(), true));
  ASSERT_NE(mmap(pages.begin(), pages.size(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  pages.fill(0x5a);
  EXPECT_EQ(in_child([&] { return pages.begin()[9] == std::byte{0x5a} ? 0 : 1; }), 0);
}

TEST_P(AdoptionAndFork, WithoutADescriptorToSpare) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto check = [&] {
    pages.protect(2, 1, PROT_READ | PROT_WRITE);
    if (first_difference(pages.begin(), pages.size()) != pages.size()) return 1;
    pages.fill(0);
    return 0;
  };
  const int found = in_child(check);
  pages.protect(2, 1, PROT_NONE);
  const int found_closed = in_child(check);
  pages.protect(2, 1, PROT_READ | PROT_WRITE);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(found, 0);
  EXPECT_EQ(found_closed, 0);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionAndFork, AChildDoesNotHaveAllocatedMemory) {
  const auto memory = adoption.allocate(10 * kPage);
  ASSERT_TRUE(memory);
  fill_pattern(*memory, 10 * kPage);
  const auto in_it = adoption.adopt(*memory, 10 * kPage, true);
  ASSERT_TRUE(in_it);
  const auto has_it = [&] { return mapping_at(*memory) ? 1 : 0; };
  EXPECT_EQ(in_child(has_it), 0);
  EXPECT_EQ(first_difference(*memory, 10 * kPage), 10 * kPage);
  ASSERT_TRUE(adoption.undo_range(*memory, 1));
  EXPECT_EQ(in_child(has_it), 0) << "nor when it is private";
  EXPECT_EQ(first_difference(*memory, 10 * kPage), 10 * kPage);
  adoption.release(in_it->id);
}

// Made without the handlers of fork(3): the memory is not there, and the parent's is untouched.
TEST_P(AdoptionAndFork, AChildWithoutHandlersHasNothing) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  const auto check = [&] {
    const pid_t child = _Fork();
    if (child == 0) _exit(mapping_at(pages.begin()) ? 1 : 0);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  };
  EXPECT_EQ(check(), 0);
  EXPECT_EQ(in_child([&] {
              return first_difference(pages.begin(), pages.size()) == pages.size() ? 0 : 1;
            }),
            0);
  // Nor after a fork that had to show it to its own child.
  pages.protect(2, 1, PROT_READ);
  EXPECT_EQ(in_child([&] {
              return first_difference(pages.begin(), pages.size()) == pages.size() ? 0 : 1;
            }),
            0);
  EXPECT_EQ(check(), 0);
  pages.protect(2, 1, PROT_READ | PROT_WRITE);
  adoption.release(adopted->id);
  const pid_t child = _Fork();
  if (child == 0) _exit(first_difference(pages.begin(), pages.size()) == pages.size() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "private again, it is inherited as ever";
}

// Nor is there anything that it could give to a child of its own, whoever forked before.
TEST_P(AdoptionAndFork, AChildWithoutHandlersForksInItsTurn) {
  const TestPages pages(8);
  pages.fill(7);
  ASSERT_TRUE(adoption.adopt(pages.begin(), pages.size(), true));
  ASSERT_EQ(in_child([] { return 0; }), 0);
  const pid_t child = _Fork();
  if (child == 0) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(pages.begin(), pages.size(), PROT_READ | PROT_WRITE, kFlags, -1, 0) != pages.begin()) {
      _exit(1);
    }
    pages.fill(5);
    _exit(in_child([&] { return pages.begin()[0] == std::byte{5} ? 0 : 2; }));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  EXPECT_EQ(in_child([&] { return pages.begin()[0] == std::byte{7} ? 0 : 1; }), 0);
}

// A handler of the program that runs after ours, in the very thread that is waited for.
TEST_P(AdoptionAndFork, HandlersOfTheProgramRegisterAndDeregister) {
  EXPECT_EQ(in_child([&] {
              alarm(20);
              Adoption own{with(GetParam())};
              const TestPages old(8);
              const TestPages fresh(8);
              fill_pattern(old.begin(), old.size());
              fill_pattern(fresh.begin(), fresh.size());
              const auto adopted = own.adopt(old.begin(), old.size(), true);
              if (!adopted) return 1;
              int refused = 0;
              const std::function<void()> handler = [&] {
                own.release(adopted->id);
                for (int i = 0; i < 10; ++i)
                  refused += !own.adopt(fresh.begin(), fresh.size(), true);
              };
              before_fork = &handler;
              const auto check = [&] {
                if (is_shared(old.begin())) return 1;
                return first_difference(old.begin(), old.size()) == old.size() ? 0 : 2;
              };
              if (const int found = in_child(check); found != 0) return 10 + found;
              if (refused != 10 || own.counters().kept != 1) return 2;
              const auto later = own.adopt(fresh.begin(), fresh.size(), true);
              if (!later || own.counters().kept != 0) return 3;
              if (const int found = check(); found != 0) return 20 + found;
              own.release(later->id);
              return first_difference(fresh.begin(), fresh.size()) == fresh.size() ? 0 : 4;
            }),
            0);
}

// What the program asked of its mapping before it was adopted.
TEST_P(AdoptionAndFork, TheProgramsOwnFlagsHold) {
  const TestPages hidden(8);
  const TestPages wiped(8);
  const AdoptedId ids[] = {[&] {
                             fill_pattern(hidden.begin(), hidden.size());
                             EXPECT_EQ(madvise(hidden.begin(), hidden.size(), MADV_DONTFORK), 0);
                             return adoption.adopt(hidden.begin(), hidden.size(), true)->id;
                           }(),
                           [&] {
                             fill_pattern(wiped.begin(), wiped.size());
                             EXPECT_EQ(madvise(wiped.begin(), wiped.size(), MADV_WIPEONFORK), 0);
                             return adoption.adopt(wiped.begin(), wiped.size(), true)->id;
                           }()};
  const auto check = [&] {
    if (mapping_at(hidden.begin())) return 1;
    for (const std::byte each : wiped.bytes()) {
      if (each != std::byte{0}) return 2;
    }
    return 0;
  };
  EXPECT_EQ(in_child(check), 0) << "adopted";
  for (const AdoptedId id : ids)
    adoption.release(id);
  EXPECT_EQ(in_child(check), 0) << "private again";
  EXPECT_EQ(first_difference(hidden.begin(), hidden.size()), hidden.size());
  EXPECT_EQ(first_difference(wiped.begin(), wiped.size()), wiped.size());
}

TEST_P(AdoptionAndFork, AForkCostsNoMemoryAfterwards) {
  const TestPages pages(512);
  pages.fill(3);
  ASSERT_TRUE(adoption.adopt(pages.begin(), pages.size(), true));
  const auto resident = [] {
    long size = 0;
    long pages_there = 0;
    std::ifstream file("/proc/self/statm");
    EXPECT_TRUE(file >> size >> pages_there);
    return pages_there;
  };
  const long before = resident();
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(in_child([] { return 0; }), 0);
  EXPECT_LT(resident(), before + 400);
}

}  // namespace
}  // namespace verbena::memory
