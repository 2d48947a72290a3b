// SPDX-License-Identifier: MIT
#include "write_to_client/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "write_to_client/roles.h"

namespace write_to_client {

Memory Memory::fresh(std::size_t size) {
  const std::size_t mapped = size ? size : 1;
  void* at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) fail("no memory for %zu bytes: %s", size, std::strerror(errno));
  madvise(at, mapped, MADV_HUGEPAGE);
  // Not zero: data that never came cannot be mistaken for data that did.
  std::memset(at, 0x5A, mapped);
  return {static_cast<std::byte*>(at), size};
}

Memory Memory::of_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) fail("%s: %s", path.c_str(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("%s: not a regular file", path.c_str());
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    close(file);
    return fresh(0);
  }
  void* at = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (at == MAP_FAILED) fail("%s: %s", path.c_str(), std::strerror(errno));
  close(file);
  return {static_cast<std::byte*>(at), size};
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory::~Memory() {
  if (data_) munmap(data_, mapped());
}

void make_up_data(Memory& memory) {
  std::uint64_t state = 88172645463325252u;
  std::size_t place = 0;
  for (; place + sizeof state <= memory.size(); place += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(memory.data() + place, &state, sizeof state);
  }
  std::memcpy(memory.data() + place, &state, memory.size() - place);
}

}  // namespace write_to_client
