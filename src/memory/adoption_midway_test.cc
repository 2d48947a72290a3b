// SPDX-License-Identifier: MIT
// A failure midway leaves the memory as it was: a filter refuses one system call, in a child of the
// test.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdio>

#include "memory/adoption.h"
#include "memory/test_adoption.h"
#include "memory/test_filter.h"

namespace verbena::memory {
namespace {

// Exit status 0: refused for this reason, and the memory is as before.
int refused_by(const Denial& denial, AdoptRefusal why, Means means) {
  return in_child([&] {
    const TestPages pages(700);
    fill_pattern(pages.begin(), pages.size());
    Adoption adoption(with(means));
    if (!deny(denial)) return 77;
    const std::uint32_t mappings = mappings_of_process();
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    if (adopted) return 1;
    if (adopted.error() != why) {
      std::fprintf(stderr, "%s\n", to_string(adopted.error()));
      return 2;
    }
    if (is_shared(pages.begin())) return 3;
    if (first_difference(pages.begin(), pages.size()) != pages.size()) return 4;
    if (mappings_of_process() != mappings) return 5;
    pages.fill(0);
    return 0;
  });
}

TEST(AdoptionFailsMidway, WhereverThatIs) {
  constexpr unsigned kMapShared = MAP_FIXED | MAP_SHARED;
  struct {
    const char* what;
    Denial denial;
    AdoptRefusal why;
  } const cases[] = {
      {"no memory in the file", {.call = SYS_pwrite64, .error = ENOSPC}, AdoptRefusal::kNoMemory},
      {"no memory for a park", {.call = SYS_mremap, .error = ENOMEM}, AdoptRefusal::kAddressSpace},
      {"no mapping of the file",
       {.call = SYS_mmap, .error = ENOMEM, .argument = 3, .mask = kMapShared, .value = MAP_SHARED},
       AdoptRefusal::kAddressSpace},
      {"no hiding it from children",
       {.call = SYS_madvise, .error = ENOMEM, .argument = 2, .mask = 0xFF, .value = MADV_DONTFORK},
       AdoptRefusal::kAddressSpace},
      {"no file", {.call = SYS_memfd_create, .error = EPERM}, AdoptRefusal::kDenied},
      {"no memory to unshare",
       {.call = SYS_madvise, .error = ENOMEM, .argument = 2, .mask = 0xFF, .value = 23},
       AdoptRefusal::kNoMemory},
  };
  for (const auto& each : cases) {
    for (const Means means : {Means::kEverything, Means::kNoUserfault}) {
      // Without the first move there is nothing to put back by a second one.
      const int found = refused_by(each.denial, each.why, means);
      if (found == 77) GTEST_SKIP() << "SKIP filters: not allowed here";
      EXPECT_EQ(found, 0) << each.what;
    }
  }
}

TEST(AdoptionFailsMidway, WhereAPageIsNotMoved) {
  constexpr std::uint32_t kUffdioMove = 0xC028AA05;
  struct {
    int error;
    AdoptRefusal why;
  } const cases[] = {{EBUSY, AdoptRefusal::kPinned},
                     {EAGAIN, AdoptRefusal::kPinned},
                     {ENOMEM, AdoptRefusal::kNoMemory},
                     {EINVAL, AdoptRefusal::kDenied}};
  for (const auto& each : cases) {
    const Denial denial{.call = SYS_ioctl,
                        .error = each.error,
                        .argument = 1,
                        .mask = 0xFFFFFFFF,
                        .value = kUffdioMove};
    const int found = refused_by(denial, each.why, Means::kEverything);
    if (found == 77) GTEST_SKIP() << "SKIP filters: not allowed here";
    EXPECT_EQ(found, 0) << each.error;
  }
}

TEST(AdoptionFailsMidway, InTheThirdPieceOfFive) {
  const Denial late{.call = SYS_pwrite64,
                    .error = ENOSPC,
                    .argument = 3,
                    .mask = 0xFFFFFFFF,
                    .value = 2 * (512 << 10)};
  EXPECT_EQ(refused_by(late, AdoptRefusal::kNoMemory, Means::kEverything), 0);
}

// Taken back later, when the filter would have let it: here never, so the memory stays shared.
int kept_by(const Denial& denial) {
  return in_child([&] {
    const TestPages pages(300);
    fill_pattern(pages.begin(), pages.size());
    Adoption adoption(with(Means::kEverything));
    const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
    if (!adopted) return 1;
    if (!deny(denial)) return 77;
    adoption.release(adopted->id);
    if (adoption.counters().kept != 1 || !is_shared(pages.begin())) return 2;
    if (first_difference(pages.begin(), pages.size()) != pages.size()) return 3;
    pages.begin()[9] = std::byte{0};  // nobody is held any more
    return 0;
  });
}

TEST(AdoptionFailsMidway, OnTheWayBack) {
  EXPECT_EQ(kept_by({.call = SYS_mremap, .error = ENOMEM}), 0);
  EXPECT_EQ(kept_by({.call = SYS_pread64, .error = EIO, .argument = 3, .mask = 0, .value = 0}), 0);
}

TEST(AdoptionWithFilters, UserfaultfdDenied) {
  EXPECT_EQ(in_child([&] {
              if (!deny({.call = SYS_userfaultfd, .error = EPERM})) return 77;
              const TestPages pages(16);
              fill_pattern(pages.begin(), pages.size());
              Adoption adoption(with(Means::kEverything));
              if (!adoption.needs_single_thread()) return 1;
              const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
              if (!adopted) return 2;
              if (first_difference(pages.begin(), pages.size()) != pages.size()) return 3;
              adoption.release(adopted->id);
              if (is_shared(pages.begin())) return 4;
              if (first_difference(pages.begin(), pages.size()) != pages.size()) return 5;
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace verbena::memory
