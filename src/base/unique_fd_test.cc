// SPDX-License-Identifier: MIT
#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace verbena {
namespace {

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

UniqueFd null_device() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

TEST(UniqueFd, ClosesItsFile) {
  UniqueFd fd = null_device();
  const int number = fd.get();
  ASSERT_TRUE(is_open(number));
  EXPECT_TRUE(fd.is_ours());
  UniqueFd moved = std::exchange(fd, UniqueFd());
  EXPECT_FALSE(fd.is_ours());
  EXPECT_TRUE(moved.is_ours());
  UniqueFd assigned;
  EXPECT_FALSE(assigned.is_ours());
  assigned = std::move(moved);
  EXPECT_TRUE(assigned.is_ours());
  assigned.reset();
  EXPECT_FALSE(assigned);
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFd, LeavesAStrangersFileInItsPlace) {
  UniqueFd fd = null_device();
  const int number = fd.get();
  const UniqueFd other(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(dup2(other.get(), number), number);
  EXPECT_FALSE(fd.is_ours());
  UniqueFd moved(std::move(fd));
  EXPECT_FALSE(moved.is_ours());
  moved.reset();
  EXPECT_TRUE(is_open(number));
  close(number);
}

TEST(UniqueFd, IsNotOursOnceClosed) {
  UniqueFd fd = null_device();
  close(fd.get());
  EXPECT_TRUE(fd);
  EXPECT_FALSE(fd.is_ours());
}

}  // namespace
}  // namespace verbena
