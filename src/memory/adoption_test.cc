// SPDX-License-Identifier: MIT
#include "memory/adoption.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <vector>

#include "memory/test_adoption.h"
#include "memory/test_filter.h"

namespace verbena::memory {
namespace {

class AdoptionByMeans : public testing::TestWithParam<Means> {
 protected:
  Adoption adoption{with(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Means, AdoptionByMeans,
                         testing::Values(Means::kEverything, Means::kProgramsOnly, Means::kNoMove,
                                         Means::kNoUserfault),
                         name_of);

TEST_P(AdoptionByMeans, APeerAndTheProgramSeeOneMemory) {
  const TestPages pages(40);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted) << to_string(adopted.error());
  EXPECT_EQ(adopted->begin, pages.begin());
  EXPECT_EQ(adopted->length, pages.size());
  EXPECT_EQ(adopted->generation, adoption.generation());
  EXPECT_TRUE(is_shared(pages.begin()));
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  const PeerView peer(adoption, *adopted);
  ASSERT_TRUE(peer);
  EXPECT_EQ(first_difference(peer.bytes(), pages.size()), pages.size());
  peer.bytes()[17] = std::byte{0};
  EXPECT_EQ(pages.begin()[17], std::byte{0});
  pages.begin()[5 * kPage] = std::byte{0};
  EXPECT_EQ(peer.bytes()[5 * kPage], std::byte{0});
}

TEST_P(AdoptionByMeans, TakingBackKeepsWhatAPeerWrote) {
  const TestPages pages(40);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  const PeerView peer(adoption, *adopted);
  ASSERT_TRUE(peer);
  peer.bytes()[100] = std::byte{0};
  adoption.release(adopted->id);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_EQ(pages.begin()[100], std::byte{0});
  pages.begin()[100] = pattern(100);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  // What a stopped peer writes late reaches nobody.
  peer.bytes()[200] = std::byte{0};
  EXPECT_EQ(pages.begin()[200], pattern(200));
  EXPECT_EQ(adoption.counters().ranges, 0u);
  EXPECT_EQ(adoption.counters().bytes, 0u);
}

TEST_P(AdoptionByMeans, GivesBackTheVeryMapping) {
  const TestPages pages(64);
  pages.fill(1);
  // Something that only the mapping knows.
  ASSERT_EQ(madvise(pages.begin(), pages.size(), MADV_DONTDUMP), 0);
  const auto before = mapping_at(pages.begin());
  const std::uint32_t count = mappings_of_process();
  for (int i = 0; i < 20; ++i) {
    const auto adopted = adoption.adopt(pages.begin() + 16 * kPage, 32 * kPage, true);
    ASSERT_TRUE(adopted);
    adoption.release(adopted->id);
  }
  const auto after = mapping_at(pages.begin());
  ASSERT_TRUE(before && after);
  EXPECT_EQ(after->begin, before->begin);
  EXPECT_EQ(after->end, before->end) << "it is in pieces";
  EXPECT_EQ(mappings_of_process(), count);
  // A mapping in pieces cannot be moved as one.
  void* const moved = mremap(pages.begin(), pages.size(), 2 * pages.size(), MREMAP_MAYMOVE);
  ASSERT_NE(moved, MAP_FAILED);
  munmap(moved, 2 * pages.size());
}

// A mapping that never had a page takes its identity from where it lies.
TEST_P(AdoptionByMeans, GivesBackTheVeryMappingOfUntouchedPages) {
  const TestPages pages(64);
  const auto adopted = adoption.adopt(pages.begin() + 16 * kPage, 32 * kPage, true);
  ASSERT_TRUE(adopted);
  pages.begin()[20 * kPage] = std::byte{1};
  adoption.release(adopted->id);
  pages.fill(2);
  const auto after = mapping_at(pages.begin());
  ASSERT_TRUE(after);
  EXPECT_GE(after->end, pages.address() + pages.size()) << "it is in pieces";
}

TEST_P(AdoptionByMeans, DiscardedMemoryIsZeroAgainAfterwards) {
  const TestPages pages(16);
  pages.fill(7);
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  adoption.release(adopted->id);
  ASSERT_EQ(madvise(pages.begin(), pages.size(), MADV_DONTNEED), 0);
  for (const std::byte each : pages.bytes())
    ASSERT_EQ(each, std::byte{0});
  EXPECT_EQ(madvise(pages.begin(), pages.size(), MADV_FREE), 0);
}

TEST_P(AdoptionByMeans, UntouchedPagesStayUntouched) {
  constexpr std::size_t kMany = 4096;
  const TestPages pages(kMany);
  for (const std::size_t page : {0, 1, 5, 511, 512, 1000, 4095})
    pages.begin()[page * kPage] = std::byte{9};
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  std::vector<unsigned char> resident(kMany);
  const auto count = [&] {
    EXPECT_EQ(mincore(pages.begin(), pages.size(), resident.data()), 0);
    std::size_t pages_there = 0;
    for (const unsigned char each : resident)
      pages_there += each & 1;
    return pages_there;
  };
  EXPECT_EQ(count(), 7u);
  EXPECT_EQ(pages.begin()[1000 * kPage], std::byte{9});
  EXPECT_EQ(pages.begin()[1001 * kPage], std::byte{0});
  pages.begin()[2000 * kPage] = std::byte{3};
  adoption.release(adopted->id);
  EXPECT_EQ(count(), 9u);
  EXPECT_EQ(pages.begin()[2000 * kPage], std::byte{3});
  EXPECT_EQ(pages.begin()[4095 * kPage], std::byte{9});
}

TEST_P(AdoptionByMeans, HugePagesMoveToo) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const TestPages pages(4 * kHuge / kPage);
  madvise(pages.begin(), pages.size(), MADV_HUGEPAGE);
  fill_pattern(pages.begin(), pages.size());
  for (int i = 0; i < 3; ++i) {
    const auto adopted = adoption.adopt(pages.begin() + 100, 3 * kHuge, true);
    ASSERT_TRUE(adopted) << to_string(adopted.error());
    EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
    adoption.release(adopted->id);
    EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  }
}

TEST_P(AdoptionByMeans, OnlyWholePagesInsideTheRegion) {
  const TestPages pages(8);
  pages.fill(1);
  const auto adopted = adoption.adopt(pages.begin() + 1, 5 * kPage, true);
  ASSERT_TRUE(adopted);
  EXPECT_EQ(adopted->begin, pages.begin() + kPage);
  EXPECT_EQ(adopted->length, 4 * kPage);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_FALSE(is_shared(pages.begin() + 5 * kPage));
  EXPECT_TRUE(adoption.overlaps(pages.begin(), kPage + 1));
  EXPECT_FALSE(adoption.overlaps(pages.begin(), kPage));
  EXPECT_FALSE(adoption.overlaps(pages.begin() + 5 * kPage, kPage));
  EXPECT_FALSE(adoption.overlaps(pages.begin() + 2 * kPage, 0));
  for (const std::size_t length : {std::size_t{0}, kPage - 1, 2 * kPage - 2}) {
    const auto small = adoption.adopt(pages.begin() + 6 * kPage + 1, length, true);
    ASSERT_FALSE(small);
    EXPECT_EQ(small.error(), AdoptRefusal::kNoWholePage);
  }
  const auto wrapping = adoption.adopt(pages.begin(), ~std::size_t{0}, true);
  ASSERT_FALSE(wrapping);
  EXPECT_EQ(wrapping.error(), AdoptRefusal::kNoWholePage);
}

TEST_P(AdoptionByMeans, ASecondRegistrationSharesTheFirst) {
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  const auto whole = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(whole);
  const auto part = adoption.adopt(pages.begin() + 3 * kPage, 2 * kPage, true);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->id, whole->id);
  EXPECT_EQ(part->begin, pages.begin() + 3 * kPage);
  EXPECT_EQ(part->offset, whole->offset + 3 * kPage);
  EXPECT_EQ(adoption.counters().ranges, 1u);
  adoption.release(whole->id);
  EXPECT_TRUE(is_shared(pages.begin()));
  const PeerView peer(adoption, *part);
  EXPECT_EQ(peer.bytes()[0], pattern(3 * kPage));
  adoption.release(part->id);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionByMeans, NothingIsAdoptedTwice) {
  const TestPages pages(16);
  pages.fill(1);
  const auto first = adoption.adopt(pages.begin() + 4 * kPage, 4 * kPage, true);
  ASSERT_TRUE(first);
  struct {
    std::size_t page, count;
    AdoptRefusal why;
  } const cases[] = {{0, 16, AdoptRefusal::kOverlap},
                     {0, 5, AdoptRefusal::kOverlap},
                     {7, 4, AdoptRefusal::kOverlap}};
  for (const auto& each : cases) {
    const auto refused =
        adoption.adopt(pages.begin() + each.page * kPage, each.count * kPage, true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), each.why);
  }
  const auto readers = adoption.adopt(pages.begin() + 4 * kPage, 4 * kPage, false);
  ASSERT_FALSE(readers);
  EXPECT_EQ(readers.error(), AdoptRefusal::kOtherRights);
  EXPECT_TRUE(adoption.adopt(pages.begin() + 8 * kPage, 8 * kPage, false)) << "the neighbour";
}

TEST_P(AdoptionByMeans, PeersWithoutTheRightToWriteCannotMapForWriting) {
  const TestPages pages(4);
  pages.fill(5);
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), false);
  ASSERT_TRUE(adopted);
  EXPECT_EQ(adopted->kind, ArenaKind::kPeersRead);
  const PeerView writer(adoption, *adopted);
  EXPECT_FALSE(writer);
  const PeerView reader(adoption, *adopted, PROT_READ);
  ASSERT_TRUE(reader);
  EXPECT_NE(mprotect(reader.bytes(), kPage, PROT_READ | PROT_WRITE), 0);
  pages.begin()[0] = std::byte{6};
  EXPECT_EQ(reader.bytes()[0], std::byte{6});
}

TEST_P(AdoptionByMeans, AThousandRanges) {
  constexpr std::size_t kRanges = 1000;
  const TestPages pages(3 * kRanges);
  fill_pattern(pages.begin(), pages.size());
  const std::uint32_t before = mappings_of_process();
  std::vector<AdoptedId> ids;
  for (std::size_t i = 0; i < kRanges; ++i) {
    const auto adopted = adoption.adopt(pages.begin() + 3 * i * kPage + 8, 3 * kPage - 8, true);
    ASSERT_TRUE(adopted) << i << ": " << to_string(adopted.error());
    ids.push_back(adopted->id);
  }
  EXPECT_EQ(adoption.counters().ranges, kRanges);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  for (std::size_t i = 0; i < kRanges; ++i)
    adoption.release(ids[i * 377 % kRanges]);
  EXPECT_EQ(adoption.counters().ranges, 0u);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  // The allocator of a sanitizer maps some as well.
  EXPECT_LT(mappings_of_process(), before + 20) << "mappings are a limited good";
}

// What moves pages does not need them: it would wait for itself, or read what is not there.
TEST_P(AdoptionByMeans, TheWholeHeap) {
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "SKIP the whole heap: the sanitizers' is not one mapping";
#endif
  EXPECT_EQ(in_child([&] {
              alarm(20);
              AdoptionOptions options = with(GetParam());
              options.limits.region_bytes_max = options.limits.total_bytes_max;
              Adoption own(options);
              std::vector<std::byte> bytes(20 * kPage);
              fill_pattern(bytes.data(), bytes.size());
              const auto heap = mapping_at(static_cast<std::byte*>(sbrk(0)) - 1);
              if (!heap) return 1;
              std::byte* const begin = pointer(heap->begin);
              const auto adopted = own.adopt(begin, heap->end - heap->begin, true);
              if (!adopted || !is_shared(begin) || !is_shared(bytes.data())) return 2;
              if (first_difference(bytes.data(), bytes.size()) != bytes.size()) return 3;
              own.release(adopted->id);
              if (is_shared(begin)) return 4;
              return first_difference(bytes.data(), bytes.size()) == bytes.size() ? 0 : 5;
            }),
            0);
}

TEST_P(AdoptionByMeans, TheEndGivesAllBack) {
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  adoption.close();
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  adoption.release(adopted->id);
  const auto late = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error(), AdoptRefusal::kShutDown);
}

TEST(AdoptionWithFilters, NoMemoryForItself) {
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  constexpr unsigned kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const int found = in_child([&] {
    if (!deny({.call = SYS_mmap, .error = ENOMEM, .argument = 3, .mask = ~0u, .value = kFlags}))
      return 77;
    Adoption adoption(with(Means::kEverything));
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    if (adopted || adopted.error() != AdoptRefusal::kAddressSpace) return 1;
    if (adoption.allocate(kPage) || !adoption.undo_range(pages.begin(), pages.size())) return 2;
    adoption.close();
    return first_difference(pages.begin(), pages.size()) == pages.size() ? 0 : 3;
  });
  if (found == 77) GTEST_SKIP() << "SKIP filters: not allowed here";
  EXPECT_EQ(found, 0);
}

}  // namespace
}  // namespace verbena::memory
