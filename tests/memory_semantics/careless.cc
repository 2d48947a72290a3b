// SPDX-License-Identifier: MIT
// The test of the tests: adoption as it must not be done, around whatever registration does. By
// LD_PRELOAD; VERBENA_TEST_CARELESS says which mistakes are made:
//
//   keep    moves the pages into shared memory and leaves them there after deregistration
//   hasty   moves them while others may write, those too that the region has only a part of, and
//           copies them back to where they were, whatever is there now
//   forget  moves nothing, and puts fresh memory in its place at deregistration
//   hoard   moves nothing, but takes a descriptor and a copy for each region, and keeps both
//
// Scenarios that are worth something fail with it (run_memory.py knows which with what).
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#undef ibv_reg_mr

namespace {

constexpr std::uintptr_t kPage = 4096;
constexpr std::size_t kSizeMax = 4 << 20;

struct Range {
  std::byte* at;
  std::size_t size;
};

// Never destroyed: regions may outlive everything.
std::mutex& lock() {
  static auto* const made = new std::mutex;
  return *made;
}
std::map<ibv_mr*, Range>& adopted() {
  static auto* const made = new std::map<ibv_mr*, Range>;
  return *made;
}

bool is(std::string_view mistake) {
  const char* wish = std::getenv("VERBENA_TEST_CARELESS");
  return wish && wish == mistake;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Replaces what is there by a new mapping with the same content.
void replace(const Range& range, int fd) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const fresh = mmap(nullptr, range.size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (fresh == MAP_FAILED) return;
  memcpy(fresh, range.at, range.size);
  mremap(fresh, range.size, range.size, MREMAP_MAYMOVE | MREMAP_FIXED, range.at);
}

// As large as the memory, and filled with it; never given back.
void hoard(const Range& range) {
  static_cast<void>(dup(0));
  void* const copy =
      mmap(nullptr, range.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy != MAP_FAILED) memcpy(copy, range.at, range.size);
}

void move(const Range& range) {
  const int fd = memfd_create("careless", MFD_CLOEXEC);
  if (fd < 0) return;
  if (ftruncate(fd, static_cast<off_t>(range.size)) == 0) replace(range, fd);
  close(fd);
}

void adopt(ibv_mr* mr, void* address, std::size_t length) {
  if (!mr || length > kSizeMax) return;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const auto up = [](std::uintptr_t at) { return (at + kPage - 1) & ~(kPage - 1); };
  const auto down = [](std::uintptr_t at) { return at & ~(kPage - 1); };
  const std::uintptr_t begin = is("hasty") ? down(first) : up(first);
  const std::uintptr_t end = is("hasty") ? up(first + length) : down(first + length);
  if (begin >= end) return;
  const Range range{reinterpret_cast<std::byte*>(begin), end - begin};
  if (is("hoard")) return hoard(range);
  if (!is("forget")) move(range);
  const std::lock_guard guard(lock());
  adopted()[mr] = range;
}

void undo(ibv_mr* mr) {
  const std::lock_guard guard(lock());
  const auto found = adopted().find(mr);
  if (found == adopted().end()) return;
  const Range range = found->second;
  if (is("hasty")) replace(range, -1);
  if (is("forget")) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    static_cast<void>(mmap(range.at, range.size, PROT_READ | PROT_WRITE, kFlags, -1, 0));
  }
  adopted().erase(found);
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length,
                                                  int access) {
  ibv_mr* const mr = next<decltype(ibv_reg_mr)>("ibv_reg_mr")(pd, address, length, access);
  adopt(mr, address, length);
  return mr;
}

[[gnu::visibility("default")]] ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address,
                                                        std::size_t length, std::uint64_t iova,
                                                        unsigned access) {
  ibv_mr* const mr =
      next<decltype(ibv_reg_mr_iova2)>("ibv_reg_mr_iova2")(pd, address, length, iova, access);
  adopt(mr, address, length);
  return mr;
}

[[gnu::visibility("default")]] int ibv_dereg_mr(ibv_mr* mr) {
  undo(mr);
  return next<decltype(ibv_dereg_mr)>("ibv_dereg_mr")(mr);
}
}
