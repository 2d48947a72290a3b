// SPDX-License-Identifier: MIT
// A filter that refuses one system call, for good; for children of tests.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace verbena::memory {

struct Denial {
  long call = 0;
  int error = 0;
  // Only where the low half of this argument, under the mask, is the value.
  unsigned argument = 0;
  std::uint32_t mask = 0;
  std::uint32_t value = 0;
};

// False: the system takes no filter.
inline bool deny(const Denial& denial) {
  const auto call = static_cast<std::uint32_t>(denial.call);
  const auto refusal = SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(denial.error);
  const auto argument =
      static_cast<std::uint32_t>(offsetof(seccomp_data, args)) + 8 * denial.argument;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, denial.mask),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, denial.value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, refusal),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = static_cast<unsigned short>(std::size(program)),
                          .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0;
}

}  // namespace verbena::memory
