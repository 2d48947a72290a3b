// SPDX-License-Identifier: MIT
// Where sysfs is: SYSFS_PATH is read once in a process, so each case has its own.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <string>

#include "verbs/abi/entry.h"

namespace {

[[noreturn]] void exit_with_path(const char* asked) {
  if (asked) {
    setenv("SYSFS_PATH", asked, 1);
  } else {
    unsetenv("SYSFS_PATH");
  }
  std::fprintf(stderr, "<%s>", ibv_get_sysfs_path());
  std::exit(0);
}

TEST(SysfsPathDeathTest, IsTheUsualOneOrWhatIsAskedForWithoutSlashes) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(exit_with_path(nullptr), testing::ExitedWithCode(0), "</sys>");
  EXPECT_EXIT(exit_with_path(""), testing::ExitedWithCode(0), "</sys>");
  EXPECT_EXIT(exit_with_path("///"), testing::ExitedWithCode(0), "</sys>");
  EXPECT_EXIT(exit_with_path("/other/"), testing::ExitedWithCode(0), "</other>");
  EXPECT_EXIT(exit_with_path(std::string(300, 'x').c_str()), testing::ExitedWithCode(0), "</sys>");
}

TEST(SysfsFile, APathThatIsTooLongIsRefused) {
  const std::string longest(600, 'x');
  char buffer[8];
  EXPECT_EQ(ibv_read_sysfs_file("/", longest.c_str(), buffer, sizeof(buffer)), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
}

}  // namespace
