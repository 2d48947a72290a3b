// SPDX-License-Identifier: MIT
// verbena/dv.h alone, as a program in C99 sees it.
#include <verbena/dv.h>

// Read by dv_probe.cc, which is C++: both see the same structures.
extern const size_t verbena_dv_sizes_in_c[2];
const size_t verbena_dv_sizes_in_c[2] = {sizeof(struct verbena_dv_mr),
                                         sizeof(struct verbena_dv_qp)};
