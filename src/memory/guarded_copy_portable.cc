// SPDX-License-Identifier: MIT
// Guarded accesses in portable C++, for processors other than x86-64 (guarded_copy_x86_64.cc).
#include <atomic>
#include <cstdint>
#include <cstring>

#include "memory/fault_guard.h"
#include "memory/guarded_copy.h"

namespace verbena::memory {
namespace portable {
namespace {

// The sanitizers do not look at these functions, and have their own idea of memcpy.
#if defined(VERBENA_SANITIZED)
#if defined(__clang__)
// Atomics too: a fault inside the thread sanitizer's would leave it locked.
#define VERBENA_UNSEEN_ATOMICS __attribute__((disable_sanitizer_instrumentation))
#else
#define VERBENA_UNSEEN_ATOMICS
#endif
#define VERBENA_UNSEEN \
  VERBENA_UNSEEN_ATOMICS __attribute__((noinline, no_sanitize("address", "thread", "undefined")))
VERBENA_UNSEEN void copy_unordered(std::byte* to, const std::byte* from, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    *reinterpret_cast<volatile std::byte*>(to + i) = from[i];
  }
}
#else
#define VERBENA_UNSEEN
void copy_unordered(std::byte* to, const std::byte* from, std::size_t length) {
  std::memcpy(to, from, length);
}
#endif

// Runs `access` with faults coming back here as false. Nothing in it may need a destructor. The
// thread-local pointer is set for these few instructions only, and a guarded access never calls
// another.
template <class Access>
[[gnu::noinline]] bool guarded(Access access) {
  sigjmp_buf here;
  if (sigsetjmp(here, 0) != 0) {
    fault_return = nullptr;
    return false;
  }
  fault_return = &here;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  access();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  fault_return = nullptr;
  return true;
}

// One store where the bytes are a whole word.
template <class Word>
VERBENA_UNSEEN bool store_whole(std::byte* to, const std::byte* from, std::size_t length) {
  if (length != sizeof(Word) || reinterpret_cast<std::uintptr_t>(to) % sizeof(Word) != 0) {
    return false;
  }
  Word word = 0;
  copy_unordered(reinterpret_cast<std::byte*>(&word), from, sizeof word);
  *reinterpret_cast<volatile Word*>(to) = word;
  return true;
}

VERBENA_UNSEEN void store_tail(std::byte* to, const std::byte* from, std::size_t length) {
  if (store_whole<std::uint64_t>(to, from, length) ||
      store_whole<std::uint32_t>(to, from, length) ||
      store_whole<std::uint16_t>(to, from, length)) {
    return;
  }
  for (std::size_t i = 0; i < length; ++i) {
    std::atomic_thread_fence(std::memory_order_release);
    *reinterpret_cast<volatile std::byte*>(to + i) = from[i];
  }
}

VERBENA_UNSEEN std::uint64_t fetch_add(std::byte* word, std::uint64_t operand) {
  return __atomic_fetch_add(reinterpret_cast<std::uint64_t*>(word), operand, __ATOMIC_SEQ_CST);
}

VERBENA_UNSEEN std::uint64_t compare_swap(std::byte* word, std::uint64_t expected,
                                          std::uint64_t wanted) {
  __atomic_compare_exchange_n(reinterpret_cast<std::uint64_t*>(word), &expected, wanted, false,
                              __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

}  // namespace

bool guarded_copy(std::byte* to, const std::byte* from, std::size_t length) {
  if (length == 0) return true;
  std::size_t tail = ((reinterpret_cast<std::uintptr_t>(to) + length - 1) & 7) + 1;
  if (tail > length) tail = length;
  const std::size_t head = length - tail;
  return guarded([=] {
    copy_unordered(to, from, head);
    std::atomic_thread_fence(std::memory_order_release);
    store_tail(to + head, from + head, tail);
  });
}

bool guarded_fetch_add(std::byte* word, std::uint64_t operand, std::uint64_t& before) {
  volatile std::uint64_t value = 0;  // kept over the jump
  const bool done = guarded([&] { value = fetch_add(word, operand); });
  if (done) before = value;
  return done;
}

bool guarded_compare_swap(std::byte* word, std::uint64_t expected, std::uint64_t wanted,
                          std::uint64_t& before) {
  volatile std::uint64_t value = 0;  // kept over the jump
  const bool done = guarded([&] { value = compare_swap(word, expected, wanted); });
  if (done) before = value;
  return done;
}

}  // namespace portable

#if !defined(__x86_64__)
bool guarded_copy(std::byte* to, const std::byte* from, std::size_t length) {
  return portable::guarded_copy(to, from, length);
}
bool guarded_fetch_add(std::byte* word, std::uint64_t operand, std::uint64_t& before) {
  return portable::guarded_fetch_add(word, operand, before);
}
bool guarded_compare_swap(std::byte* word, std::uint64_t expected, std::uint64_t wanted,
                          std::uint64_t& before) {
  return portable::guarded_compare_swap(word, expected, wanted, before);
}
#endif

}  // namespace verbena::memory
