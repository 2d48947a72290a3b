// SPDX-License-Identifier: MIT
// That the library really does what this matrix is about: a matrix in which nothing is ever adopted
// would show nothing.
#include <dlfcn.h>

#include <cstdlib>

#include "world.h"

namespace semantics {
namespace {

void adopted(World& world) {
  static_cast<void>(world);
  if (!may_adopt()) skip("nothing is to be adopted in this mode");
  if (!dlsym(RTLD_DEFAULT, "verbena_dv_query_mr")) {
    skip("not checked whether memory was adopted: the library has no verbena_dv_query_mr");
  }
}

}  // namespace

std::vector<Scenario> adopted_scenarios() { return {{"adopted", adopted}}; }

}  // namespace semantics
