// SPDX-License-Identifier: MIT
// Guarded accesses for x86-64; the portable twin is guarded_copy_portable.cc.
//
// A copy is a head and a tail. The tail is what lies in the last aligned word of 8 bytes of the
// target, so it is stored with whole instructions that cross no cache line; stores become visible
// in the order of the program (x86 is TSO), so it appears after the head however that is made. The
// head goes in ascending pieces, largest first; when long, by the string move, whose own stores
// have no order among them but come before every later store (Intel SDM vol 3, 9.2.4).
#if defined(__x86_64__)

#include <cpuid.h>

#include <cstdint>

#include "base/short_copy.h"
#include "memory/guarded_copy.h"
#include "memory/guarded_x86_64.h"

// One piece: all of it is loaded, then stored.
#define DEFINE_MOVE(name, instructions, ...)                                      \
  [[gnu::always_inline]] inline bool name(std::byte* to, const std::byte* from) { \
    asm goto(GUARDED(instructions)                                                \
             :                                                                    \
             : [to] "r"(to), [from] "r"(from)                                     \
             : "memory", __VA_ARGS__                                              \
             : fault);                                                            \
    return true;                                                                  \
  fault:                                                                          \
    return false;                                                                 \
  }

namespace verbena::memory {
namespace {

DEFINE_MOVE(move_1, "movb (%[from]), %%al\n movb %%al, (%[to])\n", "rax")
DEFINE_MOVE(move_2, "movw (%[from]), %%ax\n movw %%ax, (%[to])\n", "rax")
DEFINE_MOVE(move_4, "movl (%[from]), %%eax\n movl %%eax, (%[to])\n", "rax")
DEFINE_MOVE(move_8, "movq (%[from]), %%rax\n movq %%rax, (%[to])\n", "rax")
DEFINE_MOVE(move_16, "movups (%[from]), %%xmm0\n movups %%xmm0, (%[to])\n", "xmm0")
DEFINE_MOVE(move_32,
            "movups (%[from]), %%xmm0\n movups 16(%[from]), %%xmm1\n"
            "movups %%xmm0, (%[to])\n movups %%xmm1, 16(%[to])\n",
            "xmm0", "xmm1")
DEFINE_MOVE(move_64,
            "movups (%[from]), %%xmm0\n movups 16(%[from]), %%xmm1\n"
            "movups 32(%[from]), %%xmm2\n movups 48(%[from]), %%xmm3\n"
            "movups %%xmm0, (%[to])\n movups %%xmm1, 16(%[to])\n"
            "movups %%xmm2, 32(%[to])\n movups %%xmm3, 48(%[to])\n",
            "xmm0", "xmm1", "xmm2", "xmm3")

// For processors with AVX: the upper halves are left clean, as the calling convention asks.
DEFINE_MOVE(move_128,
            "vmovdqu (%[from]), %%ymm0\n vmovdqu 32(%[from]), %%ymm1\n"
            "vmovdqu 64(%[from]), %%ymm2\n vmovdqu 96(%[from]), %%ymm3\n"
            "vmovdqu %%ymm0, (%[to])\n vmovdqu %%ymm1, 32(%[to])\n"
            "vmovdqu %%ymm2, 64(%[to])\n vmovdqu %%ymm3, 96(%[to])\n",
            "xmm0", "xmm1", "xmm2", "xmm3")

bool move_string(std::byte* to, const std::byte* from, std::size_t length) {
  asm goto("movq %[to], %%rdi\n movq %[from], %%rsi\n movq %[length], %%rcx\n"  //
           GUARDED("rep movsb\n")
           :
           : [to] "r"(to), [from] "r"(from), [length] "r"(length)
           : "memory", "rdi", "rsi", "rcx"
           : fault);
  return true;
fault:
  return false;
}

// What this processor does well. All false (always right) until the library is initialised.
struct Processor {
  bool has_avx = false;
  bool has_fast_string = false;
  bool prefers_string = false;
};

Processor detect() {
  __builtin_cpu_init();
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d);
  constexpr unsigned kErms = 1u << 9;
  const bool is_intel = __builtin_cpu_is("intel") != 0;
  return {.has_avx = __builtin_cpu_supports("avx") != 0,
          .has_fast_string = known && (b & kErms),
          .prefers_string = is_intel && short_copy().is_by_string};
}

const Processor kProcessor = detect();

#define MOVE_IF(bytes)                         \
  if (length & (bytes)) {                      \
    if (!move_##bytes(to, from)) return false; \
    to += bytes;                               \
    from += bytes;                             \
  }

bool move_tail(std::byte* to, const std::byte* from, std::size_t length) {
  if (length == 8) return move_8(to, from);
  MOVE_IF(4)
  MOVE_IF(2)
  return !(length & 1) || move_1(to, from);
}

bool move_short(std::byte* to, const std::byte* from, std::size_t length) {
  for (; length >= 64; length -= 64, to += 64, from += 64) {
    if (!move_64(to, from)) return false;
  }
  MOVE_IF(32)
  MOVE_IF(16)
  MOVE_IF(8)
  MOVE_IF(4)
  MOVE_IF(2)
  return !(length & 1) || move_1(to, from);
}

constexpr std::size_t kVectorMin = 256;
// Measured on a Zen 5, GB/s at 4, 16, 24, 32, 64 KiB: vectors 213, 215, 198, 113, 107; string move
// and glibc's memcpy 154, 177, 182, 182, 139. Half of its first cache holds 24 KiB.
constexpr std::size_t kStringMin = 24 * 1024;
// Intel's with fast short moves (FSRM), measured on an Emerald Rapids, GB/s at 1, 2, 4, 16 KiB:
// vectors 144, 170, 167, 170; string move 70, 117, 174, 180; at 16 KiB to where the target is not
// aligned 42 and 95. While the other thread of a core uses its first cache, vectors get a half of
// what string moves get.
constexpr std::size_t kPreferredStringMin = 4 * 1024 - sizeof(std::uint64_t);  // and a tail
// AMD's processors (measured on a Zen 3: 2 GB/s instead of 40) move strings slowly to where the
// last twelve bits of the address are a little larger than those of the source.
constexpr std::uintptr_t kSlowAhead = 64;

bool is_good_for_string(const std::byte* to, const std::byte* from, std::size_t length) {
  const std::uintptr_t ahead =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) & 0xFFF;
  if (kProcessor.prefers_string) return length >= kPreferredStringMin;
  return kProcessor.has_fast_string && length >= kStringMin && (ahead == 0 || ahead >= kSlowAhead);
}

bool move_long(std::byte* to, const std::byte* from, std::size_t length) {
  if (is_good_for_string(to, from, length)) return move_string(to, from, length);
  if (kProcessor.has_avx) {
    bool done = true;
    for (; done && length >= 128; length -= 128, to += 128, from += 128)
      done = move_128(to, from);
    asm volatile("vzeroupper" ::: "xmm0", "xmm1", "xmm2", "xmm3");
    if (!done) return false;
  }
  return move_short(to, from, length);
}

bool move_head(std::byte* to, const std::byte* from, std::size_t length) {
  return length < kVectorMin ? move_short(to, from, length) : move_long(to, from, length);
}

}  // namespace

bool guarded_copy(std::byte* to, const std::byte* from, std::size_t length) {
  if (length == 0) return true;
  const std::size_t in_last_word = ((reinterpret_cast<std::uintptr_t>(to) + length - 1) & 7) + 1;
  if (length <= in_last_word) return move_tail(to, from, length);
  const std::size_t head = length - in_last_word;
  return move_head(to, from, head) && move_tail(to + head, from + head, in_last_word);
}

bool guarded_fetch_add(std::byte* word, std::uint64_t operand, std::uint64_t& before) {
  asm goto(GUARDED("lock xaddq %[operand], (%[word])\n")
           : [operand] "+r"(operand)
           : [word] "r"(word)
           : "memory", "cc"
           : fault);
  before = operand;
  return true;
fault:
  return false;
}

bool guarded_compare_swap(std::byte* word, std::uint64_t expected, std::uint64_t wanted,
                          std::uint64_t& before) {
  asm goto(GUARDED("lock cmpxchgq %[wanted], (%[word])\n")
           : [expected] "+a"(expected)
           : [word] "r"(word), [wanted] "r"(wanted)
           : "memory", "cc"
           : fault);
  before = expected;
  return true;
fault:
  return false;
}

}  // namespace verbena::memory

#endif
