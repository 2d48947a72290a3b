// SPDX-License-Identifier: MIT
#include "preload/next.h"

#include <dlfcn.h>

// The bounds of the section that VERBENA_NEXT fills; the linker defines them.
extern "C" {
extern verbena::preload::NextBase __start_verbena_next[];
extern verbena::preload::NextBase __stop_verbena_next[];
}

namespace verbena::preload {
namespace {

// Where old programs find what today's libc keeps only for them (__xstat and its family).
#if defined(__x86_64__)
constexpr const char* kOldVersions[] = {"GLIBC_2.2.5", "GLIBC_2.4"};
#else
constexpr const char* kOldVersions[] = {"GLIBC_2.17"};
#endif

[[gnu::constructor(101)]] void look_up_all() {
  for (NextBase* next = __start_verbena_next; next != __stop_verbena_next; ++next)
    next->get();
}

}  // namespace

void* NextBase::look_up() {
  void* found = dlsym(RTLD_NEXT, name_);
  for (const char* version : kOldVersions) {
    if (!found) found = dlvsym(RTLD_NEXT, name_, version);
  }
  found_.store(found, std::memory_order_relaxed);
  return found;
}

}  // namespace verbena::preload
