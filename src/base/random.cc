// SPDX-License-Identifier: MIT
#include "base/random.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "base/assert.h"

namespace verbena {
namespace {

// Where a filter refuses getrandom. The same generator.
ssize_t read_device(void* to, std::size_t size) {
  const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t got = 0;
  do {
    got = read(fd, to, size);
  } while (got < 0 && errno == EINTR);
  close(fd);
  return got;
}

}  // namespace

std::uint64_t KernelRandom::next() {
  if (left_ == 0) {
    // Up to 256 bytes are never interrupted and never short (getrandom(2)).
    ssize_t got = 0;
    do {
      got = getrandom(words_, sizeof words_, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) got = read_device(words_, sizeof words_);
    // Without the kernel's generator there are no keys that a peer cannot guess.
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
