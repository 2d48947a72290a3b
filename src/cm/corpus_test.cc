// SPDX-License-Identifier: MIT
// What connection_fuzz has found worth keeping, and inputs by chance. A corpus file holds many
// inputs, each after its length in two bytes: `connection_fuzz -merge=1` makes the folder, and
// VERBENA_CORPUS_FROM=FOLDER has this test pack it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/test_seed.h"
#include "cm/test_fuzz.h"

namespace verbena::cm {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void pack(const char* folder) {
  std::vector<Bytes> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    inputs.push_back(content_of(entry.path()));
  std::ranges::sort(inputs);
  std::ofstream file(VERBENA_CM_CORPUS, std::ios::binary);
  for (const Bytes& input : inputs) {
    file.put(static_cast<char>(input.size() >> 8)).put(static_cast<char>(input.size()));
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
  }
}

TEST(CmCorpus, WhatTheFuzzerFoundGoesWell) {
  if (const char* const folder = std::getenv("VERBENA_CORPUS_FROM")) pack(folder);
  const Bytes all = content_of(VERBENA_CM_CORPUS);
  int inputs = 0;
  for (std::size_t at = 0; at + 2 <= all.size(); ++inputs) {
    const std::size_t size = std::size_t{all[at]} << 8 | all[at + 1];
    at += 2;
    ASSERT_LE(at + size, all.size());
    FuzzRun(std::span(all).subspan(at, size)).run();
    at += size;
  }
  EXPECT_GT(inputs, 100);
}

TEST(CmCorpus, AnythingGoesWell) {
  SeededRandom random(test_seed());
  for (int i = 0; i < 2'000; ++i) {
    Bytes input(random.below(300));
    for (std::uint8_t& byte : input)
      byte = static_cast<std::uint8_t>(random.next() >> 40);
    FuzzRun(input).run();
  }
}

}  // namespace
}  // namespace verbena::cm
