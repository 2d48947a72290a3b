/* SPDX-License-Identifier: MIT */
/* The program's side: the header as C, without anything of ours in between. */
#include "layout_probe.h"

#include <infiniband/tm_types.h>
#include <infiniband/verbs.h>

#include "verbs/abi/layout_table.h"

#define SIZE(type, bytes) {"sizeof " #type, bytes, sizeof(struct type), 0},
#define GROWS(type, bytes) {"sizeof " #type, bytes, sizeof(struct type), 1},
#define AT(type, member, offset) {#type "." #member, offset, offsetof(struct type, member), 0},
#define FROM_END(type, member, bytes) \
  {#type "." #member, bytes, sizeof(struct type) - offsetof(struct type, member), 0},

struct MeasuredLayout measured_layout(size_t number) {
  static const struct MeasuredLayout layouts[] = {VERBENA_SIZES(SIZE, GROWS)
                                                      VERBENA_PLACES(AT, FROM_END)};
  static const struct MeasuredLayout none = {0};
  return number < sizeof(layouts) / sizeof(layouts[0]) ? layouts[number] : none;
}
