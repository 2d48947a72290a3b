// SPDX-License-Identifier: MIT
// That the library really does what this matrix is about: a matrix in which nothing is ever adopted
// would show nothing. And that it does not where it was told not to.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "world.h"

namespace semantics {

bool is_shared(const std::byte* wanted) {
  FILE* const maps = fopen("/proc/self/maps", "re");
  require(maps != nullptr, "/proc/self/maps: %s", strerror(errno));
  char line[1024];
  char shared = 0;
  while (shared == 0 && std::fgets(line, sizeof line, maps)) {
    unsigned long begin = 0, end = 0;
    char rights[8] = {};
    const auto at = reinterpret_cast<std::uintptr_t>(wanted);
    if (std::sscanf(line, "%lx-%lx %7s", &begin, &end, rights) == 3 && begin <= at && at < end) {
      shared = rights[3];
    }
  }
  std::fclose(maps);
  require(shared != 0, "nothing is mapped there");
  return shared == 's';
}

namespace {

// Why memory cannot be adopted on this system, or nothing.
const char* obstacle() {
  utsname system{};
  uname(&system);
  int major = 0, minor = 0;
  require(std::sscanf(system.release, "%d.%d", &major, &minor) == 2, "uname");
  if (major < 6 || (major == 6 && minor < 8)) return "this kernel has no UFFDIO_MOVE";
  const long fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
  if (fd < 0) return "userfaultfd is refused here";
  close(static_cast<int>(fd));
  return nullptr;
}

// Whether system calls of other threads can be held as well, without which nothing is adopted while
// there are any.
bool can_hold_system_calls() {
  const int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC));
  if (fd >= 0) close(fd);
  return fd >= 0 || access("/dev/userfaultfd", R_OK | W_OK) == 0;
}

// The middle page of plain memory, of the heap and mapped.
void adopted(World& world) {
  constexpr std::size_t kSize = 64 * kKilo;
  Peer peer(world.next());
  auto* const heap = static_cast<std::byte*>(std::malloc(kSize));
  std::byte* const mapped = map_pages(kSize);
  const char* const why_not = obstacle();
  if (may_adopt() && why_not) skip(why_not);
  const bool is_alone = world.kind() != PeerKind::kThread;
  const bool shall_adopt = may_adopt() && (is_alone || can_hold_system_calls());
  for (std::byte* at : {heap, mapped}) {
    const std::byte* const middle = at + kSize / 2;
    fill(at, kSize, 1);
    require(!is_shared(middle), "the memory was shared from the start");
    ibv_mr* const mr = peer.reg(at, kSize);
    peer.use(mr, at, kSize, 2);
    require(is_shared(middle) == shall_adopt,
            shall_adopt ? "memory is not adopted" : "memory is adopted in this mode");
    Peer::dereg(mr);
    require(!is_shared(middle), "memory is still shared after deregistration");
    expect(at, kSize, 2, "after deregistration");
  }
  std::free(heap);
  munmap(mapped, kSize);
  if (may_adopt() && !dlsym(RTLD_DEFAULT, "verbena_dv_query_mr")) {
    std::printf("note: not asked the library itself: it has no verbena_dv_query_mr\n");
  }
}

}  // namespace

std::vector<Scenario> adopted_scenarios() { return {{"adopted", adopted}}; }

}  // namespace semantics
