// SPDX-License-Identifier: MIT
// Text of /proc that the kernel does not write, as well.
#include "memory/proc_text.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "memory/directory_names.h"
#include "memory/ring_buffers.h"

namespace verbena::memory {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

TEST(MapsLine, IsReadAsTheKernelWritesIt) {
  char name[64];
  const Mapping mapping =
      parse_mapping("7f00001000-7f00003000 rw-s 00002000 08:1f 77      /dev/x (deleted)", name);
  EXPECT_EQ(mapping.begin, 0x7f00001000u);
  EXPECT_EQ(mapping.end, 0x7f00003000u);
  EXPECT_EQ(mapping.offset, 0x2000u);
  EXPECT_EQ(mapping.inode, 77u);
  EXPECT_EQ(mapping.rights, PROT_READ | PROT_WRITE);
  EXPECT_TRUE(mapping.is_shared);
  EXPECT_STREQ(name, "/dev/x (deleted)");
}

TEST(MapsLine, ThatIsNoneHasNoName) {
  for (const std::string_view line : {"", "x", "7f00-7fff", "7f00-7fff rw-"}) {
    char name[64];
    std::memset(name, 'x', sizeof name);
    EXPECT_EQ(parse_mapping(line, name).end, 0u) << line;
    EXPECT_STREQ(name, "") << line;
  }
}

TEST(RingBuffers, OverlapAndCountInWholePages) {
  RingBuffers buffers(0x10000, 0x20000, kPageBytes);
  buffers.take(
      "UserFiles:\t1\n    0: 0x10000/4096\nUserBufs:\t1\n    0: 0x20001/4096\nPollList:\n");
  EXPECT_TRUE(buffers.has_list());
  EXPECT_FALSE(buffers.overlaps());
  EXPECT_EQ(buffers.pinned_bytes(), 2 * kPageBytes);
  buffers.begin();
  EXPECT_FALSE(buffers.has_list());
  buffers.take("UserBufs:\t1\n    0: 0x1ffff/1\n");
  EXPECT_TRUE(buffers.overlaps());
}

TEST(RingBuffers, BehindTheEndOfTheAddressSpaceAreNone) {
  EXPECT_FALSE(parse_buffer("0xfffffffffffffff0/4096", kPageBytes));
  EXPECT_FALSE(parse_buffer("0xffffffffffffff00/16", kPageBytes));
  EXPECT_FALSE(parse_buffer("0x1000", kPageBytes));
  ASSERT_TRUE(parse_buffer("0x1001/4096", kPageBytes));
  EXPECT_EQ(parse_buffer("0x1001/4096", kPageBytes)->end, 0x3000u);
}

std::string entry(std::string_view name, std::size_t length) {
  std::string made(19, '\0');
  made[16] = static_cast<char>(length);
  made += name;
  made.resize(length);
  return made;
}

TEST(Directory, NamesAreThoseThatLieInIt) {
  std::vector<std::string> seen;
  const auto see = [&](const std::string& entries) {
    seen.clear();
    return each_name({entries.data(), entries.size()}, [&](const char* name) {
      seen.emplace_back(name);
      return seen.size() < 2;
    });
  };
  EXPECT_EQ(see(entry("17", 24)), NamesEnd::kAll);
  EXPECT_EQ(seen, std::vector<std::string>{"17"});
  EXPECT_EQ(see(entry("1", 24) + entry("2", 24) + entry("3", 24)), NamesEnd::kEnough);
  // Lengths of nothing, behind the end, and a name without one.
  EXPECT_EQ(see(entry("1", 24) + std::string(24, '\0')), NamesEnd::kBroken);
  EXPECT_EQ(seen.size(), 1u);
  EXPECT_EQ(see(entry("1", 32).substr(0, 24)), NamesEnd::kBroken);
  EXPECT_EQ(see(entry("12345", 24)), NamesEnd::kBroken);
  EXPECT_EQ(see(entry("", 19)), NamesEnd::kBroken);
}

TEST(Figures, OfSysStandAlone) {
  EXPECT_EQ(parse_figure("65530\n"), 65530u);
  for (const std::string_view text : {"", "\n", "7", "7 8\n", "-1\n", "99999999999999999999\n"})
    EXPECT_FALSE(parse_figure(text)) << text;
}

}  // namespace
}  // namespace verbena::memory
