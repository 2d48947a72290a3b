// SPDX-License-Identifier: MIT
// Whether a range is mapped with the rights that it needs, as the mappings of the process come,
// from a query or by the text of /proc/self/maps.
#pragma once

#include <cstdint>
#include <string_view>

#include "memory/page_check.h"

namespace verbena::memory {

struct MapsPiece {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool is_readable = false;
  bool is_writable = false;
};

// Goes over a range as the mappings come, lowest first.
class MapsWalk {
 public:
  explicit MapsWalk(const PageRange& range) : range_(range), at_(range.begin) {}
  std::uintptr_t at() const { return at_; }
  // kUnknown: not decided yet.
  Presence see(const MapsPiece& mapping) {
    if (mapping.end <= at_) return Presence::kUnknown;
    if (mapping.begin > at_) return Presence::kNotThere;
    if (!(range_.is_written ? mapping.is_writable : mapping.is_readable)) {
      return Presence::kNotThere;
    }
    at_ = mapping.end;
    return at_ >= range_.end ? Presence::kThere : Presence::kUnknown;
  }

 private:
  const PageRange range_;
  std::uintptr_t at_;
};

// Lines of /proc/self/maps, character by character: "7f00-7fff rw-p ...".
class MapsParser {
 public:
  // True when `mapping` is complete.
  bool take(char c) {
    switch (field_) {
      case Field::kBegin:
        if (c == '-') return next(Field::kEnd);
        mapping_.begin = mapping_.begin << 4 | digit(c);
        return false;
      case Field::kEnd:
        if (c == ' ') return next(Field::kReadable);
        mapping_.end = mapping_.end << 4 | digit(c);
        return false;
      case Field::kReadable: mapping_.is_readable = c == 'r'; return next(Field::kWritable);
      case Field::kWritable:
        mapping_.is_writable = c == 'w';
        field_ = Field::kRest;
        return true;
      case Field::kRest:
        if (c != '\n') return false;
        mapping_ = {};
        return next(Field::kBegin);
    }
    return false;
  }
  const MapsPiece& mapping() const { return mapping_; }

 private:
  enum class Field : std::uint8_t { kBegin, kEnd, kReadable, kWritable, kRest };
  bool next(Field field) {
    field_ = field;
    return false;
  }
  static std::uintptr_t digit(char c) {
    return static_cast<std::uintptr_t>(c >= 'a' ? c - 'a' + 10 : c - '0') & 15;
  }

  Field field_ = Field::kBegin;
  MapsPiece mapping_;
};

// The two together, for text that comes in pieces.
class MapsText {
 public:
  explicit MapsText(const PageRange& range) : walk_(range) {}
  // kUnknown: not decided yet.
  Presence take(std::string_view text) {
    for (const char c : text) {
      if (!parser_.take(c)) continue;
      const Presence seen = walk_.see(parser_.mapping());
      if (seen != Presence::kUnknown) return seen;
    }
    return Presence::kUnknown;
  }

 private:
  MapsWalk walk_;
  MapsParser parser_;
};

}  // namespace verbena::memory
