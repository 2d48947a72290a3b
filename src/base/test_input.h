// SPDX-License-Identifier: MIT
// What a fuzzer was given, taken piece by piece; zeros when it is used up. For tests only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena {

class TestInput {
 public:
  explicit TestInput(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  TestInput(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}

  bool empty() const { return bytes_.empty(); }
  template <class T = std::uint8_t>
  T take() {
    T value{};
    fill(&value, sizeof value);
    return value;
  }
  // So many bytes there, or as many as there are.
  void fill(void* to, std::size_t count) {
    const auto some = take_bytes(count);
    if (!some.empty()) std::memcpy(to, some.data(), some.size());
  }
  // In [0, bound), by one byte.
  std::uint8_t below(std::uint8_t bound) { return static_cast<std::uint8_t>(take() % bound); }
  bool one_in(std::uint8_t n) { return below(n) == 0; }
  // So many, or all that there are.
  std::span<const std::uint8_t> take_bytes(std::size_t count) {
    const auto some = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(some.size());
    return some;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace verbena
