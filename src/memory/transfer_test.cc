// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_seed.h"
#include "memory/region_table.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

std::optional<RegionRefusal> refusal(const Result<void, RegionRefusal>& result) {
  return result ? std::nullopt : std::optional(result.error());
}

class Transfer : public testing::Test {
 protected:
  MemoryKey add(const RegionConfig& config) {
    const auto key = table.add(config);
    EXPECT_TRUE(key.has_value());
    return key.value_or(MemoryKey{});
  }
  static std::vector<std::byte> numbered(std::size_t length) {
    std::vector<std::byte> bytes(length);
    for (std::size_t i = 0; i < length; ++i)
      bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    return bytes;
  }

  // 155 bytes, in `pages` and elsewhere.
  std::array<Sge, 3> list_over(const TestPages& second) {
    const MemoryKey first_key = add(region_of(pages));
    const MemoryKey second_key = add(region_of(second));
    return {{{.address = pages.address() + 10, .length = 5, .key = first_key},
             {.address = second.address() + 20, .length = 100, .key = second_key},
             {.address = pages.address() + 500, .length = 50, .key = first_key}}};
  }

  KernelRandom random;
  SectionList sections;
  RegionTable table{1000, random, sections};
  TestPages pages{4};
};

TEST_F(Transfer, WritesAndReadsARange) {
  const MemoryKey key = add(region_of(pages));
  const std::vector<std::byte> sent = numbered(5000);
  EXPECT_TRUE(write_range(table, kDomain, key, pages.address() + 33, sent));
  EXPECT_EQ(std::memcmp(pages.begin() + 33, sent.data(), sent.size()), 0);
  EXPECT_EQ(pages.begin()[32], std::byte{0});
  EXPECT_EQ(pages.begin()[33 + 5000], std::byte{0});
  std::vector<std::byte> got(5000);
  EXPECT_TRUE(read_range(table, kDomain, key, pages.address() + 33, got));
  EXPECT_EQ(got, sent);
}

TEST_F(Transfer, ARefusedWriteTouchesNothing) {
  const MemoryKey key = add(region_of(pages));
  pages.fill(9);
  const std::vector<std::byte> sent = numbered(pages.size());
  EXPECT_EQ(refusal(write_range(table, kDomain, key, pages.address() + 1, sent)),
            RegionRefusal::kOutOfRange);
  for (const std::byte b : pages.bytes())
    ASSERT_EQ(b, std::byte{9});
}

TEST_F(Transfer, RightsAreThoseOfTheVerb) {
  const std::vector<std::byte> bytes(8);
  std::vector<std::byte> room(8);
  const std::uint64_t at = pages.address();
  const auto allowed = [&](std::uint32_t access) {
    const MemoryKey key = add(region_of(pages, access));
    const Sge sge{.address = at, .length = 8, .key = key};
    std::string list;
    if (gather(table, kDomain, {&sge, 1}, 0, room)) list += "gather ";
    if (scatter(table, kDomain, {&sge, 1}, 0, bytes)) list += "scatter ";
    if (write_range(table, kDomain, key, at, bytes)) list += "write ";
    if (read_range(table, kDomain, key, at, room)) list += "read ";
    if (atomic_on_range(table, kDomain, key, at, {.add = true, .operand = 1})) list += "atomic ";
    return list;
  };
  EXPECT_EQ(allowed(0), "gather ");
  EXPECT_EQ(allowed(kLocalWrite), "gather scatter ");
  EXPECT_EQ(allowed(kLocalWrite | kRemoteWrite), "gather scatter write ");
  EXPECT_EQ(allowed(kRemoteRead), "gather read ");
  EXPECT_EQ(allowed(kLocalWrite | kRemoteAtomic), "gather scatter atomic ");
}

TEST_F(Transfer, NoLengthNeedsNoKey) {
  EXPECT_TRUE(write_range(table, kDomain, {1}, 0, {}));
  EXPECT_TRUE(read_range(table, kDomain, {1}, 0, {}));
  EXPECT_TRUE(gather(table, kDomain, {}, 0, {}));
  const Sge nothing{.address = 5, .length = 0, .key = {1}};
  EXPECT_TRUE(scatter(table, kDomain, {&nothing, 1}, 0, {}));
}

TEST_F(Transfer, AListIsOneRowOfBytes) {
  const TestPages second(1);
  const MemoryKey first_key = add(region_of(pages));
  const MemoryKey second_key = add(region_of(second));
  const Sge list[] = {{.address = pages.address() + 10, .length = 5, .key = first_key},
                      {.address = 77, .length = 0, .key = {1}},
                      {.address = second.address() + 20, .length = 100, .key = second_key},
                      {.address = pages.address() + 500, .length = 50, .key = first_key}};
  const std::vector<std::byte> sent = numbered(155);
  ASSERT_TRUE(scatter(table, kDomain, list, 0, sent));
  EXPECT_EQ(std::memcmp(pages.begin() + 10, sent.data(), 5), 0);
  EXPECT_EQ(std::memcmp(second.begin() + 20, sent.data() + 5, 100), 0);
  EXPECT_EQ(std::memcmp(pages.begin() + 500, sent.data() + 105, 50), 0);
  EXPECT_EQ(pages.begin()[15], std::byte{0});
  EXPECT_EQ(second.begin()[120], std::byte{0});
  for (std::size_t offset = 0; offset <= 155; ++offset) {
    for (const std::size_t length : {std::size_t{1}, std::size_t{60}, 155 - offset}) {
      std::vector<std::byte> got(length);
      const auto result = gather(table, kDomain, list, offset, got);
      if (offset + length > 155) {
        ASSERT_EQ(refusal(result), RegionRefusal::kOutOfRange);
        continue;
      }
      ASSERT_TRUE(result);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), sent.begin() + offset)) << offset;
    }
  }
}

TEST_F(Transfer, PiecesAreFilledOneAfterTheOther) {
  const TestPages second(1);
  const auto list = list_over(second);
  const std::vector<std::byte> sent = numbered(155);
  ASSERT_TRUE(scatter(table, kDomain, list, 0, sent));
  constexpr std::size_t kStride = 40;
  constexpr std::byte kBetween{0xEE};
  for (std::size_t bytes = 1; bytes <= 31; ++bytes) {
    for (std::size_t offset = 0; offset + bytes * 5 <= sent.size(); offset += 3) {
      std::vector<std::byte> room(5 * kStride, kBetween);
      const Pieces pieces{.first = room.data() + 2, .bytes = bytes, .stride = kStride, .count = 5};
      ASSERT_TRUE(gather_pieces(table, kDomain, list, offset, pieces));
      std::vector<std::byte> expected(room.size(), kBetween);
      for (std::size_t i = 0; i < bytes * 5; ++i)
        expected[2 + i / bytes * kStride + i % bytes] = sent[offset + i];
      ASSERT_EQ(room, expected) << bytes << " from " << offset;

      std::vector<std::byte> again(room.size(), kBetween);
      std::array<CrcBlock, 5> crcs;
      crcs.fill(crc_begin(0, std::span<const std::byte>(sent).first<12>()));
      Pieces with_crcs = pieces;
      with_crcs.first = again.data() + 2;
      with_crcs.crcs = crcs.data();
      ASSERT_TRUE(gather_pieces(table, kDomain, list, offset, with_crcs));
      ASSERT_EQ(again, expected);
      const std::uint32_t before = crc32(0, std::span(sent).first(12));
      for (std::size_t i = 0; i < crcs.size(); ++i)
        ASSERT_EQ(crc_end(crcs[i]),
                  crc32(before, std::span(sent).subspan(offset + i * bytes, bytes)));
    }
  }
  std::vector<std::byte> room(5 * kStride);
  const Pieces longer{.first = room.data(), .bytes = 32, .stride = kStride, .count = 5};
  EXPECT_FALSE(gather_pieces(table, kDomain, list, 0, longer)) << "more than there is";
}

TEST_F(Transfer, PiecesAreStoredOneAfterTheOther) {
  const TestPages second(1);
  const auto list = list_over(second);
  constexpr std::size_t kStride = 40;
  const std::vector<std::byte> room = numbered(5 * kStride);
  for (std::size_t bytes = 1; bytes <= 31; ++bytes) {
    std::vector<std::byte> expected;
    for (std::size_t i = 0; i < 5; ++i)
      expected.insert(expected.end(), &room[2 + i * kStride], &room[2 + i * kStride + bytes]);
    for (std::size_t offset = 0; offset + bytes * 5 <= 155; offset += 3) {
      for (const bool is_listed : {true, false}) {
        const ConstPieces pieces{
            .first = room.data() + 2, .bytes = bytes, .stride = kStride, .count = 5};
        pages.fill(0);
        second.fill(0);
        std::vector<std::byte> got(expected.size());
        if (is_listed) {
          ASSERT_TRUE(scatter_pieces(table, kDomain, list, offset, pieces));
          ASSERT_TRUE(gather(table, kDomain, list, offset, got));
        } else {
          const std::uint64_t address = pages.address() + offset;
          ASSERT_TRUE(write_pieces(table, kDomain, list[0].key, address, pieces));
          ASSERT_TRUE(read_range(table, kDomain, list[0].key, address, got));
        }
        ASSERT_EQ(got, expected) << bytes << " from " << offset;
        const auto written = [](const TestPages& some) {
          return std::count_if(some.begin(), some.end(),
                               [](std::byte b) { return b != std::byte{}; });
        };
        ASSERT_LE(written(pages) + written(second), static_cast<std::ptrdiff_t>(got.size()));
      }
    }
  }
  const ConstPieces longer{.first = room.data(), .bytes = 32, .stride = kStride, .count = 5};
  EXPECT_FALSE(scatter_pieces(table, kDomain, list, 0, longer)) << "more than there is room for";
  EXPECT_EQ(refusal(write_pieces(table, kDomain, {1}, pages.address(), longer)),
            RegionRefusal::kNoSuchKey);
}

TEST_F(Transfer, OnlySgesThatAreTouchedAreChecked) {
  const MemoryKey key = add(region_of(pages));
  const Sge list[] = {{.address = pages.address(), .length = 10, .key = key},
                      {.address = pages.address(), .length = 10, .key = {1}}};
  std::vector<std::byte> room(10);
  EXPECT_TRUE(gather(table, kDomain, list, 0, room));
  EXPECT_EQ(refusal(gather(table, kDomain, list, 1, room)), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(refusal(gather(table, {2}, list, 0, room)), RegionRefusal::kOtherDomain);
}

TEST_F(Transfer, MemoryThatTheProgramGaveBackIsAFault) {
  const TestPages gone(4);
  const MemoryKey key = add(region_of(gone));
  const Sge sge{.address = gone.address(), .length = 2 * kPage, .key = key};
  std::vector<std::byte> buffer(2 * kPage);
  gone.unmap(1, 1);
  EXPECT_EQ(refusal(write_range(table, kDomain, key, gone.address(), buffer)),
            RegionRefusal::kFault);
  EXPECT_EQ(refusal(read_range(table, kDomain, key, gone.address(), buffer)),
            RegionRefusal::kFault);
  EXPECT_EQ(refusal(gather(table, kDomain, {&sge, 1}, 0, buffer)), RegionRefusal::kFault);
  EXPECT_EQ(refusal(scatter(table, kDomain, {&sge, 1}, 0, buffer)), RegionRefusal::kFault);
  for (const bool add : {true, false}) {
    const auto before =
        atomic_on_range(table, kDomain, key, gone.address() + kPage, {.add = add, .operand = 1});
    ASSERT_FALSE(before);
    EXPECT_EQ(before.error(), RegionRefusal::kFault);
  }
  gone.protect(0, 1, PROT_READ);
  EXPECT_EQ(refusal(write_range(table, kDomain, key, gone.address(), {buffer.data(), 8})),
            RegionRefusal::kFault);
  EXPECT_TRUE(read_range(table, kDomain, key, gone.address(), {buffer.data(), 8}));
  EXPECT_TRUE(table.remove(key)) << "no lease stayed out";
}

TEST_F(Transfer, AtomicsReturnTheValueBefore) {
  const MemoryKey key = add(region_of(pages));
  const std::uint64_t at = pages.address() + 16;
  const auto run = [&](AtomicRequest request) {
    return atomic_on_range(table, kDomain, key, at, request).value_or(~std::uint64_t{0});
  };
  EXPECT_EQ(run({.add = true, .operand = 5}), 0u);
  EXPECT_EQ(run({.add = true, .operand = 0 - std::uint64_t{2}}), 5u);
  EXPECT_EQ(run({.operand = 4, .swap = 100}), 3u);
  EXPECT_EQ(run({.operand = 3, .swap = 100}), 3u);
  EXPECT_EQ(run({.add = true, .operand = 0}), 100u);
}

TEST_F(Transfer, MisalignedAtomicsAreRefusedBeforeTheKeyIsLookedAt) {
  const MemoryKey key = add(region_of(pages));
  for (std::uint64_t off = 1; off < 8; ++off) {
    for (const MemoryKey k : {key, MemoryKey{1}}) {
      const auto before =
          atomic_on_range(table, kDomain, k, pages.address() + off, {.add = true, .operand = 1});
      ASSERT_FALSE(before);
      EXPECT_EQ(before.error(), RegionRefusal::kMisaligned);
    }
  }
  // The address is aligned; the memory that a region of another base address or of pieces gives it
  // is not.
  RegionConfig shifted = region_of(pages);
  shifted.iova += 4;
  RegionConfig torn = region_of(pages);
  torn.extents = {{.address = pages.begin(), .length = 4},
                  {.address = pages.begin() + 64, .length = 64}};
  torn.iova = 4096;
  EXPECT_EQ(atomic_on_range(table, kDomain, add(shifted), pages.address() + 8, {}).error(),
            RegionRefusal::kMisaligned);
  EXPECT_EQ(atomic_on_range(table, kDomain, add(torn), 4096, {}).error(),
            RegionRefusal::kMisaligned);
  EXPECT_EQ(atomic_on_range(table, kDomain, key, pages.address() + pages.size(), {}).error(),
            RegionRefusal::kOutOfRange);
}

TEST_F(Transfer, AtomicsOfManyThreadsAddUp) {
  const MemoryKey key = add(region_of(pages));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 5'000; ++n) {
        ASSERT_TRUE(
            atomic_on_range(table, kDomain, key, pages.address(), {.add = true, .operand = 3}));
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(atomic_on_range(table, kDomain, key, pages.address(), {.add = true, .operand = 0}),
            4u * 5'000 * 3);
}

// Longer than the piece that one lease covers, over several pieces of memory, at odd places.
TEST_F(Transfer, LongRangesOverSeveralPieces) {
  SeededRandom chance(test_seed());
  const TestPages memory(600);
  for (int round = 0; round < 10; ++round) {
    RegionConfig config{.pd = kDomain, .iova = 1000, .access = kAllAccess, .extents = {}};
    std::size_t at = 0;
    std::uint64_t total = 0;
    while (at + 2 * kPage < memory.size() / 2) {
      const std::size_t length = chance.below(400'000) % (memory.size() / 2 - at) + 1;
      config.extents.push_back({.address = memory.begin() + at, .length = length});
      total += length;
      at += length + chance.below(5000) + 1;
    }
    const MemoryKey key = add(config);
    const std::uint64_t offset = chance.below(total / 2);
    const std::vector<std::byte> sent = numbered(total - offset - chance.below(total / 4));
    memory.fill(0);
    ASSERT_TRUE(write_range(table, kDomain, key, 1000 + offset, sent));
    std::vector<std::byte> got(sent.size());
    ASSERT_TRUE(read_range(table, kDomain, key, 1000 + offset, got));
    ASSERT_EQ(got, sent);
    std::uint64_t position = 0;
    for (const Extent& extent : config.extents) {
      for (std::size_t i = 0; i < extent.length; ++i, ++position) {
        const bool inside = position >= offset && position < offset + sent.size();
        ASSERT_EQ(extent.address[i], inside ? sent[position - offset] : std::byte{0});
      }
    }
    ASSERT_TRUE(table.remove(key));
  }
}

}  // namespace
}  // namespace verbena::memory
