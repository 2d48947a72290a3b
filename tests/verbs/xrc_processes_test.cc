// SPDX-License-Identifier: MIT
// XRC domains of one file in two processes: both know whether it is there. What a target of one
// does with queues of the other is in xrc_relay_test.cc.
#include "xrc_processes.h"

#include <sys/mman.h>

#include <cerrno>

#include "other_process.h"

namespace verbena::verbs::testing {
namespace {

TEST_F(XrcProcesses, AgreeOnWhetherAFileHasADomain) {
  const UniqueFd file(memfd_create("xrc", MFD_CLOEXEC));
  const UniqueFd another(memfd_create("xrc", MFD_CLOEXEC));
  ASSERT_TRUE(file && another);
  EXPECT_EQ(EAGAIN, error_of_open(file.get(), 0)) << "nobody has it";
  OtherProcess other("HaveADomain");
  other.talk().say(0, file.get());
  ASSERT_EQ(1u, other.talk().number());
  EXPECT_EQ(EINVAL, error_of_open(file.get(), O_CREAT | O_EXCL)) << "the other one has it";
  EXPECT_EQ(0, error_of_open(file.get(), 0));
  EXPECT_EQ(0, error_of_open(file.get(), O_CREAT));
  EXPECT_EQ(EAGAIN, error_of_open(another.get(), 0)) << "of this file nobody has one";
  other.talk().say(0);
  EXPECT_TRUE(other.ended_well());
  EXPECT_EQ(EAGAIN, error_of_open(file.get(), 0)) << "the last one has left";
  EXPECT_EQ(0, error_of_open(file.get(), O_CREAT | O_EXCL));
  EXPECT_EQ(EAGAIN, error_of_open(file.get(), 0));
}

TEST_F(XrcProcesses, WhoDiesHasNoDomain) {
  const UniqueFd file(memfd_create("xrc", MFD_CLOEXEC));
  OtherProcess other("HaveADomain");
  other.talk().say(0, file.get());
  ASSERT_EQ(1u, other.talk().number());
  EXPECT_EQ(EINVAL, error_of_open(file.get(), O_CREAT | O_EXCL));
  other.kill();
  EXPECT_EQ(0, error_of_open(file.get(), O_CREAT | O_EXCL));
}

}  // namespace
}  // namespace verbena::verbs::testing
