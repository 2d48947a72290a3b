// SPDX-License-Identifier: MIT
// What a program does with adopted memory, and how it comes back after that.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "memory/adoption.h"
#include "memory/test_adoption.h"

namespace verbena::memory {
namespace {

// Who is told of moves, and says what was shared memory before and after.
class Heard : public AdoptionEvents {
 public:
  bool moving(const std::byte* begin, std::size_t length, bool) override {
    EXPECT_FALSE(is_moving);
    if (!lets_move) return false;
    is_moving = true;
    was_shared = adoption->overlaps(begin, length);
    if (was_shared) left.push_back(begin);
    return true;
  }
  void moved(const std::byte* begin, std::size_t length) override {
    EXPECT_TRUE(std::exchange(is_moving, false));
    if (was_shared && adoption->overlaps(begin, length)) stayed.push_back(begin);
  }
  const Adoption* adoption = nullptr;
  bool lets_move = true;
  bool is_moving = false;
  bool was_shared = false;
  std::vector<const std::byte*> left;
  std::vector<const std::byte*> stayed;
};

class AdoptionLife : public testing::TestWithParam<Means> {
 protected:
  AdoptionOptions options() {
    AdoptionOptions options = with(GetParam());
    options.events = &heard;
    return options;
  }
  void SetUp() override { heard.adoption = &adoption; }
  Heard heard;
  Adoption adoption{options()};
};
INSTANTIATE_TEST_SUITE_P(Means, AdoptionLife,
                         testing::Values(Means::kEverything, Means::kNoUserfault), name_of);

bool is_all(const std::byte* begin, std::size_t length, std::uint8_t value) {
  for (std::size_t i = 0; i < length; ++i) {
    if (begin[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

TEST_P(AdoptionLife, UnmappedAndUsedForSomethingElse) {
  const TestPages pages(16);
  pages.fill(1);
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  pages.unmap(4, 4);
  ASSERT_EQ(mmap(pages.begin() + 5 * kPage, 2 * kPage, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            pages.begin() + 5 * kPage);
  std::memset(pages.begin() + 5 * kPage, 9, 2 * kPage);
  pages.begin()[12 * kPage] = std::byte{2};
  adoption.release(adopted->id);
  EXPECT_TRUE(is_all(pages.begin(), 4 * kPage, 1));
  EXPECT_FALSE(mapping_at(pages.begin() + 4 * kPage));
  EXPECT_TRUE(is_all(pages.begin() + 5 * kPage, 2 * kPage, 9));
  EXPECT_FALSE(mapping_at(pages.begin() + 7 * kPage));
  EXPECT_TRUE(is_all(pages.begin() + 8 * kPage, 4 * kPage, 1));
  EXPECT_EQ(pages.begin()[12 * kPage], std::byte{2});
  for (std::size_t page : {0, 3, 8, 15})
    EXPECT_FALSE(is_shared(pages.begin() + page * kPage)) << page;
  EXPECT_EQ(adoption.counters().ranges, 0u);
}

TEST_P(AdoptionLife, UnmappedAltogether) {
  const std::uint32_t before = mappings_of_process();
  {
    const TestPages pages(16);
    pages.fill(1);
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    ASSERT_TRUE(adopted);
    pages.unmap(0, 16);
    adoption.release(adopted->id);
    EXPECT_FALSE(mapping_at(pages.begin()));
  }
  EXPECT_EQ(mappings_of_process(), before);
  EXPECT_EQ(adoption.counters().kept, 0u);
}

// The old registration is forgotten, or ends late, as pinned pages would let it.
TEST_P(AdoptionLife, OtherMemoryInTheSamePlaceIsAdoptedForItself) {
  const TestPages pages(16);
  pages.fill(1);
  const auto old = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(old);
  ASSERT_EQ(mmap(pages.begin() + 4 * kPage, 8 * kPage, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            pages.begin() + 4 * kPage);
  std::memset(pages.begin() + 4 * kPage, 2, 8 * kPage);
  const auto outside = adoption.adopt(pages.begin() + kPage, 2 * kPage, true);
  ASSERT_TRUE(outside);
  EXPECT_EQ(outside->id, old->id);
  EXPECT_TRUE(heard.left.empty());
  const auto anew = adoption.adopt(pages.begin() + 5 * kPage, 2 * kPage, true);
  ASSERT_TRUE(anew);
  EXPECT_NE(anew->id, old->id);
  EXPECT_EQ(heard.left, std::vector<const std::byte*>{old->begin});
  const PeerView peer(adoption, *anew);
  EXPECT_TRUE(is_all(peer.bytes(), 2 * kPage, 2));
  adoption.release(old->id);
  adoption.release(outside->id);
  EXPECT_TRUE(is_all(pages.begin(), 4 * kPage, 1));
  EXPECT_TRUE(is_all(pages.begin() + 4 * kPage, 8 * kPage, 2));
  EXPECT_TRUE(is_all(pages.begin() + 12 * kPage, 4 * kPage, 1));
  EXPECT_TRUE(is_shared(pages.begin() + 5 * kPage));
  EXPECT_FALSE(is_shared(pages.begin() + kPage));
}

TEST_P(AdoptionLife, GrownReadsZeroAndNeverItsNeighbour) {
  const TestPages one(4);
  const TestPages other(4);
  one.fill(1);
  other.fill(2);
  const auto first = adoption.adopt(one.begin(), one.size(), true);
  const auto second = adoption.adopt(other.begin(), other.size(), true);
  ASSERT_TRUE(first && second);
  void* const at = mremap(one.begin(), one.size(), 400 * kPage, MREMAP_MAYMOVE);
  ASSERT_NE(at, MAP_FAILED);
  auto* const moved = static_cast<std::byte*>(at);
  EXPECT_TRUE(is_all(moved, 4 * kPage, 1));
  EXPECT_TRUE(is_all(moved + 4 * kPage, 396 * kPage, 0));
  moved[399 * kPage] = std::byte{7};
  adoption.release(first->id);
  EXPECT_FALSE(is_shared(moved));
  EXPECT_TRUE(is_all(moved, 4 * kPage, 1));
  EXPECT_TRUE(is_all(moved + 4 * kPage, 395 * kPage, 0));
  EXPECT_EQ(moved[399 * kPage], std::byte{7});
  munmap(at, 400 * kPage);
  EXPECT_TRUE(is_all(other.begin(), other.size(), 2));
  EXPECT_EQ(adoption.counters().ranges, 1u);
}

TEST_P(AdoptionLife, ShrunkAndMovedInParts) {
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  const TestPages other(4);
  ASSERT_EQ(mremap(pages.begin() + 12 * kPage, 4 * kPage, 4 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED,
                   other.begin()),
            other.begin());
  ASSERT_EQ(mremap(pages.begin(), 12 * kPage, 10 * kPage, 0), pages.begin());
  adoption.release(adopted->id);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_FALSE(is_shared(other.begin()));
  EXPECT_EQ(first_difference(pages.begin(), 10 * kPage), 10 * kPage);
  for (std::size_t i = 0; i < 4 * kPage; ++i)
    ASSERT_EQ(other.begin()[i], pattern(12 * kPage + i));
}

TEST_P(AdoptionLife, RightsStayAsTheProgramSetThem) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  pages.protect(2, 1, PROT_READ);
  pages.protect(4, 2, PROT_NONE);
  adoption.release(adopted->id);
  const int expected[] = {3, 3, 1, 3, 0, 0, 3, 3};
  for (std::size_t page = 0; page < 8; ++page) {
    const auto mapping = mapping_at(pages.begin() + page * kPage);
    ASSERT_TRUE(mapping);
    EXPECT_EQ(mapping->rights, expected[page]) << page;
    EXPECT_FALSE(mapping->is_shared);
  }
  pages.protect(0, 8, PROT_READ | PROT_WRITE);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionLife, MadePrivateBeforeTheProgramChangesIt) {
  const TestPages pages(32);
  fill_pattern(pages.begin(), pages.size());
  const auto one = adoption.adopt(pages.begin() + 4 * kPage, 8 * kPage, true);
  const auto two = adoption.adopt(pages.begin() + 20 * kPage, 8 * kPage, true);
  ASSERT_TRUE(one && two);
  EXPECT_TRUE(adoption.overlaps(pages.begin() + 11 * kPage, kPage));
  EXPECT_TRUE(adoption.undo_range(pages.begin() + 11 * kPage, kPage));
  EXPECT_EQ(heard.left, std::vector<const std::byte*>{one->begin});
  EXPECT_TRUE(heard.stayed.empty()) << "told before it had moved";
  EXPECT_FALSE(adoption.overlaps(pages.begin() + 11 * kPage, kPage));
  EXPECT_FALSE(is_shared(pages.begin() + 4 * kPage));
  EXPECT_TRUE(is_shared(pages.begin() + 20 * kPage));
  ASSERT_EQ(madvise(pages.begin() + 11 * kPage, kPage, MADV_DONTNEED), 0);
  EXPECT_TRUE(is_all(pages.begin() + 11 * kPage, kPage, 0));
  // The registration is still there, and ends as always; a new one may adopt the pages again.
  const auto again = adoption.adopt(pages.begin() + 4 * kPage, 8 * kPage, true);
  ASSERT_TRUE(again);
  EXPECT_NE(again->id, one->id);
  adoption.release(one->id);
  EXPECT_TRUE(is_shared(pages.begin() + 4 * kPage));
  adoption.release(again->id);
  EXPECT_FALSE(is_shared(pages.begin() + 4 * kPage));
  EXPECT_TRUE(adoption.undo_range(nullptr, ~std::size_t{0}));
  EXPECT_EQ(adoption.counters().ranges, 0u);
  adoption.release(two->id);
}

// Our own threads may be kept out of the range by nobody at the moment.
TEST_P(AdoptionLife, StaysWhereItIsWhenItMayNotMove) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  heard.lets_move = false;
  const auto refused = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), AdoptRefusal::kOtherThreads);
  heard.lets_move = true;
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  heard.lets_move = false;
  EXPECT_EQ(adoption.expel(), pages.size());
  EXPECT_EQ(adoption.counters().kept, 1u);
  heard.lets_move = true;
  adoption.release(adopted->id);
  EXPECT_EQ(adoption.counters().ranges, 0u);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_P(AdoptionLife, ExpelledPeersKeepOrphans) {
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  const auto one = adoption.adopt(pages.begin(), 8 * kPage, true);
  const auto two = adoption.adopt(pages.begin() + 8 * kPage, 8 * kPage, false);
  const auto memory = adoption.allocate(4 * kPage);
  ASSERT_TRUE(one && two && memory);
  fill_pattern(*memory, 4 * kPage);
  const auto in_memory = adoption.adopt(*memory, 4 * kPage, true);
  ASSERT_TRUE(in_memory);
  const PeerView hostile(adoption, *one);
  const PeerView hostile_too(adoption, *in_memory);
  ASSERT_TRUE(hostile && hostile_too);
  EXPECT_EQ(adoption.expel(), 0u);
  EXPECT_EQ(heard.left.size(), 3u);
  std::memset(hostile.bytes(), 0, 8 * kPage);
  std::memset(hostile_too.bytes(), 0, 4 * kPage);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
  EXPECT_EQ(first_difference(*memory, 4 * kPage), 4 * kPage);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_FALSE(is_shared(*memory));
  EXPECT_EQ(adoption.descriptor(ArenaKind::kPeersWrite), -1);

  const auto anew = adoption.adopt(pages.begin(), 8 * kPage, true);
  ASSERT_TRUE(anew);
  EXPECT_EQ(anew->generation, one->generation + 1);
  const auto memory_anew = adoption.adopt(*memory, 4 * kPage, true);
  ASSERT_TRUE(memory_anew) << "it is plain memory now";
  const PeerView peer(adoption, *anew);
  EXPECT_EQ(first_difference(peer.bytes(), 8 * kPage), 8 * kPage);
  for (const AdoptedId id : {one->id, two->id, in_memory->id, anew->id, memory_anew->id})
    adoption.release(id);
  EXPECT_EQ(first_difference(*memory, 4 * kPage), 4 * kPage);
  EXPECT_TRUE(adoption.free(*memory));
  EXPECT_FALSE(mapping_at(*memory));
  EXPECT_FALSE(adoption.free(*memory));
}

TEST_P(AdoptionLife, AllocatedMemoryIsSharedFromTheStart) {
  const std::uint32_t before = mappings_of_process();
  const auto memory = adoption.allocate(10 * kPage - 5);
  ASSERT_TRUE(memory);
  EXPECT_TRUE(is_all(*memory, 10 * kPage, 0));
  const auto adopted = adoption.adopt(*memory + kPage, 2 * kPage, true);
  ASSERT_TRUE(adopted);
  const PeerView peer(adoption, *adopted);
  peer.bytes()[0] = std::byte{4};
  EXPECT_EQ((*memory)[kPage], std::byte{4});
  const auto readers = adoption.adopt(*memory + 5 * kPage, 2 * kPage, false);
  ASSERT_TRUE(readers) << "also what peers may only read";
  EXPECT_EQ(readers->kind, ArenaKind::kPeersWrite);
  adoption.release(readers->id);
  EXPECT_FALSE(adoption.free(*memory + kPage));
  EXPECT_TRUE(adoption.free(*memory));
  EXPECT_EQ((*memory)[kPage], std::byte{4}) << "the registration still holds it";
  adoption.release(adopted->id);
  EXPECT_FALSE(mapping_at(*memory));
  EXPECT_EQ(adoption.counters().ranges, 0u);
  munmap(peer.bytes(), 2 * kPage);
  EXPECT_EQ(mappings_of_process(), before);
  for (const std::size_t length : {std::size_t{0}, ~std::size_t{0}, std::size_t{1} << 40})
    EXPECT_FALSE(adoption.allocate(length));
}

TEST_P(AdoptionLife, AllocatedMemoryHasALimitOfItsOwn) {
  AdoptionOptions options = with(GetParam());
  options.limits = {.total_bytes_max = 4 * kPage, .allocated_bytes_max = 8 * kPage};
  Adoption small(options);
  const TestPages pages(4);
  pages.fill(1);
  EXPECT_FALSE(small.allocate(9 * kPage));
  const auto one = small.allocate(5 * kPage);
  ASSERT_TRUE(one);
  EXPECT_EQ(small.counters().allocated_bytes, 5 * kPage);
  EXPECT_TRUE(small.adopt(pages.begin(), pages.size(), true)) << "this is not adopted memory";
  EXPECT_FALSE(small.allocate(4 * kPage));
  EXPECT_TRUE(small.allocate(3 * kPage));
  EXPECT_TRUE(small.free(*one));
  EXPECT_EQ(small.counters().allocated_bytes, 3 * kPage);
  EXPECT_TRUE(small.allocate(5 * kPage));
}

TEST_P(AdoptionLife, WhatIsGivenBackIsZeroAndStaysShared) {
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin() + 4 * kPage, 8 * kPage, true);
  ASSERT_TRUE(adopted);
  const PeerView peer(adoption, *adopted);
  bool done = false;
  std::thread([&] { done = adoption.give_back(pages.begin() + 6 * kPage, 8 * kPage - 9); }).join();
  EXPECT_TRUE(done);
  EXPECT_TRUE(is_all(pages.begin() + 6 * kPage, 6 * kPage, 0));
  EXPECT_TRUE(is_all(peer.bytes() + 2 * kPage, 6 * kPage, 0));
  EXPECT_EQ(first_difference(pages.begin(), 6 * kPage), 6 * kPage) << "in front of it";
  peer.bytes()[3 * kPage] = std::byte{7};
  EXPECT_EQ(pages.begin()[7 * kPage], std::byte{7});
  adoption.release(adopted->id);
  EXPECT_EQ(pages.begin()[7 * kPage], std::byte{7});
  EXPECT_TRUE(is_all(pages.begin() + 8 * kPage, 4 * kPage, 0));
  EXPECT_TRUE(adoption.give_back(pages.begin(), pages.size())) << "nothing is shared any more";
}

TEST_P(AdoptionLife, GivingBackSparesTheProgramsOwnFile) {
  const TestPages pages(8);
  pages.fill(1);
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  const UniqueFd file(memfd_create("own", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 8 * kPage), 0);
  std::byte* const middle = pages.begin() + 2 * kPage;
  ASSERT_EQ(mmap(middle, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0),
            middle);
  std::memset(middle, 5, 4 * kPage);
  EXPECT_FALSE(adoption.give_back(pages.begin(), pages.size()));
  EXPECT_TRUE(is_all(middle, 4 * kPage, 5));
  adoption.release(adopted->id);
  EXPECT_TRUE(is_all(middle, 4 * kPage, 5));
}

}  // namespace
}  // namespace verbena::memory
