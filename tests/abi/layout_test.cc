// SPDX-License-Identifier: MIT
// The layouts that programs were compiled with, as a C compiler sees the installed header.
#include <gtest/gtest.h>

#include "layout_probe.h"

TEST(Layout, AProgramInCFindsEveryMemberWhereRdmaCore44HadIt) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the table was measured on x86-64";
#endif
  ASSERT_GT(measured_layout_count, 250U);
  for (std::size_t i = 0; i < measured_layout_count; ++i) {
    const MeasuredLayout& layout = measured_layouts[i];
    if (layout.may_grow) {
      EXPECT_GE(layout.measured, layout.wanted) << layout.what;
    } else {
      EXPECT_EQ(layout.measured, layout.wanted) << layout.what;
    }
  }
}
