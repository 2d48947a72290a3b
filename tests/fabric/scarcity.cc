// SPDX-License-Identifier: MIT
#include "scarcity.h"

#include <cstdlib>
#include <new>

namespace verbena::fabric {

Scarcity& scarcity() {
  static Scarcity one;
  return one;
}

// Sanitizers have operators of their own, which find more than these.
#ifndef VERBENA_SANITIZED

static constexpr std::uint64_t kRefusedOneIn = 3;

static void* allocate(std::size_t bytes) {
  Scarcity& now = scarcity();
  if (now.engines != 0) ++now.demanded;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}
static void* allocate_or_refuse(std::size_t bytes) {
  Scarcity& now = scarcity();
  if (now.engines != 0 && now.refuses && now.refuses->one_in(kRefusedOneIn)) {
    ++now.refused;
    return nullptr;
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}

#endif

}  // namespace verbena::fabric

#ifndef VERBENA_SANITIZED

void* operator new(std::size_t bytes) { return verbena::fabric::allocate(bytes); }
void* operator new[](std::size_t bytes) { return verbena::fabric::allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return verbena::fabric::allocate_or_refuse(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return verbena::fabric::allocate_or_refuse(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

#endif
