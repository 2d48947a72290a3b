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

template <class Word>
bool store_whole(std::byte* to, const std::byte* from, std::size_t length) {
  if (length != sizeof(Word) || reinterpret_cast<std::uintptr_t>(to) % sizeof(Word) != 0) {
    return false;
  }
  Word word;
  std::memcpy(&word, from, sizeof word);
  std::atomic_ref<Word>(*reinterpret_cast<Word*>(to)).store(word, std::memory_order_release);
  return true;
}

void store_tail(std::byte* to, const std::byte* from, std::size_t length) {
  if (store_whole<std::uint64_t>(to, from, length) ||
      store_whole<std::uint32_t>(to, from, length) ||
      store_whole<std::uint16_t>(to, from, length)) {
    return;
  }
  for (std::size_t i = 0; i < length; ++i) {
    const auto value = static_cast<std::uint8_t>(from[i]);
    std::atomic_ref<std::uint8_t>(reinterpret_cast<std::uint8_t&>(to[i]))
        .store(value, std::memory_order_release);
  }
}

}  // namespace

bool guarded_copy(std::byte* to, const std::byte* from, std::size_t length) {
  if (length == 0) return true;
  std::size_t tail = ((reinterpret_cast<std::uintptr_t>(to) + length - 1) & 7) + 1;
  if (tail > length) tail = length;
  const std::size_t head = length - tail;
  return guarded([=] {
    std::memcpy(to, from, head);
    store_tail(to + head, from + head, tail);
  });
}

bool guarded_fetch_add(std::byte* word, std::uint64_t operand, std::uint64_t& before) {
  std::uint64_t value = 0;
  const bool done = guarded([&] {
    value = std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(word))
                .fetch_add(operand, std::memory_order_seq_cst);
  });
  if (done) before = value;
  return done;
}

bool guarded_compare_swap(std::byte* word, std::uint64_t expected, std::uint64_t wanted,
                          std::uint64_t& before) {
  std::uint64_t value = expected;
  const bool done = guarded([&] {
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(word))
        .compare_exchange_strong(value, wanted, std::memory_order_seq_cst);
  });
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
