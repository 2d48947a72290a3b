/* SPDX-License-Identifier: MIT */
/* The program's side: the header as C, without anything of ours in between. */
#include "layout_probe.h"

#include <infiniband/verbs.h>

#include "verbs/abi/layout_table.h"

#define SIZE(type, bytes) {"sizeof " #type, bytes, sizeof(struct type), 0},
#define GROWS(type, bytes) {"sizeof " #type, bytes, sizeof(struct type), 1},
#define AT(type, member, offset) {#type "." #member, offset, offsetof(struct type, member), 0},
#define FROM_END(type, member, bytes) \
  {#type "." #member, bytes, sizeof(struct type) - offsetof(struct type, member), 0},

const struct MeasuredLayout measured_layouts[] = {VERBENA_SIZES(SIZE, GROWS)
                                                      VERBENA_PLACES(AT, FROM_END)};
const size_t measured_layout_count = sizeof(measured_layouts) / sizeof(measured_layouts[0]);
