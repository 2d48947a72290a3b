// SPDX-License-Identifier: MIT
// Runs a classic BPF program as the kernel would. For tests only.
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"

namespace verbena::port {

// What the kernel does with a classic BPF program, as far as ours go (Documentation/networking/
// filter.rst): a load past the end of the packet ends it with 0.
class Interpreter {
 public:
  Interpreter(std::span<const sock_filter> program, std::span<const std::byte> packet)
      : program_(program), packet_(packet) {}

  std::uint32_t run() {
    for (std::size_t pc = 0; pc < program_.size(); ++pc) {
      const sock_filter& at = program_[pc];
      switch (BPF_CLASS(at.code)) {
        case BPF_RET: return at.k;
        case BPF_LD:
          if (!load(at)) return 0;
          break;
        case BPF_ALU: a_ = BPF_OP(at.code) == BPF_RSH ? a_ >> at.k : a_ & at.k; break;
        case BPF_JMP: pc += jump(at); break;
        default: VERBENA_ASSERT(false);
      }
    }
    VERBENA_ASSERT(false);  // fell off the end
  }

 private:
  bool load(const sock_filter& at) {
    const std::size_t size = BPF_SIZE(at.code) == BPF_W ? 4 : BPF_SIZE(at.code) == BPF_H ? 2 : 1;
    if (at.k + size > packet_.size()) return false;
    a_ = 0;
    for (std::size_t i = 0; i < size; ++i)
      a_ = a_ << 8 | std::to_integer<std::uint32_t>(packet_[at.k + i]);
    return true;
  }
  std::size_t jump(const sock_filter& at) const {
    if (BPF_OP(at.code) == BPF_JA) return at.k;
    const bool yes = BPF_OP(at.code) == BPF_JEQ   ? a_ == at.k
                     : BPF_OP(at.code) == BPF_JGE ? a_ >= at.k
                                                  : a_ > at.k;
    return yes ? at.jt : at.jf;
  }
  std::span<const sock_filter> program_;
  std::span<const std::byte> packet_;
  std::uint32_t a_ = 0;
};

}  // namespace verbena::port
