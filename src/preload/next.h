// SPDX-License-Identifier: MIT
// The next definition of a libc function: what we call with the path that we have rewritten, or
// untouched. It may be another preloaded library's, so RTLD_NEXT finds it and not a system call.
//
// All are looked up by a constructor, because dlsym may not be called in a signal handler; who
// calls earlier (constructors of other libraries) looks up then.
#pragma once

#include <atomic>
#include <cerrno>
#include <type_traits>

namespace verbena::preload {

class NextBase {
 public:
  constexpr explicit NextBase(const char* name) : name_(name) {}
  void* get() {
    void* found = found_.load(std::memory_order_relaxed);
    return found ? found : look_up();
  }
  // Calling it looks nothing up.
  bool is_known() const { return found_.load(std::memory_order_relaxed) != nullptr; }

 private:
  void* look_up();

  const char* name_;
  std::atomic<void*> found_{nullptr};
};

template <class Function>
class Next : public NextBase {
 public:
  using NextBase::NextBase;

  // Fails with ENOSYS where this libc has no such function.
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    using Returned = std::invoke_result_t<Function*, Arguments...>;
    auto* function = reinterpret_cast<Function*>(get());
    if (!function) [[unlikely]] {
      errno = ENOSYS;
      return failure<Returned>();
    }
    return function(arguments...);
  }

 private:
  template <class Returned>
  static Returned failure() {
    if constexpr (std::is_pointer_v<Returned>) {
      return nullptr;
    } else {
      return Returned{-1};
    }
  }
};

}  // namespace verbena::preload

// Declares next_<name>. The section gathers all of them, so that the constructor finds them.
#define VERBENA_NEXT(name, ...)                                                                  \
  [[gnu::section("verbena_next")]] constinit ::verbena::preload::Next<__VA_ARGS__> next_##name { \
    #name                                                                                        \
  }

// Defines a function of libc under a name of our own: libc's headers promise that paths are never
// null, and the compiler would take our checks away.
#define VERBENA_WRAP(name) asm(#name) __attribute__((visibility("default")))
