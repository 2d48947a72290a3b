// SPDX-License-Identifier: MIT
// Where something runs out: memory is adopted or it is not, and nothing else happens.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include "memory/adoption.h"
#include "memory/test_adoption.h"

namespace verbena::memory {
namespace {

class AdoptionAtItsLimits : public testing::TestWithParam<Means> {};
INSTANTIATE_TEST_SUITE_P(Means, AdoptionAtItsLimits,
                         testing::Values(Means::kEverything, Means::kNoUserfault), name_of);

std::size_t mappings_max() {
  std::size_t most = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  return most;
}

// Takes all mappings that the process may have, and gives them back one by one.
class AllMappings {
 public:
  explicit AllMappings(std::size_t most)
      : bytes_(2 * most * kPage),
        begin_(static_cast<std::byte*>(
            mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    single_.reserve(kSingle);
  }
  AllMappings(const AllMappings&) = delete;
  AllMappings& operator=(const AllMappings&) = delete;

  // False: there are more than expected.
  bool take() {
    if (begin_ == MAP_FAILED) return false;
    // Two at a time, by pages with other rights than their neighbours.
    std::byte* at = begin_ + kPage;
    while (at < begin_ + bytes_ && mprotect(at, kPage, PROT_READ) == 0)
      at += 2 * kPage;
    at -= 2 * kPage;
    for (std::size_t i = 0; i < kSingle / 4; ++i, at -= 2 * kPage)
      mprotect(at, kPage, PROT_NONE);
    while (single_.size() < kSingle) {
      void* const one = mmap(nullptr, kPage, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (one == MAP_FAILED) return true;
      single_.push_back(one);
    }
    return false;
  }
  // False: none is left that could be told apart.
  bool give_back_one() {
    if (single_.empty()) return false;
    munmap(single_.back(), kPage);
    single_.pop_back();
    return true;
  }

 private:
  static constexpr std::size_t kSingle = 160;
  std::size_t bytes_;
  std::byte* begin_;
  std::vector<void*> single_;
};

// `margin`: pages at both ends that are not adopted. Without them nothing is cut, so that the first
// steps take fewer mappings than the last; and what is cut must be whole again when it is refused,
// or mappings that come free are used up.
int adopt_with_few_mappings(Means means, std::size_t most, std::size_t margin) {
  constexpr std::size_t kRounds = 60;
  constexpr std::size_t kPages = 8;
  AllMappings all(most);
  const TestPages warm_up(1);
  std::vector<std::unique_ptr<TestPages>> pages;
  for (std::size_t i = 0; i < kRounds; ++i) {
    pages.push_back(std::make_unique<TestPages>(kPages));
    fill_pattern(pages.back()->begin(), pages.back()->size());
  }
  AdoptionOptions options = with(means);
  options.minds_rings = false;  // they would be looked for among all mappings
  Adoption adoption(options);
  // Mappings are counted now and then, and now they are few.
  if (!adoption.adopt(warm_up.begin(), warm_up.size(), true)) return 1;
  if (!all.take()) return 77;
  bool is_adopted = false;
  for (std::size_t i = 0; i < kRounds; ++i) {
    const TestPages& its = *pages[i];
    const auto adopted =
        adoption.adopt(its.begin() + margin * kPage, its.size() - 2 * margin * kPage, true);
    if (i == 0 && adopted) return 2;
    if (first_difference(its.begin(), its.size()) != its.size()) return 3;
    its.begin()[margin * kPage] = std::byte{0};
    its.begin()[margin * kPage] = pattern(margin * kPage);
    is_adopted = adopted.has_value();
    if (adopted) adoption.release(adopted->id);
    if (first_difference(its.begin(), its.size()) != its.size()) return 4;
    if (!all.give_back_one()) return 5;
  }
  return is_adopted ? 0 : 6;
}

TEST_P(AdoptionAtItsLimits, FewMappingsAreLeft) {
  const std::size_t most = mappings_max();
  if (most > 200'000) GTEST_SKIP() << "SKIP few mappings: this process may have too many";
  for (const std::size_t margin : {0, 1}) {
    const int found = in_child([&] { return adopt_with_few_mappings(GetParam(), most, margin); });
    if (found == 77) GTEST_SKIP() << "SKIP few mappings: this process may have as many as it likes";
    EXPECT_EQ(found, 0) << margin;
  }
}

TEST_P(AdoptionAtItsLimits, AFileIsUsedUp) {
  constexpr std::uint64_t kPlaces = 3;
  AdoptionOptions options = with(GetParam());
  options.limits.places_max = kPlaces;
  Adoption adoption(options);
  const TestPages kept(8);
  fill_pattern(kept.begin(), kept.size());
  const auto first = adoption.adopt(kept.begin(), kept.size(), true);
  ASSERT_TRUE(first);
  const PeerView early(adoption, *first);
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  for (std::uint64_t i = 1; i < 4 * kPlaces; ++i) {
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    ASSERT_TRUE(adopted) << i << ": " << to_string(adopted.error());
    EXPECT_EQ(adopted->generation, 1 + i / kPlaces);
    EXPECT_EQ(adoption.generation(), adopted->generation);
    const PeerView peer(adoption, *adopted);
    ASSERT_TRUE(peer);
    EXPECT_EQ(first_difference(peer.bytes(), pages.size()), pages.size());
    adoption.release(adopted->id);
  }
  early.bytes()[9] = std::byte{0};
  EXPECT_EQ(kept.begin()[9], std::byte{0}) << "what is in the old file stays there";
  kept.begin()[9] = pattern(9);
  for (std::uint64_t i = 0; i < 2 * kPlaces; ++i)
    EXPECT_TRUE(adoption.allocate(kPage)) << i;
  adoption.release(first->id);
  EXPECT_FALSE(is_shared(kept.begin()));
  EXPECT_EQ(first_difference(kept.begin(), kept.size()), kept.size());
}

}  // namespace
}  // namespace verbena::memory
