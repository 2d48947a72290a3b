// SPDX-License-Identifier: MIT
// The buffers that are registered with io_urings, as /proc/self/fdinfo/N tells: after "UserBufs:"
// comes a line a buffer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "memory/proc_text.h"

namespace verbena::memory {

class RingBuffers {
 public:
  // Whether they overlap [begin, end).
  RingBuffers(std::uint64_t begin, std::uint64_t end, std::uint64_t page)
      : begin_(begin), end_(end), page_(page) {}

  // The text of another ring.
  void begin() {
    has_list_ = is_in_list_ = false;
    length_ = 0;
  }
  void take(std::string_view text) {
    for (const char c : text)
      take(c);
  }
  bool has_list() const { return has_list_; }

  // Of all rings.
  bool overlaps() const { return overlaps_; }
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  void take(char c) {
    if (c != '\n') {
      if (length_ < line_.size()) line_[length_++] = c;
      return;
    }
    see({line_.data(), length_});
    length_ = 0;
  }
  void see(std::string_view line) {
    if (line.starts_with("UserBufs:")) {
      has_list_ = is_in_list_ = true;
      return;
    }
    const std::size_t at = line.find("0x");
    if (!line.starts_with(' ')) is_in_list_ = false;
    if (!is_in_list_ || at == std::string_view::npos) return;
    const auto pinned = parse_buffer(line.substr(at), page_);
    if (!pinned) return;
    pinned_bytes_ += pinned->end - pinned->begin;
    if (pinned->begin < end_ && pinned->end > begin_) overlaps_ = true;
  }

  const std::uint64_t begin_;
  const std::uint64_t end_;
  const std::uint64_t page_;
  std::array<char, 128> line_{};
  std::size_t length_ = 0;
  bool has_list_ = false;
  bool is_in_list_ = false;
  bool overlaps_ = false;
  std::uint64_t pinned_bytes_ = 0;
};

}  // namespace verbena::memory
