// SPDX-License-Identifier: MIT
// Memory for the tests: pages whose rights and existence the test decides.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/assert.h"
#include "memory/region_table.h"

namespace verbena::memory {

inline constexpr std::size_t kPage = 4096;
inline constexpr PdId kDomain{1};
inline constexpr PdId kOtherDomain{2};

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Pages of private memory with an unmapped page after them.
class TestPages {
 public:
  explicit TestPages(std::size_t pages, int rights = PROT_READ | PROT_WRITE)
      : bytes_(pages * kPage) {
    void* at =
        mmap(nullptr, bytes_ + kPage, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    VERBENA_ASSERT(at != MAP_FAILED);
    begin_ = static_cast<std::byte*>(at);
    munmap(begin_ + bytes_, kPage);
  }
  TestPages(const TestPages&) = delete;
  TestPages& operator=(const TestPages&) = delete;
  ~TestPages() { munmap(begin_, bytes_); }

  std::byte* begin() const { return begin_; }
  std::byte* end() const { return begin_ + bytes_; }
  std::size_t size() const { return bytes_; }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(begin_); }
  std::span<std::byte> bytes() const { return {begin_, bytes_}; }
  void fill(std::uint8_t value) const { std::memset(begin_, value, bytes_); }
  void protect(std::size_t page, std::size_t count, int rights) const {
    VERBENA_ASSERT(mprotect(begin_ + page * kPage, count * kPage, rights) == 0);
  }
  void unmap(std::size_t page, std::size_t count) const {
    VERBENA_ASSERT(munmap(begin_ + page * kPage, count * kPage) == 0);
  }

 private:
  std::byte* begin_;
  std::size_t bytes_;
};

inline constexpr std::uint32_t kAllAccess =
    kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;

inline RegionConfig region_of(const TestPages& pages, std::uint32_t access = kAllAccess,
                              PdId pd = {1}) {
  return {.pd = pd,
          .iova = pages.address(),
          .access = access,
          .extents = {{.address = pages.begin(), .length = pages.size()}}};
}

}  // namespace verbena::memory
