// SPDX-License-Identifier: MIT
// Which of a program's paths are about RDMA devices, and where they lead.
//
//   /sys/class/infiniband, /sys/class/infiniband_*   -> $VERBENA_SYSFS/sys/class/...
//   /sys/devices/verbena                             -> $VERBENA_SYSFS/sys/devices/verbena
//   /dev/infiniband                                  -> $VERBENA_SYSFS/dev/infiniband
//
// `verbena run` makes that tree. Everything else is decided after a few characters and goes on as
// it came. Nothing here allocates, takes a lock or changes errno, so it may run in signal handlers.
#pragma once

#include <limits.h>

#include <cstddef>
#include <cstdint>

namespace verbena::preload {

enum class Place : std::uint8_t { kElsewhere, kSysfs, kDevice };

struct Match {
  Place place = Place::kElsewhere;
  const char* folder = nullptr;  // below the tree: "/sys/class/infiniband"
  const char* rest = nullptr;    // of the path, behind that folder
};

// What `path` is about, seen from the root folder, whether or not there is a tree.
Match match_from_root(const char* path);

// What `path` is about, seen from the folder that `directory` is open on (or AT_FDCWD).
Match match_slowly(int directory, const char* path);

// Most paths end here. The first character of the ones we know: '/', or what stands below the root
// folder.
inline Match match(int directory, const char* path) {
  if (!path) [[unlikely]]
    return {};
  char first = path[0];
  if (first == '/') first = path[1];
  if (first != 's' && first != 'd' && first != '/' && first != '.') [[likely]]
    return {};
  return match_slowly(directory, path);
}

// The tree of this process, an absolute path; null where there is none.
const char* tree();

// The other way round, for a path that a program is shown: takes the tree's path off, in place.
// Returns whether it was one of the tree's.
bool show_as_system_path(char* path);

// The path in the tree.
class Redirected {
 public:
  explicit Redirected(const Match& match);
  // Null where the path is longer than the kernel takes; errno says so.
  const char* get() const { return fits_ ? path_ : nullptr; }

 private:
  bool fits_;
  char path_[PATH_MAX];
};

// `call(path)` with the path in the tree. Apart from the callers, so that only redirected calls
// have the buffer on their stack.
template <class Returned, class Call>
[[gnu::noinline]] Returned redirected(const Match& match, Returned failure, Call call) {
  const Redirected path(match);
  return path.get() ? call(path.get()) : failure;
}

}  // namespace verbena::preload
