// SPDX-License-Identifier: MIT
#include "memory/guarded_copy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_seed.h"
#include "base/unique_fd.h"
#include "memory/fault_guard.h"
#include "memory/guarded_word.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

struct Implementation {
  const char* name;
  bool (*copy)(std::byte*, const std::byte*, std::size_t);
  bool (*fetch_add)(std::byte*, std::uint64_t, std::uint64_t&);
  bool (*compare_swap)(std::byte*, std::uint64_t, std::uint64_t, std::uint64_t&);
};

class GuardedCopy : public testing::TestWithParam<Implementation> {
 protected:
  static void SetUpTestSuite() { install_fault_guard(); }
  bool copy(std::byte* to, const std::byte* from, std::size_t length) {
    return GetParam().copy(to, from, length);
  }
};

INSTANTIATE_TEST_SUITE_P(
    , GuardedCopy,
    testing::Values(Implementation{"native", guarded_copy, guarded_fetch_add, guarded_compare_swap},
                    Implementation{"portable", portable::guarded_copy, portable::guarded_fetch_add,
                                   portable::guarded_compare_swap},
                    Implementation{"without_a_call",
                                   [](std::byte* to, const std::byte* from, std::size_t length) {
                                     return guarded_copy_inline(to, from, length);
                                   },
                                   guarded_fetch_add, guarded_compare_swap}),
    [](const auto& parameter) { return parameter.param.name; });

std::vector<std::byte> noise(std::size_t length, SeededRandom& random) {
  std::vector<std::byte> bytes(length);
  for (std::byte& b : bytes)
    b = static_cast<std::byte>(random.next() >> 13);
  return bytes;
}

TEST_P(GuardedCopy, CopiesEveryLengthAtEveryOffsetAndNothingBeside) {
  SeededRandom random(test_seed());
  constexpr std::size_t kRoom = 700;
  for (std::size_t length = 0; length < 560; ++length) {
    const std::size_t to_offset = length % 64;
    const std::size_t from_offset = random.below(64);
    const std::vector<std::byte> from = noise(kRoom, random);
    alignas(64) std::byte to[kRoom];
    std::fill(std::begin(to), std::end(to), std::byte{0xee});
    ASSERT_TRUE(copy(to + to_offset, from.data() + from_offset, length));
    ASSERT_TRUE(std::equal(to + to_offset, to + to_offset + length, from.data() + from_offset));
    const auto is_untouched = [](std::byte b) { return b == std::byte{0xee}; };
    ASSERT_TRUE(std::all_of(to, to + to_offset, is_untouched)) << length;
    ASSERT_TRUE(std::all_of(to + to_offset + length, std::end(to), is_untouched)) << length;
  }
}

TEST_P(GuardedCopy, CopiesLongOnes) {
  SeededRandom random(test_seed());
  const TestPages from(80);
  const TestPages to(80);
  for (std::byte& b : from.bytes())
    b = static_cast<std::byte>(random.next() >> 13);
  for (const std::size_t near : {1024u, 2048u, 4096u, 24576u, 32768u, 65536u, 262144u}) {
    for (int round = 0; round < 20; ++round) {
      const std::size_t length = near - 20 + random.below(40);
      const std::size_t to_offset = random.below(kPage);
      // The target's place in its page is often a little behind the source's, which some
      // processors' string moves do not like.
      const std::size_t from_offset = random.one_in(3)
                                          ? to_offset - std::min(to_offset, random.below(70))
                                          : random.below(kPage);
      to.fill(0xee);
      ASSERT_TRUE(copy(to.begin() + to_offset, from.begin() + from_offset, length));
      ASSERT_TRUE(std::equal(to.begin() + to_offset, to.begin() + to_offset + length,
                             from.begin() + from_offset));
      ASSERT_EQ(to.begin()[to_offset + length], std::byte{0xee});
      ASSERT_TRUE(to_offset == 0 || to.begin()[to_offset - 1] == std::byte{0xee});
    }
  }
}

TEST_P(GuardedCopy, AnswersFalseWhereTheTargetEnds) {
  const TestPages to(2);
  const std::vector<std::byte> from(300'000, std::byte{7});
  for (std::size_t length = 1; length < 300; ++length) {
    for (const std::size_t over : {std::size_t{1}, length}) {
      ASSERT_FALSE(copy(to.end() - (length - over), from.data(), length)) << length;
    }
  }
  for (const std::size_t length : {1000u, 5000u, 40'000u, 300'000u}) {
    ASSERT_FALSE(copy(to.end() - 900, from.data(), length));
    // What came before the fault stays copied; libc's memcpy, of which the portable one is made,
    // has an order of its own.
    if (GetParam().copy == guarded_copy) {
      EXPECT_EQ(to.end()[-900], std::byte{7});
    }
  }
}

TEST_P(GuardedCopy, AnswersFalseWhereTheSourceEnds) {
  const TestPages from(2);
  std::vector<std::byte> to(300'000);
  for (std::size_t length = 1; length < 300; ++length) {
    for (const std::size_t over : {std::size_t{1}, length}) {
      ASSERT_FALSE(copy(to.data(), from.end() - (length - over), length)) << length;
    }
  }
  for (const std::size_t length : {1000u, 5000u, 40'000u, 300'000u}) {
    ASSERT_FALSE(copy(to.data(), from.end() - 900, length));
  }
  ASSERT_TRUE(copy(to.data(), from.end() - 900, 900)) << "still well afterwards";
}

TEST_P(GuardedCopy, AnswersFalseOnProtectedMemory) {
  const TestPages pages(2);
  pages.protect(0, 1, PROT_READ);
  pages.protect(1, 1, PROT_NONE);
  std::byte buffer[64] = {};
  EXPECT_FALSE(copy(pages.begin(), buffer, 64));
  EXPECT_TRUE(copy(buffer, pages.begin(), 64));
  EXPECT_FALSE(copy(buffer, pages.begin() + kPage, 64));
  EXPECT_FALSE(copy(buffer, pages.begin() + kPage - 8, 64));
}

TEST_P(GuardedCopy, AnswersFalseBehindTheEndOfAFile) {
  const UniqueFd file(memfd_create("truncated", MFD_CLOEXEC));
  ASSERT_TRUE(file);
  ASSERT_EQ(ftruncate(file.get(), 2 * kPage), 0);
  void* at = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  auto* memory = static_cast<std::byte*>(at);
  std::byte buffer[128] = {};
  EXPECT_TRUE(copy(memory + kPage, buffer, 128));
  ASSERT_EQ(ftruncate(file.get(), kPage), 0);
  EXPECT_FALSE(copy(memory + kPage, buffer, 128));
  EXPECT_FALSE(copy(buffer, memory + kPage, 128));
  EXPECT_FALSE(copy(memory + kPage - 4, buffer, 128));
  munmap(at, 2 * kPage);
}

TEST_P(GuardedCopy, AnswersFalseOnAddressesThatCannotBe) {
  std::byte buffer[64] = {};
  for (const std::uint64_t address :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x0000'8000'0000'0000},
        std::uint64_t{0x8000'0000'0000'0000}, ~std::uint64_t{0} - 63}) {
    auto* at = reinterpret_cast<std::byte*>(address);
    EXPECT_FALSE(copy(at, buffer, 64)) << std::hex << address;
    EXPECT_FALSE(copy(buffer, at, 64)) << std::hex << address;
    EXPECT_FALSE(copy(at, buffer, 8)) << std::hex << address;
  }
}

TEST_P(GuardedCopy, AtomicsAreAtomicAndGuarded) {
  const TestPages pages(1);
  auto* word = pages.begin() + 64;
  std::uint64_t before = 99;
  EXPECT_TRUE(GetParam().fetch_add(word, 5, before));
  EXPECT_EQ(before, 0u);
  EXPECT_TRUE(GetParam().fetch_add(word, ~std::uint64_t{0}, before));
  EXPECT_EQ(before, 5u);
  EXPECT_TRUE(GetParam().compare_swap(word, 3, 10, before));
  EXPECT_EQ(before, 4u) << "not equal: nothing is swapped";
  EXPECT_TRUE(GetParam().compare_swap(word, 4, 10, before));
  EXPECT_EQ(before, 4u);
  EXPECT_TRUE(GetParam().fetch_add(word, 0, before));
  EXPECT_EQ(before, 10u);
  EXPECT_FALSE(GetParam().fetch_add(pages.end(), 1, before));
  EXPECT_FALSE(GetParam().compare_swap(pages.end(), 1, 2, before));
  EXPECT_EQ(before, 10u) << "a fault gives no value";

  constexpr std::uint64_t kEach = 20'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (std::uint64_t n = 0; n < kEach; ++n) {
        std::uint64_t seen = 0;
        GetParam().fetch_add(word, 1, seen);
        for (std::uint64_t guess = seen;
             !GetParam().compare_swap(word, guess, guess + 1, seen) || seen != guess;) {
          guess = seen;
        }
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_TRUE(GetParam().fetch_add(word, 0, before));
  EXPECT_EQ(before, 10 + 3 * 2 * kEach);
}

TEST_P(GuardedCopy, FaultsOnManyThreadsAtOnceStayApart) {
  const TestPages pages(1);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::byte buffer[256] = {};
      for (int round = 0; round < 500; ++round) {
        const bool good = (round + i) % 3 != 0;
        if (copy(buffer, good ? pages.begin() : pages.end() - 100, 256) != good) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(GuardedCopy, AFaultLeavesTheSignalMaskAsItWas) {
  const TestPages pages(1);
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  std::byte byte{};
  for (int i = 0; i < 3; ++i)
    ASSERT_FALSE(copy(pages.end(), &byte, 1));
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGSEGV, SIGBUS, SIGUSR1}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  }
}

TEST_P(GuardedCopy, WorksInAThreadThatBlocksAllSignalsButFaults) {
  const TestPages pages(1);
  std::thread([&] {
    const sigset_t blocked = signals_but_faults();
    pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
    std::byte byte{};
    EXPECT_FALSE(copy(pages.end(), &byte, 1));
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    EXPECT_TRUE(sigismember(&now, SIGTERM));
    EXPECT_FALSE(sigismember(&now, SIGSEGV));
  }).join();
}

std::uint64_t read_word(const std::byte* at) {
  return std::atomic_ref<const std::uint64_t>(*reinterpret_cast<const std::uint64_t*>(at))
      .load(std::memory_order_acquire);
}

// Programs spin on the last byte of a message: when it has come, all of the message has.
void check_last_byte_is_last(const Implementation& under_test, std::size_t length,
                             std::size_t offset) {
  const auto rounds = static_cast<unsigned>(std::clamp<std::size_t>(400'000 / length, 10, 400));
  const TestPages target(40);
  std::byte* const to = target.begin() + offset;
  std::atomic<unsigned> seen{0};
  std::atomic<int> torn{0};
  std::thread writer([&] {
    std::vector<std::byte> message(length);
    for (unsigned round = 1; round <= rounds; ++round) {
      std::fill(message.begin(), message.end(), static_cast<std::byte>(round % 251 + 1));
      under_test.copy(to, message.data(), length);
      while (seen.load(std::memory_order_acquire) != round)
        std::this_thread::yield();
    }
  });
  for (unsigned round = 1; round <= rounds; ++round) {
    const auto wanted = static_cast<std::byte>(round % 251 + 1);
    const std::atomic_ref<std::byte> last(to[length - 1]);
    while (last.load(std::memory_order_acquire) != wanted)
      std::this_thread::yield();
    for (std::size_t i = length; i-- > 0;) {
      if (std::atomic_ref(to[i]).load(std::memory_order_relaxed) != wanted) ++torn;
    }
    seen.store(round, std::memory_order_release);
  }
  writer.join();
  EXPECT_EQ(torn, 0) << length << " bytes at offset " << offset;
}

TEST_P(GuardedCopy, TheLastByteComesLast) {
  for (const std::size_t length : {2u, 9u, 16u, 24u, 63u, 100u, 255u, 1000u, 4096u, 70'000u}) {
    for (const std::size_t offset : {0u, 56u, 61u}) {
      check_last_byte_is_last(GetParam(), length, offset);
    }
  }
}

TEST_P(GuardedCopy, AnAlignedWordIsNeverTorn) {
  const TestPages pages(1);
  std::byte* const word = pages.begin() + 128;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::uint64_t value = 0;
    while (!stop) {
      value = ~value;
      GetParam().copy(word, reinterpret_cast<const std::byte*>(&value), 8);
    }
  });
  int torn = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t value = read_word(word);
    if (value != 0 && ~value != 0) ++torn;
  }
  stop = true;
  writer.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace verbena::memory
