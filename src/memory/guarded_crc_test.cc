// SPDX-License-Identifier: MIT
#include "memory/guarded_crc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_folding.h"
#include "base/test_seed.h"
#include "memory/fault_guard.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

constexpr std::size_t kHead = 12;

class GuardedCrc : public EachFolding {
 protected:
  static void SetUpTestSuite() { install_fault_guard(); }

  GuardedCrc() : random(test_seed()) { fill(head); }
  void fill(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random.next() >> 13);
  }
  CrcBlock begin() const {
    return crc_begin(0x1234, std::span<const std::byte>(head).first<kHead>());
  }
  std::uint32_t expected(std::span<const std::byte> bytes) const {
    return crc32(crc32(0x1234, head), bytes);
  }

  SeededRandom random;
  std::vector<std::byte> head = std::vector<std::byte>(kHead);
};

INSTANTIATE_TEST_SUITE_P(Foldings, GuardedCrc, kFoldings, name_of_folding);

TEST_P(GuardedCrc, CopiesAndFoldsEveryLength) {
  std::vector<std::byte> from(4096 + 700);
  fill(from);
  constexpr std::byte kBeside{0xEE};
  for (std::size_t length = 0; length <= 4200; length += length < 800 ? 1 : 61) {
    const std::size_t from_offset = random.below(64);
    const std::size_t to_offset = random.below(64);
    std::vector<std::byte> to(length + 128, kBeside);
    CrcBlock crc = begin();
    ASSERT_TRUE(
        guarded_copy_and_crc(to.data() + to_offset, from.data() + from_offset, length, crc));
    const auto sent = std::span<const std::byte>(from).subspan(from_offset, length);
    ASSERT_TRUE(std::equal(sent.begin(), sent.end(), to.begin() + to_offset)) << length;
    ASSERT_EQ(crc_end(crc), expected(sent)) << length;
    const auto beside = std::ranges::count(to, kBeside);
    ASSERT_EQ(beside, 128 + std::ranges::count(sent, kBeside)) << length;
  }
}

TEST_P(GuardedCrc, GoesOnFromOnePieceOfMemoryToTheNext) {
  std::vector<std::byte> from(5000);
  fill(from);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::byte> to(from.size());
    CrcBlock crc = begin();
    for (std::size_t at = 0; at < from.size();) {
      const std::size_t most = random.one_in(2) ? 30 : 2000;
      const std::size_t part = std::min<std::size_t>(random.below(most), from.size() - at);
      ASSERT_TRUE(guarded_copy_and_crc(to.data() + at, from.data() + at, part, crc));
      at += part;
    }
    ASSERT_EQ(crc_end(crc), expected(from));
    ASSERT_EQ(to, from);
  }
}

TEST_P(GuardedCrc, MemoryThatIsNotThereIsAnAnswer) {
  const TestPages pages(2);
  std::vector<std::byte> to(3 * kPage);
  // The first step of 128 or 256 bytes, a later one, or what is left over.
  for (const std::size_t before : {0u, 1u, 127u, 128u, 255u, 256u, 700u, 4096u, 4350u}) {
    for (const std::size_t beyond : {1u, 8u, 128u, 255u, 256u, 1000u}) {
      CrcBlock crc = begin();
      EXPECT_FALSE(guarded_copy_and_crc(to.data(), pages.end() - before, before + beyond, crc))
          << before << " bytes, then " << beyond;
      CrcBlock all_there = begin();
      EXPECT_TRUE(guarded_copy_and_crc(to.data(), pages.end() - before, before, all_there));
    }
  }
}

// Each byte is read once: the CRC is that of the copy, whatever the program writes meanwhile.
TEST_P(GuardedCrc, CountsWhatItCopied) {
  const TestPages pages(1);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (std::uint64_t value = 1; !is_over; ++value)
      for (std::size_t at = 0; at < kPage; at += sizeof value)
        reinterpret_cast<std::atomic<std::uint64_t>*>(pages.begin() + at)
            ->store(value, std::memory_order_relaxed);
  });
  std::vector<std::byte> to(kPage);
  int different = 0;
  // Until it was seen that somebody writes, which a busy machine may put off.
  constexpr int kSeen = 100;
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (different < kSeen && std::chrono::steady_clock::now() < patience) {
    CrcBlock crc = begin();
    ASSERT_TRUE(guarded_copy_and_crc(to.data(), pages.begin(), kPage - 40, crc));
    ASSERT_EQ(crc_end(crc), expected(std::span<const std::byte>(to).first(kPage - 40)));
    different += std::memcmp(to.data(), to.data() + 2048, 8) != 0;
  }
  is_over = true;
  writer.join();
  EXPECT_GE(different, kSeen) << "nobody wrote in between: nothing was shown";
}

}  // namespace
}  // namespace verbena::memory
