// SPDX-License-Identifier: MIT
// libc's own functions, behind ours.
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace verbena::rspreload {

// Finds the next one of that name, once.
template <class Function>
class Real {
 public:
  explicit constexpr Real(const char* name) : name_(name) {}
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    void* found = found_.load(std::memory_order_acquire);
    if (!found) {
      found = dlsym(RTLD_NEXT, name_);
      found_.store(found, std::memory_order_release);
    }
    return reinterpret_cast<Function*>(found)(arguments...);
  }

 private:
  const char* name_;
  std::atomic<void*> found_{nullptr};
};

}  // namespace verbena::rspreload
