// SPDX-License-Identifier: MIT
// What a C compiler says of the layouts in verbs/abi/layout_table.h.
#pragma once

#ifdef __cplusplus
#include <cstddef>
extern "C" {
#else
#include <stddef.h>
#endif

struct MeasuredLayout {
  const char* what;
  size_t wanted;
  size_t measured;
  int may_grow;  // measured may be larger
};

// The layout of this number; `what` is null behind the last.
struct MeasuredLayout measured_layout(size_t number);

#ifdef __cplusplus
}
#endif
