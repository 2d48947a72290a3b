// SPDX-License-Identifier: MIT
// Result: a value, or the reason why there is none. The alias goes when the compiler has
// std::expected.
#pragma once

#include <tl/expected.hpp>

namespace verbena {

template <class T, class E>
using Result = tl::expected<T, E>;

template <class E>
constexpr auto refuse(E reason) {
  return tl::unexpected<E>(reason);
}

}  // namespace verbena
