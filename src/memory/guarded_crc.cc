// SPDX-License-Identifier: MIT
#include "memory/guarded_crc.h"

#include "base/crc32_parts.h"
#include "base/crc32_x86_64.h"
#include "memory/guarded_copy.h"
#include "memory/guarded_x86_64.h"

namespace verbena::memory {
namespace {

#if defined(__x86_64__)

// Of a step.
struct Loaded256 {
  __m256i a;
  __m256i b;
  __m256i c;
  __m256i d;
};
struct Loaded512 {
  __m512i a;
  __m512i b;
  __m512i c;
  __m512i d;
};
constexpr std::size_t kStep256 = 128;
constexpr std::size_t kStep512 = 256;

// Names of their own for what is loaded: gcc 12 crashes over outputs in a struct.
#define LOAD_STEP(Register, move, one, two, three)                                                \
  Register a;                                                                                     \
  Register b;                                                                                     \
  Register c;                                                                                     \
  Register d;                                                                                     \
  asm volatile goto(GUARDED(move " (%[from]), %[a]\n " move " " one "(%[from]), %[b]\n" move      \
                                 " " two "(%[from]), %[c]\n " move " " three "(%[from]), %[d]\n") \
                    : [a] "=&v"(a), [b] "=&v"(b), [c] "=&v"(c), [d] "=&v"(d)                      \
                    : [from] "r"(from)                                                            \
                    : "memory"                                                                    \
                    : fault);                                                                     \
  into = {a, b, c, d};                                                                            \
  return true;                                                                                    \
  fault:                                                                                          \
  return false

USES_VPCLMUL_256 inline bool load_step(const std::byte* from, Loaded256& into) {
  LOAD_STEP(__m256i, "vmovdqu", "32", "64", "96");
}
USES_VPCLMUL_512 inline bool load_step(const std::byte* from, Loaded512& into) {
  LOAD_STEP(__m512i, "vmovdqu64", "64", "128", "192");
}

USES_VPCLMUL_256 inline void store_step(std::byte* to, const Loaded256& from) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), from.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), from.b);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 64), from.c);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 96), from.d);
}
USES_VPCLMUL_512 inline void store_step(std::byte* to, const Loaded512& from) {
  _mm512_storeu_si512(to, from.a);
  _mm512_storeu_si512(to + 64, from.b);
  _mm512_storeu_si512(to + 128, from.c);
  _mm512_storeu_si512(to + 192, from.d);
}

// Whole steps, at least one: what is loaded is stored and folded.
#define BY_STEPS(Loaded, step, by)                                             \
  for (std::size_t at = (step); at < length; at += (step)) {                   \
    Loaded next;                                                               \
    if (!load_step(from + at, next)) return false;                             \
    store_step(to + at, next);                                                 \
    sum.a = crc::fold(sum.a, by, next.a);                                      \
    sum.b = crc::fold(sum.b, by, next.b);                                      \
    sum.c = crc::fold(sum.c, by, next.c);                                      \
    sum.d = crc::fold(sum.d, by, next.d);                                      \
  }                                                                            \
  crc = crc::to_block(crc::narrow(crc::together(sum.a, sum.b, sum.c, sum.d))); \
  return true

USES_VPCLMUL_256 bool by_steps_256(std::byte* to, const std::byte* from, std::size_t length,
                                   CrcBlock& crc) {
  Loaded256 sum;
  if (!load_step(from, sum)) return false;
  store_step(to, sum);
  sum.a = _mm256_xor_si256(sum.a, _mm256_zextsi128_si256(crc::onto_next(crc)));
  const __m256i by = _mm256_broadcastsi128_si256(crc::multipliers(crc::kAhead1024));
  BY_STEPS(Loaded256, kStep256, by);
}
USES_VPCLMUL_512 bool by_steps_512(std::byte* to, const std::byte* from, std::size_t length,
                                   CrcBlock& crc) {
  Loaded512 sum;
  if (!load_step(from, sum)) return false;
  store_step(to, sum);
  sum.a = _mm512_xor_si512(sum.a, _mm512_zextsi128_si512(crc::onto_next(crc)));
  const __m512i by = _mm512_broadcast_i32x4(crc::multipliers(crc::kAhead2048));
  BY_STEPS(Loaded512, kStep512, by);
}

// How many bytes are best copied and folded in one pass.
std::size_t in_one_pass(std::size_t length) {
  switch (crc::folding()) {
    case crc::Folding::k512: return length - length % kStep512;
    case crc::Folding::k256: return length - length % kStep256;
    case crc::Folding::k128:
    case crc::Folding::kTables: break;
  }
  return 0;
}
bool by_steps(std::byte* to, const std::byte* from, std::size_t length, CrcBlock& crc) {
  return crc::folding() == crc::Folding::k512 ? by_steps_512(to, from, length, crc)
                                              : by_steps_256(to, from, length, crc);
}

#else

std::size_t in_one_pass(std::size_t) { return 0; }
bool by_steps(std::byte*, const std::byte*, std::size_t, CrcBlock&) { return false; }

#endif

}  // namespace

bool guarded_copy_and_crc(std::byte* to, const std::byte* from, std::size_t length, CrcBlock& crc) {
  const std::size_t first = in_one_pass(length);
  if (first != 0 && !by_steps(to, from, first, crc)) return false;
  if (!guarded_copy(to + first, from + first, length - first)) return false;
  crc = crc_fold(crc, {to + first, length - first});
  return true;
}

}  // namespace verbena::memory
