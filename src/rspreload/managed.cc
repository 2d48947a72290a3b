// SPDX-License-Identifier: MIT
#include "rspreload/managed.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace verbena::rspreload {
namespace {

constexpr std::size_t kDescriptors = 1 << 20;
// A bit for each descriptor; pages that nobody touches cost nothing.
std::array<std::atomic<std::uint64_t>, kDescriptors / 64> managed;

bool is_in_range(int fd) { return fd >= 0 && static_cast<std::size_t>(fd) < kDescriptors; }
std::atomic<std::uint64_t>& word_of(int fd) { return managed[static_cast<std::size_t>(fd) / 64]; }
std::uint64_t bit_of(int fd) { return std::uint64_t{1} << (fd % 64); }

void set_from(int fd, int option, const char* variable) {
  const char* const text = std::getenv(variable);
  if (!text) return;
  const int value = static_cast<int>(std::strtol(text, nullptr, 10));
  if (value > 0) rsetsockopt(fd, SOL_RDMA, option, &value, sizeof value);
}

}  // namespace

bool is_managed(int fd) {
  return is_in_range(fd) && (word_of(fd).load(std::memory_order_relaxed) & bit_of(fd)) != 0;
}

void manage(int fd) {
  if (is_in_range(fd)) word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void forget(int fd) {
  if (is_in_range(fd)) word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

bool is_wanted(int domain, int type, int protocol, const void* caller) {
  if (domain != AF_INET && domain != AF_INET6) return false;
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  const bool is_stream = kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
  if (!is_stream) return false;
  Dl_info object{};
  if (dladdr(caller, &object) == 0 || !object.dli_fname) return true;
  const char* const slash = std::strrchr(object.dli_fname, '/');
  const char* const name = slash ? slash + 1 : object.dli_fname;
  for (const char* ours : {"libibverbs.so", "librdmacm.so", "libverbena"})
    if (std::strncmp(name, ours, std::strlen(ours)) == 0) return false;
  return true;
}

void set_options(int fd) {
  set_from(fd, RDMA_SQSIZE, "RS_SQ_SIZE");
  set_from(fd, RDMA_RQSIZE, "RS_RQ_SIZE");
  set_from(fd, RDMA_INLINE, "RS_INLINE");
}

}  // namespace verbena::rspreload
