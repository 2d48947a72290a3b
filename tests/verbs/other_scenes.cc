// SPDX-License-Identifier: MIT
// What other processes do in the tests of the verbs (other_process.h): a program of its own, as it
// is nobody's test.
#include "fixture.h"
#include "other_process.h"

namespace verbena::verbs::testing {
namespace {

using DeviceScene = VerbsTest;

// Shows an open device to its parent.
TEST_F(DeviceScene, ShowADevice) {
  const Talk parent = OtherProcess::parent();
  parent.say(pd->handle, context->cmd_fd);
  parent.hear();
}

}  // namespace
}  // namespace verbena::verbs::testing
