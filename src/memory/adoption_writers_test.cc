// SPDX-License-Identifier: MIT
// Nothing is lost of what others write while pages are on the move.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "memory/adoption.h"
#include "memory/test_adoption.h"

namespace verbena::memory {
namespace {

constexpr std::size_t kThreads = 3;

class AdoptionUnderUse : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_adoption(adoption); !why.empty()) {
      GTEST_SKIP() << "SKIP adoption under use: " << why;
    }
  }
  Adoption adoption{with(Means::kEverything)};
};

TEST_F(AdoptionUnderUse, NoIncrementIsLost) {
  constexpr std::size_t kPages = 700;  // more than one piece, and no multiple of it
  constexpr int kRounds = 60;
  const TestPages pages(kPages);
  pages.fill(0);
  std::atomic<bool> is_over = false;
  // Every thread has a word of its own in every page.
  std::vector<std::vector<std::uint64_t>> expected(kThreads, std::vector<std::uint64_t>(kPages));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      while (!is_over.load(std::memory_order_relaxed)) {
        const std::size_t page = random() % kPages;
        auto* const word =
            reinterpret_cast<volatile std::uint64_t*>(pages.begin() + page * kPage) + t;
        for (int i = 0; i < 50; ++i)
          *word = *word + 1;
        expected[t][page] += 50;
      }
    });
  }
  int adopted_rounds = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    ASSERT_TRUE(adopted) << to_string(adopted.error());
    ++adopted_rounds;
    std::this_thread::yield();
    adoption.release(adopted->id);
    ASSERT_FALSE(is_shared(pages.begin()));
  }
  is_over = true;
  for (std::thread& each : threads)
    each.join();
  EXPECT_EQ(adopted_rounds, kRounds);
  for (std::size_t t = 0; t < kThreads; ++t) {
    for (std::size_t page = 0; page < kPages; ++page) {
      const auto* word = reinterpret_cast<std::uint64_t*>(pages.begin() + page * kPage) + t;
      ASSERT_EQ(*word, expected[t][page]) << "thread " << t << " page " << page;
    }
  }
}

TEST_F(AdoptionUnderUse, NoFirstTouchIsLost) {
  constexpr std::size_t kPages = 4096;
  constexpr int kRounds = 30;
  std::size_t lost = 0;
  for (int round = 0; round < kRounds; ++round) {
    const TestPages pages(kPages);
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (;;) {
          const std::size_t i = next.fetch_add(1);
          if (i >= kPages) return;
          const std::size_t page = i * 1237 % kPages;
          // Read first, on some: the kernel's page of zeroes is there then.
          auto* const word =
              reinterpret_cast<volatile std::uint64_t*>(pages.begin() + page * kPage);
          if (page % 3 == 0 && *word != 0) *word = 0;
          *word = *word + page + 1;
        }
      });
    }
    while (next.load() < 300)
      std::this_thread::yield();
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    ASSERT_TRUE(adopted) << to_string(adopted.error());
    adoption.release(adopted->id);
    for (std::thread& each : threads)
      each.join();
    for (std::size_t page = 0; page < kPages; ++page)
      lost += *reinterpret_cast<std::uint64_t*>(pages.begin() + page * kPage) != page + 1;
  }
  EXPECT_EQ(lost, 0u);
}

// Shared with the process that writes.
struct Ledger {
  static constexpr std::size_t kPages = 200;
  std::atomic<bool> is_over;
  std::atomic<std::uint64_t> writes;
  std::uint64_t last[kPages];
};

[[noreturn]] void write_from_outside(Ledger& ledger, const TestPages& pages, pid_t target) {
  std::minstd_rand random(7);
  for (std::uint64_t value = 1; !ledger.is_over.load(); ++value) {
    const std::size_t page = random() % Ledger::kPages;
    iovec from{.iov_base = &value, .iov_len = sizeof value};
    iovec to{.iov_base = pages.begin() + page * kPage + 256, .iov_len = sizeof value};
    // A refusal is an answer; a write that is said to be done must be there.
    if (process_vm_writev(target, &from, 1, &to, 1, 0) != sizeof value) continue;
    ledger.last[page] = value;
    ledger.writes.fetch_add(1);
  }
  _exit(0);
}

TEST_F(AdoptionUnderUse, NoWriteOfAThirdProcessIsLost) {
  const TestPages pages(Ledger::kPages);
  pages.fill(0);
  void* const shared =
      mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Ledger& ledger = *static_cast<Ledger*>(shared);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) write_from_outside(ledger, pages, parent);
  while (ledger.writes.load() < 100)
    std::this_thread::yield();
  int adopted_rounds = 0;
  for (int round = 0; round < 200; ++round) {
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    if (!adopted) {
      // The writer holds a page at the moment.
      ASSERT_EQ(adopted.error(), AdoptRefusal::kPinned);
      continue;
    }
    ++adopted_rounds;
    const std::uint64_t before = ledger.writes.load();
    while (ledger.writes.load() < before + 10)
      std::this_thread::yield();
    adoption.release(adopted->id);
  }
  ledger.is_over = true;
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_GT(adopted_rounds, 10);
  for (std::size_t page = 0; page < Ledger::kPages; ++page) {
    std::uint64_t value = 0;
    std::memcpy(&value, pages.begin() + page * kPage + 256, sizeof value);
    ASSERT_EQ(value, ledger.last[page]) << page;
  }
  munmap(shared, sizeof(Ledger));
}

// Reads of another thread, which the kernel carries out without touching the page tables again.
TEST_F(AdoptionUnderUse, DirectReadsArriveWhereTheProgramLooks) {
  constexpr std::size_t kBlock = 64 * 1024;
  constexpr std::size_t kBlocks = 16;
  char name[] = "/var/tmp/verbena-direct-XXXXXX";
  const UniqueFd plain(mkstemp(name));
  ASSERT_TRUE(plain);
  const TestPages pages(kBlock * kBlocks / kPage);
  fill_pattern(pages.begin(), pages.size());
  ASSERT_EQ(write(plain.get(), pages.begin(), pages.size()), static_cast<long>(pages.size()));
  fsync(plain.get());
  const UniqueFd direct(open(name, O_RDONLY | O_DIRECT));
  unlink(name);
  if (!direct) GTEST_SKIP() << "SKIP direct I/O: this file system has none";
  std::atomic<bool> is_over = false;
  std::atomic<std::uint64_t> reads = 0;
  std::size_t wrong = 0;
  std::thread reader([&] {
    for (std::size_t i = 0; !is_over; i = (i + 1) % kBlocks) {
      std::byte* const to = pages.begin() + i * kBlock;
      std::memset(to, 0, kBlock);
      const long got = pread(direct.get(), to, kBlock, static_cast<off_t>(i * kBlock));
      if (got != static_cast<long>(kBlock)) continue;  // told, not silent
      for (std::size_t at = 0; at < kBlock; ++at)
        wrong += to[at] != pattern(i * kBlock + at);
      reads.fetch_add(1);
    }
  });
  int adopted_rounds = 0;
  int pinned_rounds = 0;
  for (int round = 0; round < 150; ++round) {
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    if (adopted) {
      ++adopted_rounds;
      adoption.release(adopted->id);  // or it is kept
    } else {
      ASSERT_EQ(adopted.error(), AdoptRefusal::kPinned);
      ++pinned_rounds;
    }
    const std::uint64_t before = reads.load();
    while (reads.load() < before + 2)
      std::this_thread::yield();
  }
  is_over = true;
  reader.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(adopted_rounds + pinned_rounds, 0);
  adoption.release(adoption.adopt(pages.begin(), pages.size(), true)->id);
  EXPECT_EQ(adoption.counters().kept, 0u) << "nobody reads any more";
  RecordProperty("adopted", adopted_rounds);
  RecordProperty("pinned", pinned_rounds);
}

// What a child shares with us counts as held by somebody until it is copied.
TEST_F(AdoptionUnderUse, PagesThatAChildStillHas) {
  const TestPages pages(300);
  fill_pattern(pages.begin(), pages.size());
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    if (read(go[0], &byte, 1) != 1) _exit(1);
    _exit(first_difference(pages.begin(), pages.size()) == pages.size() ? 0 : 2);
  }
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  EXPECT_TRUE(adopted);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  pages.fill(0);
  if (adopted) adoption.release(adopted->id);
  ASSERT_EQ(write(go[1], "", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(go[0]);
  close(go[1]);
}

// Forks of several threads, while others adopt, take back and write.
TEST_F(AdoptionUnderUse, ForksFromManyThreads) {
  constexpr std::size_t kPages = 64;
  const TestPages pages(kPages);
  fill_pattern(pages.begin(), pages.size());
  std::atomic<int> bad_children = 0;
  std::atomic<int> children = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const pid_t child = fork();
        if (child == 0) {
          const bool is_right = first_difference(pages.begin(), pages.size()) == pages.size();
          std::memset(pages.begin(), 0, pages.size());
          _exit(is_right ? 0 : 1);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++bad_children;
        ++children;
      }
    });
  }
  while (children < 3 * 20) {
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    // Pages that a child still shares count as held by somebody else.
    if (adopted) adoption.release(adopted->id);
  }
  for (std::thread& each : threads)
    each.join();
  EXPECT_EQ(bad_children, 0);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

}  // namespace
}  // namespace verbena::memory
