// SPDX-License-Identifier: MIT
// For tests: each way in which processors fold a CRC, as far as this one has it.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/crc32_parts.h"

namespace verbena {

class EachFolding : public testing::TestWithParam<crc::Folding> {
 protected:
  void SetUp() override {
    if (crc::limit_folding(GetParam()) != GetParam()) GTEST_SKIP() << "not this processor";
  }
  void TearDown() override { crc::limit_folding(crc::Folding::k512); }
};

inline const auto kFoldings = testing::Values(crc::Folding::kTables, crc::Folding::k128,
                                              crc::Folding::k256, crc::Folding::k512);
inline std::string name_of_folding(const testing::TestParamInfo<crc::Folding>& folding) {
  constexpr std::array kNames = {"Tables", "By128", "By256", "By512"};
  return kNames.at(static_cast<std::size_t>(folding.param));
}

}  // namespace verbena
