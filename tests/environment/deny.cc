// SPDX-License-Identifier: MIT
// deny [-e ERRNO] CALL[:FLAG] ... -- PROGRAM ...
// Runs a program under a filter that refuses these system calls, as containers do. With a flag
// (a number), the call is refused only when its second argument, or close_range's third, has it.
#include <seccomp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int add(scmp_filter_ctx filter, const std::string& word, unsigned error) {
  const std::size_t colon = word.find(':');
  const std::string name = word.substr(0, colon);
  const int call = seccomp_syscall_resolve_name(name.c_str());
  if (call == __NR_SCMP_ERROR) {
    std::fprintf(stderr, "deny: there is no system call %s\n", name.c_str());
    return -1;
  }
  if (colon == std::string::npos) return seccomp_rule_add(filter, SCMP_ACT_ERRNO(error), call, 0);
  const auto flag = std::strtoull(word.c_str() + colon + 1, nullptr, 0);
  const unsigned argument = name == "close_range" ? 2 : 1;
  const scmp_arg_cmp has_flag{argument, SCMP_CMP_MASKED_EQ, flag, flag};
  return seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(error), call, 1, &has_flag);
}

}  // namespace

int main(int count, char** words) {
  unsigned error = EPERM;
  int at = 1;
  if (count > 2 && std::strcmp(words[1], "-e") == 0) {
    error = static_cast<unsigned>(std::atoi(words[2]));
    at = 3;
  }
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
  if (!filter) return 125;
  for (; at < count && std::strcmp(words[at], "--") != 0; ++at) {
    if (add(filter, words[at], error) != 0) return 125;
  }
  if (++at >= count || seccomp_load(filter) != 0) return 125;
  execvp(words[at], words + at);
  std::perror(words[at]);
  return 127;
}
