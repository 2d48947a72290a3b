// SPDX-License-Identifier: MIT
// A fuzzer without libFuzzer: the inputs of its corpus, the same with damage, and bytes by chance.
// A corpus file holds many inputs, each after its length in two bytes (scripts/fuzz --keep).
// `--seed=N` repeats the damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/test_seed.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace verbena {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kDamagedMax = 2'000;
constexpr auto kPatience = std::chrono::seconds(3);  // for each of the tests by chance

std::vector<Bytes> corpus() {
  std::ifstream file(VERBENA_CORPUS, std::ios::binary);
  EXPECT_TRUE(file) << VERBENA_CORPUS;
  const Bytes all{std::istreambuf_iterator<char>(file), {}};
  std::vector<Bytes> inputs;
  for (auto at = all.begin(); all.end() - at >= 2;) {
    const std::ptrdiff_t size = std::ptrdiff_t{at[0]} << 8 | at[1];
    at += 2;
    if (size > all.end() - at) {
      ADD_FAILURE() << "the last input is cut";
      break;
    }
    inputs.emplace_back(at, at + size);
    at += size;
  }
  return inputs;
}

void run(const Bytes& input) { LLVMFuzzerTestOneInput(input.data(), input.size()); }

Bytes by_chance(SeededRandom& random) {
  Bytes input(random.below(300));
  for (std::uint8_t& byte : input)
    byte = static_cast<std::uint8_t>(random.next() >> 40);
  return input;
}

Bytes damaged(Bytes input, const Bytes& other, SeededRandom& random) {
  for (std::uint64_t changes = random.below(4); changes > 0 && !input.empty(); --changes)
    input[random.below(input.size())] = static_cast<std::uint8_t>(random.next() >> 40);
  if (random.one_in(3)) input.resize(random.below(input.size() + 1));
  if (random.one_in(3)) {
    const auto from = static_cast<std::ptrdiff_t>(random.below(other.size() + 1));
    input.insert(input.end(), other.begin() + from, other.end());
  }
  return input;
}

// As many as there is patience for: a sanitizer takes its time.
template <class Make>
void run_some(Make make) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::size_t done = 0;
  while (done < kDamagedMax && std::chrono::steady_clock::now() < end) {
    run(make());
    ++done;
  }
  std::printf("%zu inputs\n", done);
}

TEST(Corpus, WhatTheFuzzerFoundGoesWell) {
  const auto inputs = corpus();
  EXPECT_FALSE(inputs.empty());
  for (const Bytes& input : inputs)
    run(input);
  run({});
  std::printf("%zu inputs\n", inputs.size());
}

TEST(Corpus, TheSameWithDamageGoesWell) {
  const auto inputs = corpus();
  ASSERT_FALSE(inputs.empty());
  SeededRandom random(test_seed());
  run_some([&] {
    const Bytes& one = inputs[random.below(inputs.size())];
    return damaged(one, inputs[random.below(inputs.size())], random);
  });
}

TEST(Corpus, AnythingGoesWell) {
  SeededRandom random(test_seed());
  run_some([&] { return by_chance(random); });
}

}  // namespace
}  // namespace verbena
