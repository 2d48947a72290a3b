// SPDX-License-Identifier: MIT
#include "rspreload/rules.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <span>
#include <system_error>

namespace verbena::rspreload {
namespace {

constexpr const char* kConfiguration = "/etc/rdma/rsocket/preload_config";
constexpr std::size_t kConfigurationMax = 1 << 16;

struct Word {
  std::string_view name;  // behind AF_, PF_, SOCK_ or IPPROTO_
  int value;
};
constexpr std::array<Word, 2> kDomains = {{{"INET", AF_INET}, {"INET6", AF_INET6}}};
constexpr std::array<Word, 2> kTypes = {{{"STREAM", SOCK_STREAM}, {"DGRAM", SOCK_DGRAM}}};
constexpr std::array<Word, 2> kProtocols = {{{"TCP", IPPROTO_TCP}, {"UDP", IPPROTO_UDP}}};

bool is_same(std::string_view one, std::string_view two) {
  return std::equal(one.begin(), one.end(), two.begin(), two.end(), [](char a, char b) {
    return std::toupper(static_cast<unsigned char>(a)) == b;  // `two` has capitals
  });
}

// The next word, which goes from the line.
std::string_view take_word(std::string_view& line) {
  constexpr std::string_view kSpaces = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kSpaces), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kSpaces));
  line.remove_prefix(word.size());
  return word;
}

// False: no such word.
bool read_value(std::string_view word, std::span<const Word> words, std::optional<int>& value) {
  if (word == "*") return true;
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error == std::errc() && end == word.data() + word.size()) {
    value = number;
    return true;
  }
  const std::size_t prefix = word.find('_');
  const std::string_view bare = prefix == std::string_view::npos ? word : word.substr(prefix + 1);
  for (const Word& each : words) {
    if (is_same(bare, each.name)) value = each.value;
  }
  return value.has_value();
}

// Of the kinds that rsockets have.
bool is_possible(const Kind& kind) {
  const bool is_ip = kind.domain == AF_INET || kind.domain == AF_INET6;
  const bool is_stream =
      kind.type == SOCK_STREAM && (kind.protocol == 0 || kind.protocol == IPPROTO_TCP);
  const bool is_datagram =
      kind.type == SOCK_DGRAM && (kind.protocol == 0 || kind.protocol == IPPROTO_UDP);
  return is_ip && (is_stream || is_datagram);
}

bool is_of_rdma(const void* caller) {
  Dl_info object{};
  if (dladdr(caller, &object) == 0 || !object.dli_fname) return false;
  const char* const slash = std::strrchr(object.dli_fname, '/');
  const std::string_view name = slash ? slash + 1 : object.dli_fname;
  for (const std::string_view ours : {"libibverbs.so", "librdmacm.so", "libverbena"})
    if (name.starts_with(ours)) return true;
  return false;
}

}  // namespace

std::optional<Rule> read_rule(std::string_view line) {
  line = line.substr(0, line.find('#'));
  Rule rule;
  rule.program = take_word(line);
  if (rule.program.empty()) return std::nullopt;
  if (rule.program == "*") rule.program = {};
  const bool is_good = read_value(take_word(line), kDomains, rule.domain) &&
                       read_value(take_word(line), kTypes, rule.type) &&
                       read_value(take_word(line), kProtocols, rule.protocol);
  if (!is_good || !take_word(line).empty()) return std::nullopt;
  return rule;
}

std::vector<Rule> read_rules(std::string_view text) {
  std::vector<Rule> rules;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (const auto rule = read_rule(line)) rules.push_back(*rule);
  }
  return rules;
}

bool holds(const Rule& rule, std::string_view program, const Kind& kind) {
  return (rule.program.empty() || rule.program == program) &&
         (!rule.domain || *rule.domain == kind.domain) && (!rule.type || *rule.type == kind.type) &&
         (!rule.protocol || kind.protocol == 0 || *rule.protocol == kind.protocol);
}

// By system calls: read() and close() are ours.
Rules::Rules(const char* path) {
  const int saved = errno;
  const auto file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  has_file_ = file >= 0;
  if (has_file_) {
    text_.resize(kConfigurationMax);
    const long size = syscall(SYS_read, file, text_.data(), text_.size());
    text_.resize(static_cast<std::size_t>(std::max(size, 0L)));
    syscall(SYS_close, file);
  }
  errno = saved;
  rules_ = read_rules({text_.data(), text_.size()});
}

bool Rules::want(std::string_view program, const Kind& kind) const {
  if (!has_file_) return kind.type == SOCK_STREAM;
  return std::any_of(rules_.begin(), rules_.end(),
                     [&](const Rule& rule) { return holds(rule, program, kind); });
}

bool is_wanted(const Kind& kind, const void* caller) {
  if (!is_possible(kind) || is_of_rdma(caller)) return false;
  static const Rules* const rules = new Rules(kConfiguration);  // for as long as the program lasts
  return rules->want(program_invocation_short_name, kind);
}

}  // namespace verbena::rspreload
