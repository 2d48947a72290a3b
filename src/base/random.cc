// SPDX-License-Identifier: MIT
#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/assert.h"

namespace verbena {

std::uint64_t KernelRandom::next() {
  if (left_ == 0) {
    // Up to 256 bytes are never interrupted and never short (getrandom(2)).
    ssize_t got = 0;
    do {
      got = getrandom(words_, sizeof words_, 0);
    } while (got < 0 && errno == EINTR);
    VERBENA_ASSERT(got == static_cast<ssize_t>(sizeof words_));
    left_ = kWords;
  }
  // A word is wiped when used, so that a later leak of this memory tells nothing about keys given
  // out.
  const std::uint64_t word = words_[--left_];
  words_[left_] = 0;
  return word;
}

}  // namespace verbena
