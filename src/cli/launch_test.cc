// SPDX-License-Identifier: MIT
#include "cli/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command.h"

namespace verbena::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SearchPath, TakesAnEntryOnce) {
  EXPECT_EQ(with_front("", "/lib"), "/lib");
  EXPECT_EQ(with_front("/a:/b", "/lib"), "/lib:/a:/b");
  EXPECT_EQ(with_front("/a:/lib:/b", "/lib"), "/lib:/a:/b");
  EXPECT_EQ(with_end("", "/p.so"), "/p.so");
  EXPECT_EQ(with_end("asan.so", "/p.so"), "asan.so:/p.so");
  EXPECT_EQ(with_end("/p.so:asan.so", "/p.so"), "asan.so:/p.so");
}

// The program's words, and through `left` what remains for `verbena`.
std::vector<std::string> taken(std::vector<std::string> words, std::vector<std::string>& left) {
  std::vector<std::string> program = take_program(words);
  left = words;
  return program;
}

TEST(TakeProgram, StartsAtTheFirstWordThatIsNoOption) {
  std::vector<std::string> left;
  EXPECT_THAT(taken({"run", "ls", "-l"}, left), ElementsAre("ls", "-l"));
  EXPECT_THAT(left, ElementsAre("run"));
  EXPECT_THAT(taken({"run", "--log", "warn", "ls", "--log"}, left), ElementsAre("ls", "--log"));
  EXPECT_THAT(left, ElementsAre("run", "--log", "warn"));
  EXPECT_THAT(taken({"run", "--log=warn", "ls"}, left), ElementsAre("ls"));
  EXPECT_THAT(left, ElementsAre("run", "--log=warn"));
}

TEST(TakeProgram, StartsBehindTheFirstDashes) {
  std::vector<std::string> left;
  EXPECT_THAT(taken({"run", "--", "-x", "--", "y"}, left), ElementsAre("-x", "--", "y"));
  EXPECT_THAT(left, ElementsAre("run"));
  EXPECT_THAT(taken({"run", "ls", "--", "-x"}, left), ElementsAre("ls", "--", "-x"));
}

TEST(TakeProgram, LeavesOtherCommandsAlone) {
  std::vector<std::string> left;
  EXPECT_THAT(taken({"ls", "run", "x"}, left), IsEmpty());
  EXPECT_THAT(left, ElementsAre("ls", "run", "x"));
  EXPECT_THAT(taken({}, left), IsEmpty());
  EXPECT_THAT(taken({"run"}, left), IsEmpty());
  EXPECT_THAT(taken({"run", "--"}, left), IsEmpty());
  EXPECT_THAT(taken({"run", "--log"}, left), IsEmpty());
  EXPECT_THAT(left, ElementsAre("run", "--log"));
}

}  // namespace
}  // namespace verbena::cli
