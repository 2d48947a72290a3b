// SPDX-License-Identifier: MIT
// The CRC by carry-less multiplication (crc32_x86_64.h); the portable twin is crc32_portable.cc.
//
// No tables here but 48 bytes of shuffles: between two packets payload pushes larger ones out of
// the nearest caches, and then they cost more than the folding. The last block is reduced by
// Barrett's method, as in the paper.
#include "base/crc32_x86_64.h"

#if defined(__x86_64__)

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace verbena::crc {
namespace {

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

// What follows `block`, 16 bytes at a time, onto the last 16. At least 16 bytes stand before the
// end.
USES_PCLMUL inline __m128i fold_rest(__m128i block, const std::byte* bytes, std::size_t count) {
  const __m128i by = multipliers(kAhead128);
  for (; count >= 16; count -= 16, bytes += 16)
    block = fold(block, by, load(bytes));
  if (count == 0) return block;
  // The block and the rest as two blocks that end where the rest ends. Zeros in front count
  // nothing.
  const __m128i up = shift(count);
  const __m128i last = load(bytes + count - 16);
  const __m128i rest = _mm_andnot_si128(_mm_cmplt_epi8(up, _mm_setzero_si128()), last);
  const __m128i second = _mm_or_si128(_mm_shuffle_epi8(block, shift(16 + count)), rest);
  return fold(_mm_shuffle_epi8(block, up), by, second);
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
// At least 16 bytes, the first 16 of which count as their sum with `added`.
USES_PCLMUL __m128i by_128(__m128i added, const std::byte* bytes, std::size_t count) {
  __m128i a = _mm_xor_si128(load(bytes), added);
  if (count < 64) return fold_rest(a, bytes + 16, count - 16);
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
  return fold_rest(fold(fold(fold(a, next, b), next, c), next, d), bytes, count);
}

// The same of at least kMin256 or kMin512 bytes.
constexpr std::size_t kMin256 = 128;
constexpr std::size_t kMin512 = 256;

USES_VPCLMUL_256 __m128i by_256(__m128i added, const std::byte* bytes, std::size_t count) {
  __m256i a = _mm256_xor_si256(load_256(bytes), _mm256_zextsi128_si256(added));
  __m256i b = load_256(bytes + 32);
  __m256i c = load_256(bytes + 64);
  __m256i d = load_256(bytes + 96);
  const __m256i by = _mm256_broadcastsi128_si256(multipliers(kAhead1024));
  for (count -= 128, bytes += 128; count >= 128; count -= 128, bytes += 128) {
    a = fold(a, by, load_256(bytes));
    b = fold(b, by, load_256(bytes + 32));
    c = fold(c, by, load_256(bytes + 64));
    d = fold(d, by, load_256(bytes + 96));
  }
  return fold_rest(narrow(together(a, b, c, d)), bytes, count);
}

USES_VPCLMUL_512 __m128i by_512(__m128i added, const std::byte* bytes, std::size_t count) {
  __m512i a = _mm512_xor_si512(load_512(bytes), _mm512_zextsi128_si512(added));
  __m512i b = load_512(bytes + 64);
  __m512i c = load_512(bytes + 128);
  __m512i d = load_512(bytes + 192);
  const __m512i by = _mm512_broadcast_i32x4(multipliers(kAhead2048));
  for (count -= 256, bytes += 256; count >= 256; count -= 256, bytes += 256) {
    a = fold(a, by, load_512(bytes));
    b = fold(b, by, load_512(bytes + 64));
    c = fold(c, by, load_512(bytes + 128));
    d = fold(d, by, load_512(bytes + 192));
  }
  const __m512i next = _mm512_broadcast_i32x4(multipliers(kAhead512));
  d = together(a, b, c, d);
  for (; count >= 64; count -= 64, bytes += 64)
    d = fold(d, next, load_512(bytes));
  return fold_rest(narrow(d), bytes, count);
}

USES_PCLMUL std::uint32_t state_by_128(std::uint64_t state, const std::byte* bytes,
                                       std::size_t count) {
  return reduce(by_128(pair(state, 0), bytes, count));
}
USES_VPCLMUL_256 std::uint32_t state_by_256(std::uint64_t state, const std::byte* bytes,
                                            std::size_t count) {
  return reduce(by_256(pair(state, 0), bytes, count));
}
USES_VPCLMUL_512 std::uint32_t state_by_512(std::uint64_t state, const std::byte* bytes,
                                            std::size_t count) {
  return reduce(by_512(pair(state, 0), bytes, count));
}

USES_PCLMUL CrcBlock block_by_128(const CrcBlock& before, const std::byte* bytes,
                                  std::size_t count) {
  return to_block(by_128(onto_next(before), bytes, count));
}
USES_VPCLMUL_256 CrcBlock block_by_256(const CrcBlock& before, const std::byte* bytes,
                                       std::size_t count) {
  return to_block(by_256(onto_next(before), bytes, count));
}
USES_VPCLMUL_512 CrcBlock block_by_512(const CrcBlock& before, const std::byte* bytes,
                                       std::size_t count) {
  return to_block(by_512(onto_next(before), bytes, count));
}

Folding look() {
  __builtin_cpu_init();
  const auto has_all = [](auto... has) { return (... && (has != 0)); };
  if (!has_all(__builtin_cpu_supports("pclmul"), __builtin_cpu_supports("sse4.1")))
    return Folding::kTables;
  if (!has_all(__builtin_cpu_supports("avx2"), __builtin_cpu_supports("vpclmulqdq")))
    return Folding::k128;
  const bool is_wide =
      has_all(__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512vl"));
  return is_wide ? Folding::k512 : Folding::k256;
}

std::atomic<Folding> used = look();  // before that it is kTables

}  // namespace

Folding folding() { return used.load(std::memory_order_relaxed); }

Folding limit_folding(Folding most) {
  used.store(std::min(look(), most), std::memory_order_relaxed);
  return folding();
}

std::uint32_t by_folding(std::uint64_t state, const std::byte* bytes, std::size_t count) {
  switch (folding()) {
    case Folding::k512:
      if (count >= kMin512) return state_by_512(state, bytes, count);
      [[fallthrough]];
    case Folding::k256:
      if (count >= kMin256) return state_by_256(state, bytes, count);
      [[fallthrough]];
    case Folding::k128:
      return count < 16 ? by_less(state, bytes, count) : state_by_128(state, bytes, count);
    case Folding::kTables: break;
  }
  return by_tables(state, bytes, count);
}

CrcBlock block_by_folding(const CrcBlock& before, const std::byte* bytes, std::size_t count) {
  if (count < sizeof before) return block_by_tables(before, bytes, count);
  switch (folding()) {
    case Folding::k512:
      if (count >= kMin512) return block_by_512(before, bytes, count);
      [[fallthrough]];
    case Folding::k256:
      if (count >= kMin256) return block_by_256(before, bytes, count);
      [[fallthrough]];
    case Folding::k128: return block_by_128(before, bytes, count);
    case Folding::kTables: break;
  }
  return block_by_tables(before, bytes, count);
}

}  // namespace verbena::crc

#endif  // __x86_64__
