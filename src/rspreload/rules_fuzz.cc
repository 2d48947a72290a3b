// SPDX-License-Identifier: MIT
// Any text as /etc/rdma/rsocket/preload_config: each rule is of one line, and means the same when
// it is written with numbers and read again. The same text as a number of an environment variable.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "rspreload/numbers.h"
#include "rspreload/rules.h"

using namespace verbena::rspreload;  // NOLINT(google-build-using-namespace): a fuzzer is one
                                     // function

namespace {

std::string spelled(const std::optional<int>& value) {
  return value ? ' ' + std::to_string(*value) : " *";
}

std::string spelled(const Rule& rule) {
  return (rule.program.empty() ? "*" : std::string(rule.program)) + spelled(rule.domain) +
         spelled(rule.type) + spelled(rule.protocol);
}

void expect_sense(const Rule& rule, std::string_view text) {
  if (!rule.program.empty()) {
    VERBENA_ASSERT(rule.program.data() >= text.data());
    VERBENA_ASSERT(rule.program.data() + rule.program.size() <= text.data() + text.size());
    VERBENA_ASSERT(rule.program.find_first_of(" \t\r\n#") == std::string_view::npos);
  }
  const std::string line = spelled(rule);
  const auto again = read_rule(line);
  VERBENA_ASSERT(again && again->program == rule.program && again->domain == rule.domain &&
                 again->type == rule.type && again->protocol == rule.protocol);
  const Kind kind{.domain = rule.domain.value_or(AF_INET6),
                  .type = rule.type.value_or(SOCK_DGRAM),
                  .protocol = rule.protocol.value_or(0)};
  VERBENA_ASSERT(holds(rule, rule.program.empty() ? "any" : rule.program, kind));
  VERBENA_ASSERT(rule.program.empty() || !holds(rule, std::string(rule.program) + "x", kind));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto rules = read_rules(text);
  VERBENA_ASSERT(std::ranges::count(text, '\n') + 1 >= static_cast<std::ptrdiff_t>(rules.size()));
  for (const Rule& each : rules)
    expect_sense(each, text);
  if (const auto number = read_number(text)) {
    VERBENA_ASSERT(read_number(std::to_string(*number) + " ") == number);
    VERBENA_ASSERT(text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
  }
  return 0;
}
