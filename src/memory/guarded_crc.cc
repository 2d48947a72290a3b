// SPDX-License-Identifier: MIT
#include "memory/guarded_crc.h"

#include "base/crc32_x86_64.h"
#include "memory/guarded_copy.h"
#include "memory/guarded_x86_64.h"

namespace verbena::memory {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kStep = 256;

struct Loaded {
  __m512i a;
  __m512i b;
  __m512i c;
  __m512i d;
};

// Names of their own for what is loaded: gcc 12 crashes over outputs in a struct.
USES_VPCLMUL inline bool load_step(const std::byte* from, Loaded& into) {
  __m512i a;
  __m512i b;
  __m512i c;
  __m512i d;
  asm volatile goto(GUARDED("vmovdqu64 (%[from]), %[a]\n vmovdqu64 64(%[from]), %[b]\n"
                            "vmovdqu64 128(%[from]), %[c]\n vmovdqu64 192(%[from]), %[d]\n")
                    : [a] "=&v"(a), [b] "=&v"(b), [c] "=&v"(c), [d] "=&v"(d)
                    : [from] "r"(from)
                    : "memory"
                    : fault);
  into = {a, b, c, d};
  return true;
fault:
  return false;
}

USES_VPCLMUL inline void store_step(std::byte* to, const Loaded& from) {
  _mm512_storeu_si512(to, from.a);
  _mm512_storeu_si512(to + 64, from.b);
  _mm512_storeu_si512(to + 128, from.c);
  _mm512_storeu_si512(to + 192, from.d);
}

// Whole steps, at least one: what is loaded is stored and folded.
USES_VPCLMUL bool by_steps(std::byte* to, const std::byte* from, std::size_t length,
                           CrcBlock& crc) {
  Loaded sum;
  if (!load_step(from, sum)) return false;
  store_step(to, sum);
  sum.a = _mm512_xor_si512(sum.a, _mm512_zextsi128_si512(crc::onto_next(crc)));
  const __m512i by = _mm512_broadcast_i32x4(crc::multipliers(crc::kAhead2048));
  for (std::size_t at = kStep; at < length; at += kStep) {
    Loaded next;
    if (!load_step(from + at, next)) return false;
    store_step(to + at, next);
    sum.a = crc::fold_wide(sum.a, by, next.a);
    sum.b = crc::fold_wide(sum.b, by, next.b);
    sum.c = crc::fold_wide(sum.c, by, next.c);
    sum.d = crc::fold_wide(sum.d, by, next.d);
  }
  crc = crc::to_block(crc::narrow(crc::together(sum.a, sum.b, sum.c, sum.d)));
  return true;
}

// How many bytes are best copied and folded in one pass.
std::size_t in_one_pass(std::size_t length) {
  return crc::folds_512() ? length - length % kStep : 0;
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
