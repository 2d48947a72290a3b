// SPDX-License-Identifier: MIT
// The layouts that programs were compiled with, as a C compiler sees the installed header.
#include <gtest/gtest.h>

#include "layout_probe.h"

TEST(Layout, AProgramInCFindsEveryMemberWhereRdmaCore44HadIt) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the table was measured on x86-64";
#endif
  std::size_t count = 0;
  for (MeasuredLayout layout = measured_layout(0); layout.what; layout = measured_layout(++count)) {
    if (layout.may_grow) {
      EXPECT_GE(layout.measured, layout.wanted) << layout.what;
    } else {
      EXPECT_EQ(layout.measured, layout.wanted) << layout.what;
    }
  }
  EXPECT_GT(count, 250U);
}
