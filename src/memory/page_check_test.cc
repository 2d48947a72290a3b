// SPDX-License-Identifier: MIT
#include "memory/page_check.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "base/unique_fd.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

struct Way {
  const char* name;
  Presence (*ask)(const PageRange&);
  bool knows_rights_inside;
};

class PageCheck : public testing::TestWithParam<Way> {
 protected:
  // Whether this kernel and this process can ask this way at all.
  void SetUp() override {
    const TestPages pages(1);
    if (ask(pages, 0, 1, true) == Presence::kUnknown) {
      GTEST_SKIP() << "this kernel cannot be asked by " << GetParam().name;
    }
  }
  Presence ask(const TestPages& pages, std::size_t page, std::size_t count, bool is_written) {
    const std::uintptr_t begin = pages.address() + page * kPage;
    return GetParam().ask({.begin = begin, .end = begin + count * kPage, .is_written = is_written});
  }
};

INSTANTIATE_TEST_SUITE_P(, PageCheck,
                         testing::Values(Way{"populating", ask_by_populating, true},
                                         Way{"map_query", ask_map_query, true},
                                         Way{"map_text", ask_map_text, true},
                                         Way{"existence", ask_existence_only, false}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(PageCheck, FindsPlainMemory) {
  const TestPages pages(20);
  EXPECT_EQ(ask(pages, 0, 20, true), Presence::kThere);
  EXPECT_EQ(ask(pages, 0, 20, false), Presence::kThere);
  EXPECT_EQ(ask(pages, 7, 3, true), Presence::kThere);
}

TEST_P(PageCheck, FindsMemoryOfSeveralMappings) {
  const TestPages pages(20);
  for (std::size_t i = 0; i < 20; i += 2)
    pages.protect(i, 1, PROT_READ);
  EXPECT_EQ(ask(pages, 0, 20, false), Presence::kThere);
  for (std::size_t i = 0; i < 20; i += 2)
    pages.protect(i, 1, PROT_READ | PROT_WRITE | PROT_EXEC);
  EXPECT_EQ(ask(pages, 0, 20, true), Presence::kThere);
}

// "Unknown" lets the next way decide, so it is no wrong answer; "there" is.
TEST_P(PageCheck, MissesWhatIsNotThere) {
  const TestPages pages(20);
  EXPECT_NE(ask(pages, 0, 21, true), Presence::kThere) << "runs over the end";
  EXPECT_NE(ask(pages, 20, 1, false), Presence::kThere) << "behind the end";
  pages.unmap(5, 1);
  EXPECT_NE(ask(pages, 0, 20, false), Presence::kThere) << "a hole";
  EXPECT_NE(ask(pages, 5, 2, false), Presence::kThere) << "begins in a hole";
  EXPECT_EQ(ask(pages, 6, 2, true), Presence::kThere);
}

TEST_P(PageCheck, MissesRights) {
  const TestPages pages(20);
  pages.protect(0, 1, PROT_READ);
  EXPECT_NE(ask(pages, 0, 20, true), Presence::kThere) << "read-only";
  EXPECT_EQ(ask(pages, 0, 20, false), Presence::kThere);
  EXPECT_EQ(ask(pages, 1, 19, true), Presence::kThere);
  pages.protect(19, 1, PROT_NONE);
  EXPECT_NE(ask(pages, 1, 19, false), Presence::kThere) << "no rights at all";
  if (!GetParam().knows_rights_inside) return;
  pages.protect(10, 1, PROT_READ);
  EXPECT_NE(ask(pages, 5, 10, true), Presence::kThere) << "read-only inside";
}

// The whole answer, however it came about.
TEST(MemoryIsThere, SmallAndLargeHolesAndRights) {
  const TestPages pages(100);
  const std::byte* const at = pages.begin();
  for (const std::size_t length : {std::size_t{1}, kPage, 16 * kPage, 17 * kPage, pages.size()}) {
    EXPECT_TRUE(memory_is_there(at, length, true)) << length;
    EXPECT_FALSE(memory_is_there(pages.end() - length + 1, length, true)) << length;
    EXPECT_FALSE(memory_is_there(pages.end(), length, false)) << length;
  }
  pages.protect(99, 1, PROT_READ);
  EXPECT_FALSE(memory_is_there(at + 99 * kPage, 1, true));
  EXPECT_TRUE(memory_is_there(at + 99 * kPage, 1, false));
  EXPECT_FALSE(memory_is_there(at, pages.size(), true));
  EXPECT_TRUE(memory_is_there(at, pages.size(), false));
  EXPECT_TRUE(memory_is_there(at, pages.size() - kPage, true));
  EXPECT_FALSE(memory_is_there(at, pages.size() - kPage + 1, true)) << "one byte of the page";
}

TEST(MemoryIsThere, AddressesThatCannotBe) {
  for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{0x0000'8000'0000'0000},
                                      std::uint64_t{0x8000'0000'0000'0000}}) {
    for (const std::size_t length : {std::size_t{1}, std::size_t{1} << 20, std::size_t{1} << 45}) {
      EXPECT_FALSE(memory_is_there(reinterpret_cast<std::byte*>(address), length, false))
          << std::hex << address;
    }
  }
  auto* last = reinterpret_cast<std::byte*>(~std::uintptr_t{0});
  EXPECT_FALSE(memory_is_there(last, 1, false));
  EXPECT_FALSE(memory_is_there(reinterpret_cast<std::byte*>(16), ~std::size_t{0} - 16, false));
}

TEST(MemoryIsThere, AReserveIsLookedAtAndNotTouched) {
  constexpr std::size_t kHuge = std::size_t{64} << 30;
  const TestPages reserve(kHuge / kPage);
  const TestPages closed(kHuge / kPage, PROT_NONE);
  EXPECT_TRUE(memory_is_there(reserve.begin(), kHuge, true));
  EXPECT_FALSE(memory_is_there(closed.begin(), kHuge, true));
  EXPECT_FALSE(memory_is_there(closed.begin(), kHuge, false));
  EXPECT_FALSE(memory_is_there(closed.begin(), kPage, false));
  std::vector<unsigned char> resident(1024);
  ASSERT_EQ(mincore(reserve.begin(), resident.size() * kPage, resident.data()), 0);
  for (const unsigned char r : resident)
    ASSERT_EQ(r & 1, 0);
}

TEST(MemoryIsThere, SmallPiecesBehindTheEndOfAFileAreNotThere) {
  const UniqueFd file(memfd_create("short", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kPage), 0);
  void* at = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  EXPECT_TRUE(memory_is_there(static_cast<std::byte*>(at), kPage, true));
  EXPECT_FALSE(memory_is_there(static_cast<std::byte*>(at) + kPage, kPage, true));
  munmap(at, 2 * kPage);
}

TEST(MemoryIsThere, AlsoWithoutADescriptorToSpare) {
  const TestPages pages(100);
  pages.unmap(50, 1);
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool there = memory_is_there(pages.begin(), 50 * kPage, true);
  const bool hole = memory_is_there(pages.begin(), 60 * kPage, true);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(there);
  EXPECT_FALSE(hole);
}

}  // namespace
}  // namespace verbena::memory
