// SPDX-License-Identifier: MIT
// Which sockets become rsockets: those that /etc/rdma/rsocket/preload_config names, where that file
// is, and otherwise all streams over IP. A line of it is
//
//   PROGRAM DOMAIN TYPE PROTOCOL
//
// each of them `*` for any: the program's name without its folder; AF_INET or AF_INET6; SOCK_STREAM
// or SOCK_DGRAM; IPPROTO_TCP or IPPROTO_UDP. INET, STREAM or TCP, small letters, and numbers will
// do as well. `#` begins a comment.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace verbena::rspreload {

struct Kind {
  int domain;
  int type;  // without flags
  int protocol;
};

struct Rule {
  std::string_view program;  // empty: any
  std::optional<int> domain;
  std::optional<int> type;
  std::optional<int> protocol;  // 0, what the program leaves to the system, is any
};

// None: no rule, or one that means nothing. Its program is a part of the line.
std::optional<Rule> read_rule(std::string_view line);
// Those of a whole file. Their programs are parts of the text.
std::vector<Rule> read_rules(std::string_view text);
bool holds(const Rule& rule, std::string_view program, const Kind& kind);

class Rules {
 public:
  // A file that cannot be read has no rules.
  explicit Rules(const char* path);
  Rules(const Rules&) = delete;
  Rules& operator=(const Rules&) = delete;

  bool want(std::string_view program, const Kind& kind) const;

 private:
  bool has_file_ = false;
  std::vector<char> text_;
  std::vector<Rule> rules_;
};

// Whether a socket that is asked for from there shall be an rsocket: of a kind that is wanted, and
// not asked for by RDMA itself, whose libraries have sockets of their own.
bool is_wanted(const Kind& kind, const void* caller);

}  // namespace verbena::rspreload
