// SPDX-License-Identifier: MIT
// The sums are those that `xxh64sum` prints.
#include "write_to_client/checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace write_to_client {
namespace {

std::uint64_t sum_of(const std::string& text) { return xxh64(text.data(), text.size()); }

TEST(Checksum, IsXxh64) {
  EXPECT_EQ(sum_of(""), 0xef46db3751d8e999u);
  EXPECT_EQ(sum_of("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(sum_of("abc"), 0x44bc2cf5ad770999u);
}

TEST(Checksum, SeesEveryByteOfEveryLength) {
  for (std::size_t length = 1; length < 100; ++length) {
    const std::string text(length, 'x');
    for (std::size_t place = 0; place < length; ++place) {
      std::string other = text;
      other[place] = 'y';
      EXPECT_NE(sum_of(text), sum_of(other)) << length << " " << place;
    }
  }
}

}  // namespace
}  // namespace write_to_client
