// SPDX-License-Identifier: MIT
// The CRC by carry-less multiplication: the steps that crc32_x86_64.cc is made of, for those who
// fold what they have just loaded for something else.
//
// A block of 16 bytes stands for H x^64 + L. To move it D bits ahead, onto a later block, it is
// enough to add  H (x^(D+64) mod G) + L (x^D mod G)  there (Gopal and others, "Fast CRC computation
// for generic polynomials using PCLMULQDQ", Intel 2009): two multiplications, and many blocks at a
// time. Numbers are bit-reversed: the first eight bytes are H
// and the lower half of a register; a 32-bit remainder in 64 bits stands x^32 too high, hence the
// 32 off below; a product comes out one bit low, hence the shift.
#pragma once
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/crc32_parts.h"

// gcc 12 warns of its own header, where it means "any value" (bug 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// What the compiler may use in a function, whatever it is told for the rest of the file: of
// processors that fold 128 bits at a time, 256, or 512 (crc32_parts.h).
#define USES_PCLMUL __attribute__((target("sse2,ssse3,sse4.1,pclmul")))
#define USES_VPCLMUL_256 __attribute__((target("sse2,ssse3,sse4.1,pclmul,avx2,vpclmulqdq")))
#define USES_VPCLMUL_512 \
  __attribute__((target("sse2,ssse3,sse4.1,pclmul,avx2,avx512f,avx512vl,vpclmulqdq")))

namespace verbena::crc {

struct Multipliers {
  std::uint64_t high;
  std::uint64_t low;
};

constexpr Multipliers ahead(unsigned bits) {
  return {std::uint64_t{power(bits + 32)} << 1, std::uint64_t{power(bits - 32)} << 1};
}
inline constexpr Multipliers kAhead128 = ahead(128);
inline constexpr Multipliers kAhead256 = ahead(256);
inline constexpr Multipliers kAhead512 = ahead(512);
inline constexpr Multipliers kAhead1024 = ahead(1024);
inline constexpr Multipliers kAhead2048 = ahead(2048);
// As the paper and other implementations have them.
static_assert(kAhead128.high == 0x1751997D0 && kAhead128.low == 0x0CCAA009E);
static_assert(kAhead512.high == 0x154442BD4 && kAhead512.low == 0x1C6E41596);

USES_PCLMUL inline __m128i load(const std::byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

USES_PCLMUL inline __m128i multipliers(Multipliers by) {
  return _mm_set_epi64x(static_cast<long long>(by.low), static_cast<long long>(by.high));
}

USES_PCLMUL inline __m128i fold(__m128i block, __m128i by, __m128i onto) {
  const __m128i high = _mm_clmulepi64_si128(block, by, 0x00);
  const __m128i low = _mm_clmulepi64_si128(block, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(high, low), onto);
}

USES_PCLMUL inline __m128i pair(std::uint64_t first, std::uint64_t second) {
  return _mm_set_epi64x(static_cast<long long>(second), static_cast<long long>(first));
}

// -- 256 bits, where processors have no wider ones, and 512
USES_VPCLMUL_256 inline __m256i load_256(const std::byte* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}
USES_VPCLMUL_512 inline __m512i load_512(const std::byte* bytes) {
  return _mm512_loadu_si512(bytes);
}

USES_VPCLMUL_256 inline __m256i fold(__m256i block, __m256i by, __m256i onto) {
  const __m256i high = _mm256_clmulepi64_epi128(block, by, 0x00);
  const __m256i low = _mm256_clmulepi64_epi128(block, by, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(high, low), onto);
}
USES_VPCLMUL_512 inline __m512i fold(__m512i block, __m512i by, __m512i onto) {
  const __m512i high = _mm512_clmulepi64_epi128(block, by, 0x00);
  const __m512i low = _mm512_clmulepi64_epi128(block, by, 0x11);
  return _mm512_ternarylogic_epi64(high, low, onto, 0x96);  // the sum of the three
}

// Four blocks that follow each other, onto the last.
USES_VPCLMUL_256 inline __m256i together(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i next = _mm256_broadcastsi128_si256(multipliers(kAhead256));
  return fold(fold(fold(a, next, b), next, c), next, d);
}
USES_VPCLMUL_512 inline __m512i together(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i next = _mm512_broadcast_i32x4(multipliers(kAhead512));
  return fold(fold(fold(a, next, b), next, c), next, d);
}

// 32 or 64 bytes onto their last 16.
USES_VPCLMUL_256 inline __m128i narrow(__m256i block) {
  return fold(_mm256_castsi256_si128(block), multipliers(kAhead128),
              _mm256_extracti128_si256(block, 1));
}
USES_VPCLMUL_512 inline __m128i narrow(__m512i block) {
  const __m128i step = multipliers(kAhead128);
  __m128i one = _mm512_extracti32x4_epi32(block, 0);
  one = fold(one, step, _mm512_extracti32x4_epi32(block, 1));
  one = fold(one, step, _mm512_extracti32x4_epi32(block, 2));
  return fold(one, step, _mm512_extracti32x4_epi32(block, 3));
}

// What is to be added to the 16 bytes behind a block, and a block.
USES_PCLMUL inline __m128i onto_next(const CrcBlock& before) {
  return fold(load(before.bytes.data()), multipliers(kAhead128), _mm_setzero_si128());
}
USES_PCLMUL inline CrcBlock to_block(__m128i block) {
  CrcBlock result;
  _mm_store_si128(reinterpret_cast<__m128i*>(result.bytes.data()), block);
  return result;
}

}  // namespace verbena::crc

#endif  // __x86_64__
