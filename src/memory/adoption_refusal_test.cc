// SPDX-License-Identifier: MIT
// What is not adopted; and that a refusal leaves the memory as it was.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "memory/adoption.h"
#include "memory/test_adoption.h"

namespace verbena::memory {
namespace {

class AdoptionRefuses : public testing::TestWithParam<Means> {
 protected:
  // Tries, and checks that nothing happened.
  void expect(AdoptRefusal why, std::byte* address, std::size_t length) {
    const auto adopted = adoption.adopt(address, length, true);
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error(), why) << to_string(adopted.error());
    EXPECT_EQ(adoption.counters().ranges, 0u);
  }
  Adoption adoption{with(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Means, AdoptionRefuses,
                         testing::Values(Means::kEverything, Means::kNoUserfault), name_of);

TEST_P(AdoptionRefuses, MemoryThatIsNotPlain) {
  const TestPages read_only(4, PROT_READ);
  expect(AdoptRefusal::kNotPlain, read_only.begin(), read_only.size());
  const TestPages closed(4, PROT_NONE);
  expect(AdoptRefusal::kNotPlain, closed.begin(), closed.size());
  const TestPages code(4, PROT_READ | PROT_WRITE | PROT_EXEC);
  expect(AdoptRefusal::kNotPlain, code.begin(), code.size());
  const TestPages with_hole(6);
  with_hole.unmap(3, 1);
  expect(AdoptRefusal::kNotPlain, with_hole.begin(), with_hole.size());
  const TestPages in_two(6);
  in_two.protect(3, 1, PROT_READ);
  expect(AdoptRefusal::kNotPlain, in_two.begin(), in_two.size());
  void* const shared =
      mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect(AdoptRefusal::kNotPlain, static_cast<std::byte*>(shared), 4 * kPage);
  munmap(shared, 4 * kPage);
  const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 4 * kPage), 0);
  void* const copy = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, file.get(), 0);
  expect(AdoptRefusal::kNotPlain, static_cast<std::byte*>(copy), 4 * kPage);
  munmap(copy, 4 * kPage);
}

TEST_P(AdoptionRefuses, Stacks) {
  alignas(4096) std::byte local[3 * kPage];
  std::memset(local, 1, sizeof local);
#ifndef VERBENA_SANITIZED  // which keep locals elsewhere
  expect(AdoptRefusal::kNotPlain, local, sizeof local);
#endif
  std::thread([&] {
    std::byte buffer[5 * kPage];
    std::memset(buffer, 1, sizeof buffer);
    Adoption own{with(GetParam())};
    const auto adopted = own.adopt(buffer, sizeof buffer, true, buffer);
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error(), AdoptRefusal::kNotPlain);
#ifndef VERBENA_SANITIZED
    const auto its_own = own.adopt(buffer, sizeof buffer, true);
    ASSERT_FALSE(its_own) << "of the thread that moves pages";
    EXPECT_EQ(its_own.error(), AdoptRefusal::kNotPlain);
#endif
  }).join();
}

TEST_P(AdoptionRefuses, HugePagesOfHugetlbfs) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  void* const at = mmap(nullptr, kHuge, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) GTEST_SKIP() << "SKIP hugetlbfs: no such mapping here";
  expect(AdoptRefusal::kNotPlain, static_cast<std::byte*>(at), kHuge);
  munmap(at, kHuge);
}

TEST_P(AdoptionRefuses, WhatIsTooMuch) {
  AdoptionOptions options = with(GetParam());
  options.limits = {.region_bytes_max = 8 * kPage, .total_bytes_max = 20 * kPage, .ranges_max = 3};
  Adoption small(options);
  const TestPages pages(64);
  pages.fill(1);
  const auto try_at = [&](std::size_t page, std::size_t count) {
    const auto adopted = small.adopt(pages.begin() + page * kPage, count * kPage, true);
    return adopted ? AdoptRefusal::kNoWholePage : adopted.error();
  };
  constexpr AdoptRefusal kAdopted = AdoptRefusal::kNoWholePage;
  EXPECT_EQ(try_at(0, 9), AdoptRefusal::kTooLarge);
  EXPECT_EQ(try_at(0, 8), kAdopted);
  EXPECT_EQ(try_at(10, 8), kAdopted);
  EXPECT_EQ(try_at(20, 5), AdoptRefusal::kTooMuch);
  EXPECT_EQ(try_at(20, 1), kAdopted);
  EXPECT_EQ(try_at(30, 1), AdoptRefusal::kTooMany);
  EXPECT_FALSE(small.allocate(kPage));
}

TEST_P(AdoptionRefuses, LockedMemory) {
  const TestPages locked(1);
  locked.fill(1);
  const TestPages pages(4);
  pages.fill(1);
  // The sanitizers' mlock does nothing.
  if (syscall(SYS_mlock, locked.begin(), kPage) != 0)
    GTEST_SKIP() << "SKIP locked memory: not allowed here";
  expect(AdoptRefusal::kLocked, pages.begin(), pages.size());
  syscall(SYS_munlock, locked.begin(), kPage);
  EXPECT_TRUE(adoption.adopt(pages.begin(), pages.size(), true));
}

TEST_P(AdoptionRefuses, ALimitOnFiles) {
  const TestPages pages(4);
  rlimit limit;
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{.rlim_cur = std::size_t{1} << 40, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  expect(AdoptRefusal::kFileSizeLimit, pages.begin(), pages.size());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST_P(AdoptionRefuses, LittleAddressSpace) {
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "SKIP little address space: the sanitizers have taken all of it";
#endif
  const TestPages pages(256);
  pages.fill(1);
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    const auto figures = ProcessStatus().read();
    ASSERT_TRUE(figures);
    const std::uint64_t used = resource == RLIMIT_AS ? figures->address_bytes : figures->data_bytes;
    rlimit limit;
    getrlimit(resource, &limit);
    const rlimit small{.rlim_cur = used + (std::size_t{8} << 20), .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(resource, &small), 0);
    expect(AdoptRefusal::kAddressSpace, pages.begin(), pages.size());
    ASSERT_EQ(setrlimit(resource, &limit), 0);
  }
}

TEST(AdoptionAndUserfaultfd, MemoryThatTheProgramTracksItself) {
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  const UniqueFd own(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
  ASSERT_TRUE(own);
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  ASSERT_EQ(ioctl(own.get(), UFFDIO_API, &api), 0);
  uffdio_register watched{.range = {.start = pages.address(), .len = pages.size()},
                          .mode = UFFDIO_REGISTER_MODE_WP,
                          .ioctls = 0};
  ASSERT_EQ(ioctl(own.get(), UFFDIO_REGISTER, &watched), 0);
  Adoption adoption{with(Means::kEverything)};
  if (const std::string why = why_no_adoption(adoption); !why.empty()) {
    GTEST_SKIP() << "SKIP adoption under use: " << why;
  }
  const auto refused = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), AdoptRefusal::kTrackedElsewhere);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

// A joined thread counts a moment longer.
class Thread {
 public:
  template <class Body>
  explicit Thread(Body body)
      : thread_([this, body] {
          id_ = gettid();
          body();
        }) {}
  void join() {
    thread_.join();
    const std::string entry = "/proc/self/task/" + std::to_string(id_);
    for (int i = 0; i < 20'000 && access(entry.c_str(), F_OK) == 0; ++i)
      usleep(1000);
  }

 private:
  std::atomic<pid_t> id_ = 0;
  std::thread thread_;
};

class AdoptionAlone : public testing::TestWithParam<Means> {};
INSTANTIATE_TEST_SUITE_P(Means, AdoptionAlone,
                         testing::Values(Means::kProgramsOnly, Means::kNoMove, Means::kNoUserfault),
                         name_of);

TEST_P(AdoptionAlone, RefusesWhereOtherThreadsRun) {
  AdoptionOptions options = with(GetParam());
  Thread([] {}).join();  // with the first one a sanitizer starts its own
  const auto figures = ProcessStatus().read();
  ASSERT_TRUE(figures);
  options.quiet_threads = static_cast<std::uint32_t>(figures->threads);
  Adoption adoption(options);
  EXPECT_TRUE(adoption.needs_single_thread());
  const TestPages pages(8);
  fill_pattern(pages.begin(), pages.size());
  std::atomic<bool> is_over = false;
  Thread other([&] { is_over.wait(false); });
  const auto refused = adoption.adopt(pages.begin(), pages.size(), true);
  is_over = true;
  is_over.notify_all();
  other.join();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), AdoptRefusal::kOtherThreads);
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted) << to_string(adopted.error());
  // Nor does it take back.
  is_over = false;
  Thread late([&] { is_over.wait(false); });
  adoption.release(adopted->id);
  EXPECT_TRUE(is_shared(pages.begin()));
  EXPECT_EQ(adoption.counters().kept, 1u);
  is_over = true;
  is_over.notify_all();
  late.join();
  const auto again = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(again);
  adoption.release(again->id);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

// A ring with the pages as fixed buffer, or why there is none.
class Ring {
 public:
  Ring() { is_there_ = io_uring_queue_init(4, &ring_, 0) == 0; }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (is_there_) io_uring_queue_exit(&ring_);
  }
  explicit operator bool() const { return is_there_; }
  bool pin(std::byte* begin, std::size_t length) {
    const iovec buffer{.iov_base = begin, .iov_len = length};
    return io_uring_register_buffers(&ring_, &buffer, 1) == 0;
  }
  bool unpin() { return io_uring_unregister_buffers(&ring_) == 0; }
  // Lets the kernel write by the pinned pages.
  bool read_zeroes(std::byte* to, unsigned length) {
    const UniqueFd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    io_uring_prep_read_fixed(entry, zero.get(), to, length, 0, 0);
    io_uring_cqe* answer = nullptr;
    if (io_uring_submit(&ring_) != 1 || io_uring_wait_cqe(&ring_, &answer) != 0) return false;
    const int result = answer->res;
    io_uring_cqe_seen(&ring_, answer);
    return result == static_cast<int>(length);
  }

 private:
  io_uring ring_{};
  bool is_there_ = false;
};

class AdoptionAndRings : public testing::Test {
 protected:
  void SetUp() override {
    if (!ring) GTEST_SKIP() << "SKIP io_uring: not allowed here";
    if (const std::string why = why_no_adoption(adoption); !why.empty()) {
      GTEST_SKIP() << "SKIP adoption under use: " << why;
    }
  }
  AdoptionOptions minding_pins_only() {
    AdoptionOptions options = with(Means::kEverything);
    options.minds_rings = false;
    options.events = &moves;
    return options;
  }
  struct Moves final : AdoptionEvents {
    bool moving(const std::byte*, std::size_t, bool) override { return ++count != 0; }
    void moved(const std::byte*, std::size_t) override {}
    int count = 0;
  };
  Moves moves;
  Ring ring;
  Adoption adoption{minding_pins_only()};
};

TEST_F(AdoptionAndRings, PinnedPagesStayWhereTheyAre) {
  const TestPages pages(1000);
  fill_pattern(pages.begin(), pages.size());
  // The pin is met after several pieces have gone to the file, and in the middle of one.
  for (const std::size_t page : {0, 130, 899}) {
    std::byte* const pinned = pages.begin() + page * kPage;
    ASSERT_TRUE(ring.pin(pinned + 100, 300));
    const auto refused = adoption.adopt(pages.begin(), pages.size(), true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), AdoptRefusal::kPinned);
    const auto mapping = mapping_at(pages.begin());
    ASSERT_TRUE(mapping);
    EXPECT_GE(mapping->end, pages.address() + pages.size()) << "it is in pieces";
    EXPECT_FALSE(mapping->is_shared);
    ASSERT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
    ASSERT_TRUE(ring.read_zeroes(pinned + 100, 300));
    for (std::size_t i = 100; i < 400; ++i) {
      ASSERT_EQ(pinned[i], std::byte{0}) << "it was written elsewhere";
      pinned[i] = pattern(page * kPage + i);
    }
    ASSERT_TRUE(ring.unpin());
  }
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  EXPECT_TRUE(adopted);
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

TEST_F(AdoptionAndRings, PinnedWhileAdoptedItComesBackLater) {
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted);
  ASSERT_TRUE(ring.pin(pages.begin() + 3 * kPage, kPage));
  adoption.release(adopted->id);
  EXPECT_TRUE(is_shared(pages.begin()));
  EXPECT_EQ(adoption.counters().kept, 1u);
  ASSERT_TRUE(ring.read_zeroes(pages.begin() + 3 * kPage, kPage));
  EXPECT_EQ(pages.begin()[3 * kPage + 5], std::byte{0});
  const int moved = moves.count;
  EXPECT_EQ(adoption.expel(), pages.size()) << "it cannot be moved away";
  EXPECT_EQ(moves.count, moved) << "peers lost sight of it for nothing";
  // Pinned memory elsewhere does not matter.
  const TestPages other(16);
  other.fill(1);
  const auto elsewhere = adoption.adopt(other.begin(), other.size(), true);
  ASSERT_TRUE(elsewhere);
  adoption.release(elsewhere->id);
  EXPECT_FALSE(is_shared(other.begin()));
  ASSERT_TRUE(ring.unpin());
  const auto again = adoption.adopt(other.begin(), other.size(), true);
  ASSERT_TRUE(again);
  EXPECT_FALSE(is_shared(pages.begin())) << "every call tries again";
  EXPECT_EQ(adoption.counters().kept, 0u);
  EXPECT_EQ(pages.begin()[0], pattern(0));
  EXPECT_EQ(pages.begin()[3 * kPage], std::byte{0});
}

// Its reads in flight show nowhere.
TEST_F(AdoptionAndRings, ARingIsEnoughToRefuse) {
  const TestPages pages(16);
  for (const Means means : {Means::kEverything, Means::kNoUserfault}) {
    Adoption minding(with(means));
    const auto refused = minding.adopt(pages.begin(), pages.size(), true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), AdoptRefusal::kAsynchronousIo);
  }
}

TEST(AdoptionBeforeARing, KeepsAsLongAsTheRingIsThere) {
  Adoption adoption(with(Means::kEverything));
  const TestPages pages(16);
  fill_pattern(pages.begin(), pages.size());
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted) << to_string(adopted.error());
  {
    const Ring ring;
    if (!ring) GTEST_SKIP() << "SKIP io_uring: not allowed here";
    adoption.release(adopted->id);
    EXPECT_TRUE(is_shared(pages.begin()));
    EXPECT_EQ(adoption.counters().kept, 1u);
  }
  const auto again = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(again);
  adoption.release(again->id);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_EQ(first_difference(pages.begin(), pages.size()), pages.size());
}

}  // namespace
}  // namespace verbena::memory
