// SPDX-License-Identifier: MIT
#include "preload/redirect.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace verbena::preload {
namespace {

constexpr char kVariable[] = "VERBENA_SYSFS=";
constexpr std::size_t kVariableLength = sizeof kVariable - 1;

// The tree's path, copied: programs overwrite the memory of their environment (setproctitle).
char tree_path[PATH_MAX];

enum class TreeState : std::uint8_t { kUnknown, kReading, kAbsent, kKnown };
std::atomic<TreeState> tree_state{TreeState::kUnknown};

const char* value_in(char** environment) {
  for (; environment && *environment; ++environment) {
    if (std::strncmp(*environment, kVariable, kVariableLength) == 0) {
      return *environment + kVariableLength;
    }
  }
  return nullptr;
}

// One thread copies; another that asks meanwhile sees no tree, which only a constructor that starts
// threads can notice.
TreeState read_tree(char** environment) {
  TreeState state = TreeState::kUnknown;
  if (!tree_state.compare_exchange_strong(state, TreeState::kReading)) return state;
  const char* value = value_in(environment);
  std::size_t length = value ? std::strlen(value) : 0;
  while (length > 0 && value[length - 1] == '/')
    --length;
  state = TreeState::kAbsent;
  if (length > 0 && value[0] == '/' && length < sizeof tree_path) {
    std::memcpy(tree_path, value, length);
    tree_path[length] = '\0';
    state = TreeState::kKnown;
  }
  tree_state.store(state, std::memory_order_release);
  return state;
}

// The loader hands the environment to constructors, before the program can change it.
[[gnu::constructor(102)]] void read_tree_early(int, char**, char** environment) {
  read_tree(environment);
}

// Whether relative paths from here start at the root folder (hwloc opens "/" and goes on from it).
bool is_root(int directory) {
  const int saved = errno;
  struct stat here = {};
  struct stat root = {};
  const bool same = syscall(SYS_newfstatat, directory, "", &here, AT_EMPTY_PATH) == 0 &&
                    syscall(SYS_newfstatat, AT_FDCWD, "/", &root, 0) == 0 &&
                    here.st_dev == root.st_dev && here.st_ino == root.st_ino;
  errno = saved;
  return same;
}

// Skips what separates two components; "/./" and "//" are one slash.
const char* skip_slashes(const char* path) {
  while (path[0] == '/' || (path[0] == '.' && path[1] == '/'))
    ++path;
  return path;
}

// What follows the component `name`, or null where another one stands.
const char* skip(const char* path, const char* name) {
  path = skip_slashes(path);
  for (; *name; ++name, ++path) {
    if (*path != *name) return nullptr;
  }
  return *path == '/' || *path == '\0' ? path : nullptr;
}

// As skip(), for a component that only starts with `name`, up to the end of that start.
const char* skip_start(const char* path, const char* name) {
  path = skip_slashes(path);
  for (; *name; ++name, ++path) {
    if (*path != *name) return nullptr;
  }
  return path;
}

}  // namespace

Match match_from_root(const char* path) {
  if (const char* rest = skip(path, "dev")) {
    rest = skip(rest, "infiniband");
    if (!rest) return {};
    const bool is_folder = *skip_slashes(rest) == '\0';
    return {is_folder ? Place::kSysfs : Place::kDevice, "/dev/infiniband", rest};
  }
  const char* sys = skip(path, "sys");
  if (!sys) return {};
  if (const char* rest = skip(sys, "class")) {
    rest = skip_start(rest, "infiniband");
    if (!rest || (*rest != '\0' && *rest != '/' && *rest != '_')) return {};
    return {Place::kSysfs, "/sys/class/infiniband", rest};
  }
  if (const char* rest = skip(sys, "devices")) {
    rest = skip(rest, "verbena");
    if (rest) return {Place::kSysfs, "/sys/devices/verbena", rest};
  }
  return {};
}

const char* tree() {
  TreeState state = tree_state.load(std::memory_order_acquire);
  if (state == TreeState::kUnknown) [[unlikely]]
    state = read_tree(environ);
  return state == TreeState::kKnown ? tree_path : nullptr;
}

Match match_slowly(int directory, const char* path) {
  const Match match = match_from_root(path);
  if (match.place == Place::kElsewhere || !tree()) return {};
  if (path[0] != '/' && !is_root(directory)) return {};
  return match;
}

bool show_as_system_path(char* path) {
  const char* prefix = tree();
  if (!prefix) return false;
  const std::size_t length = std::strlen(prefix);
  if (std::strncmp(path, prefix, length) != 0 || path[length] != '/') return false;
  std::memmove(path, path + length, std::strlen(path + length) + 1);
  return true;
}

Redirected::Redirected(const Match& match) {
  char* next = path_;
  char* const end = path_ + sizeof path_;
  fits_ = true;
  for (const char* part : {tree(), match.folder, match.rest}) {
    const std::size_t length = std::strlen(part);
    if (length >= static_cast<std::size_t>(end - next)) {
      fits_ = false;
      errno = ENAMETOOLONG;
      return;
    }
    next = std::copy_n(part, length, next);
  }
  *next = '\0';
}

}  // namespace verbena::preload
