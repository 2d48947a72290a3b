// SPDX-License-Identifier: MIT
// What a program put into an enumeration of a C interface: it may be any number, and reading it as
// an enumeration that has no such value is undefined.
#pragma once

#include <cstring>

namespace verbena {

template <class Enum>
int enum_number(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int result = 0;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

}  // namespace verbena
