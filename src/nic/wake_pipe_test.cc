// SPDX-License-Identifier: MIT
#include "nic/wake_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <vector>

#include "nic/test_readable.h"

namespace verbena::nic {
namespace {

// Both ends of a pipe are of one file.
std::vector<int> ends_of(int fd) {
  std::vector<int> found;
  const ino_t file = port::file_of(fd);
  for (int each = 3; each < 1 << 13; ++each)
    if (port::file_of(each) == file) found.push_back(each);
  return found;
}

TEST(WakePipe, WakesUntilItIsDrained) {
  WakePipe wake;
  EXPECT_FALSE(wake.is_open());
  EXPECT_EQ(wake.descriptor(), -1);
  wake.wake();
  wake.drain();
  ASSERT_TRUE(wake.open());
  EXPECT_FALSE(is_readable(wake.descriptor()));
  wake.wake();
  wake.wake();
  EXPECT_TRUE(is_readable(wake.descriptor()));
  wake.drain();
  EXPECT_FALSE(is_readable(wake.descriptor()));
}

// Programs close descriptors that they do not know, and get their numbers.
TEST(WakePipe, LeavesAnotherFileAtItsNumbersAlone) {
  WakePipe wake;
  ASSERT_TRUE(wake.open());
  const std::vector<int> ends = ends_of(wake.descriptor());
  ASSERT_EQ(ends.size(), 2u);
  std::array<int, 2> others{};
  ASSERT_EQ(pipe2(others.data(), O_NONBLOCK), 0);
  for (const int fd : ends)
    ASSERT_EQ(dup2(others[1], fd), fd);
  EXPECT_EQ(wake.descriptor(), -1);
  wake.wake();
  EXPECT_FALSE(is_readable(others[0]));
  ASSERT_EQ(write(others[1], "x", 1), 1);
  wake.drain();
  EXPECT_TRUE(is_readable(others[0]));
  for (const auto& some : {ends, std::vector(others.begin(), others.end())})
    for (const int fd : some)
      close(fd);
}

}  // namespace
}  // namespace verbena::nic
