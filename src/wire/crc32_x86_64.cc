// SPDX-License-Identifier: MIT
// The CRC by carry-less multiplication; the portable twin is crc32_portable.cc.
//
// A block of 16 bytes stands for H x^64 + L. To move it D bits ahead, onto a later block, it is
// enough to add  H (x^(D+64) mod G) + L (x^D mod G)  there (Gopal and others, "Fast CRC computation
// for generic polynomials using PCLMULQDQ", Intel 2009): two multiplications, and many blocks at a
// time. Numbers are bit-reversed: the first eight bytes are H
// and the lower half of a register; a 32-bit remainder in 64 bits stands x^32 too high, hence the
// 32 off below; a product comes out one bit low, hence the shift.
//
// No tables here but 48 bytes of shuffles: between two packets payload pushes larger ones out of
// the nearest caches, and then they cost more than the folding. The last block is reduced by
// Barrett's method, as in the paper.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>

#include "wire/crc32_parts.h"

// gcc 12 warns of its own header, where it means "any value" (bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"

// What the compiler may use in a function, whatever it is told for the rest of the file.
#define USES_PCLMUL __attribute__((target("sse2,ssse3,sse4.1,pclmul")))
#define USES_VPCLMUL __attribute__((target("sse2,ssse3,sse4.1,pclmul,avx512f,avx512vl,vpclmulqdq")))

namespace verbena::wire::crc {
namespace {

struct Multipliers {
  std::uint64_t high;
  std::uint64_t low;
};

constexpr Multipliers ahead(unsigned bits) {
  return {std::uint64_t{power(bits + 32)} << 1, std::uint64_t{power(bits - 32)} << 1};
}
constexpr Multipliers kAhead128 = ahead(128);
constexpr Multipliers kAhead512 = ahead(512);
constexpr Multipliers kAhead2048 = ahead(2048);
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

// The quotient of x^64 by the generator.
constexpr std::uint64_t quotient() {
  constexpr std::uint64_t kPlain = 0x104C11DB7;  // the generator, not reversed
  std::uint64_t result = 0;
  std::uint64_t rest = std::uint64_t{1} << 32;
  for (int bit = 0; bit <= 32; ++bit, rest <<= 1) {
    if ((rest >> 32 & 1) == 0) continue;
    result |= std::uint64_t{1} << bit;
    rest ^= kPlain;
  }
  return result;
}
constexpr std::uint64_t kQuotient = quotient();
constexpr std::uint64_t kWholeGenerator = std::uint64_t{kGenerator} << 1 | 1;
constexpr std::uint64_t kAhead64 = std::uint64_t{power(64)} << 1;
static_assert(kQuotient == 0x1F7011641 && kWholeGenerator == 0x1DB710641 &&
              kAhead64 == 0x163CD6124);

// The remainder of a block with 32 zeros behind it: the raw state after its bytes.
USES_PCLMUL inline std::uint32_t reduce(__m128i block) {
  const __m128i lower = pair(0xFFFFFFFF, 0xFFFFFFFF);
  // 128 bits to 96, to 64.
  const __m128i high = _mm_clmulepi64_si128(block, multipliers(kAhead128), 0x10);
  __m128i rest = _mm_xor_si128(_mm_srli_si128(block, 8), high);
  const __m128i upper = _mm_srli_si128(rest, 4);
  rest = _mm_clmulepi64_si128(_mm_and_si128(rest, lower), pair(kAhead64, 0), 0x00);
  rest = _mm_xor_si128(rest, upper);
  // What the generator goes into it, times the generator.
  const __m128i by = pair(kWholeGenerator, kQuotient);
  __m128i times = _mm_clmulepi64_si128(_mm_and_si128(rest, lower), by, 0x10);
  times = _mm_clmulepi64_si128(_mm_and_si128(times, lower), by, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(rest, times), 1));
}

// Loaded from [n], it moves a block's bytes 16 - n places up; from [16 + n], n places down. Zeros
// follow.
constexpr auto kShifts = [] {
  std::array<std::uint8_t, 48> shifts{};
  shifts.fill(0x80);
  for (std::uint8_t i = 0; i < 16; ++i)
    shifts[16 + i] = i;
  return shifts;
}();
USES_PCLMUL inline __m128i shift(std::size_t n) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(kShifts.data() + n));
}

// What follows `block`, 16 bytes at a time. At least 16 bytes stand before the end.
USES_PCLMUL inline std::uint32_t finish(__m128i block, const std::byte* bytes, std::size_t count) {
  const __m128i by = multipliers(kAhead128);
  for (; count >= 16; count -= 16, bytes += 16)
    block = fold(block, by, load(bytes));
  if (count == 0) return reduce(block);
  // The block and the rest as two blocks that end where the rest ends. Zeros in front count
  // nothing.
  const __m128i up = shift(count);
  const __m128i last = load(bytes + count - 16);
  const __m128i rest = _mm_andnot_si128(_mm_cmplt_epi8(up, _mm_setzero_si128()), last);
  const __m128i second = _mm_or_si128(_mm_shuffle_epi8(block, shift(16 + count)), rest);
  return reduce(fold(_mm_shuffle_epi8(block, up), by, second));
}

// 4 to 15 bytes. Of fewer than eight, what the second half of the state would be added to lies
// behind the block.
USES_PCLMUL std::uint32_t by_less(std::uint64_t state, const std::byte* bytes, std::size_t count) {
  alignas(16) std::byte block[24]{};
  std::memcpy(block + 16 - count, bytes, count);
  std::uint64_t first = 0;
  std::memcpy(&first, block + 16 - count, sizeof first);
  first ^= state;
  std::memcpy(block + 16 - count, &first, sizeof first);
  return reduce(load(block));
}

// The blocks have names, for gcc 12 keeps an array of them in memory.
// At least 16 bytes.
USES_PCLMUL std::uint32_t by_128(std::uint64_t state, const std::byte* bytes, std::size_t count) {
  __m128i a = _mm_xor_si128(load(bytes), pair(state, 0));
  if (count < 64) return finish(a, bytes + 16, count - 16);
  __m128i b = load(bytes + 16);
  __m128i c = load(bytes + 32);
  __m128i d = load(bytes + 48);
  const __m128i by = multipliers(kAhead512);
  for (count -= 64, bytes += 64; count >= 64; count -= 64, bytes += 64) {
    a = fold(a, by, load(bytes));
    b = fold(b, by, load(bytes + 16));
    c = fold(c, by, load(bytes + 32));
    d = fold(d, by, load(bytes + 48));
  }
  const __m128i next = multipliers(kAhead128);
  return finish(fold(fold(fold(a, next, b), next, c), next, d), bytes, count);
}

USES_VPCLMUL inline __m512i load_wide(const std::byte* bytes) { return _mm512_loadu_si512(bytes); }

USES_VPCLMUL inline __m512i fold_wide(__m512i block, __m512i by, __m512i onto) {
  const __m512i high = _mm512_clmulepi64_epi128(block, by, 0x00);
  const __m512i low = _mm512_clmulepi64_epi128(block, by, 0x11);
  return _mm512_ternarylogic_epi64(high, low, onto, 0x96);  // the sum of the three
}

constexpr std::size_t kWideMin = 256;

// At least kWideMin bytes.
USES_VPCLMUL std::uint32_t by_512(std::uint64_t state, const std::byte* bytes, std::size_t count) {
  const __m512i start = _mm512_zextsi128_si512(pair(state, 0));
  __m512i a = _mm512_xor_si512(load_wide(bytes), start);
  __m512i b = load_wide(bytes + 64);
  __m512i c = load_wide(bytes + 128);
  __m512i d = load_wide(bytes + 192);
  const __m512i by = _mm512_broadcast_i32x4(multipliers(kAhead2048));
  for (count -= 256, bytes += 256; count >= 256; count -= 256, bytes += 256) {
    a = fold_wide(a, by, load_wide(bytes));
    b = fold_wide(b, by, load_wide(bytes + 64));
    c = fold_wide(c, by, load_wide(bytes + 128));
    d = fold_wide(d, by, load_wide(bytes + 192));
  }
  const __m512i next = _mm512_broadcast_i32x4(multipliers(kAhead512));
  d = fold_wide(fold_wide(fold_wide(a, next, b), next, c), next, d);
  for (; count >= 64; count -= 64, bytes += 64)
    d = fold_wide(d, next, load_wide(bytes));
  const __m128i step = multipliers(kAhead128);
  __m128i one = _mm512_extracti32x4_epi32(d, 0);
  one = fold(one, step, _mm512_extracti32x4_epi32(d, 1));
  one = fold(one, step, _mm512_extracti32x4_epi32(d, 2));
  one = fold(one, step, _mm512_extracti32x4_epi32(d, 3));
  return finish(one, bytes, count);
}

enum class Processor : std::uint8_t { kUnknown, kTables, kFolds128, kFolds512 };

Processor look() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) {
    return Processor::kTables;
  }
  const bool is_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("vpclmulqdq");
  return is_wide ? Processor::kFolds512 : Processor::kFolds128;
}

const Processor kProcessor = look();  // before that it is kUnknown, and the tables do

}  // namespace

std::uint32_t by_folding(std::uint64_t state, const std::byte* bytes, std::size_t count) {
  switch (kProcessor) {
    case Processor::kFolds512:
      if (count >= kWideMin) return by_512(state, bytes, count);
      [[fallthrough]];
    case Processor::kFolds128:
      return count < 16 ? by_less(state, bytes, count) : by_128(state, bytes, count);
    case Processor::kUnknown:
    case Processor::kTables: return by_tables(state, bytes, count);
  }
  return by_tables(state, bytes, count);
}

}  // namespace verbena::wire::crc

#endif  // __x86_64__
