// SPDX-License-Identifier: MIT
// The functions that go through folders, and those that follow links. Where libc hands out a path
// (realpath, glob), the program sees it below /sys or /dev again.
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "preload/next.h"
#include "preload/redirect.h"

using verbena::preload::match;
using verbena::preload::Match;
using verbena::preload::Place;
using verbena::preload::redirected;
using verbena::preload::show_as_system_path;

using Filter = int (*)(const dirent*);
using Filter64 = int (*)(const dirent64*);
using Order = int (*)(const dirent**, const dirent**);
using Order64 = int (*)(const dirent64**, const dirent64**);
using GlobError = int (*)(const char*, int);

VERBENA_NEXT(opendir, DIR*(const char*));
VERBENA_NEXT(chdir, int(const char*));
VERBENA_NEXT(scandir, int(const char*, dirent***, Filter, Order));
VERBENA_NEXT(scandir64, int(const char*, dirent64***, Filter64, Order64));
VERBENA_NEXT(scandirat, int(int, const char*, dirent***, Filter, Order));
VERBENA_NEXT(scandirat64, int(int, const char*, dirent64***, Filter64, Order64));
VERBENA_NEXT(readlink, ssize_t(const char*, char*, std::size_t));
VERBENA_NEXT(readlinkat, ssize_t(int, const char*, char*, std::size_t));
VERBENA_NEXT(__readlink_chk, ssize_t(const char*, char*, std::size_t, std::size_t));
VERBENA_NEXT(__readlinkat_chk, ssize_t(int, const char*, char*, std::size_t, std::size_t));
VERBENA_NEXT(realpath, char*(const char*, char*));
VERBENA_NEXT(__realpath_chk, char*(const char*, char*, std::size_t));
VERBENA_NEXT(canonicalize_file_name, char*(const char*));
VERBENA_NEXT(glob, int(const char*, int, GlobError, glob_t*));
VERBENA_NEXT(glob64, int(const char*, int, GlobError, glob64_t*));

namespace {

template <class Function, class Entry, class Chosen, class Sorted>
int scandirat_by(Function& next, int directory, const char* path, Entry*** list, Chosen chosen,
                 Sorted sorted) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]] {
    return next(directory, path, list, chosen, sorted);
  }
  return redirected(at, -1,
                    [&](const char* there) { return next(AT_FDCWD, there, list, chosen, sorted); });
}

// A device in the tree is a link; what it stands for is none.
ssize_t read_link_in_tree(const Match& at, char* target, std::size_t size) {
  return redirected(at, ssize_t{-1}, [&](const char* there) {
    const ssize_t length = next_readlink(there, target, size);
    if (length < 0 || at.place != Place::kDevice) return length;
    errno = EINVAL;
    return ssize_t{-1};
  });
}

// realpath in the tree, for a result that fits into PATH_MAX or is allocated.
char* real_path_in_tree(const Match& at, char* resolved) {
  char* const none = nullptr;
  if (at.place == Place::kDevice) {
    // What is there is a link to /dev/null. Its folder's real path is /dev/infiniband.
    return redirected(at, none, [&](const char* there) -> char* {
      if (access(there, F_OK) != 0) return none;
      const std::size_t skipped = std::strlen(verbena::preload::tree());
      if (!resolved) return strdup(there + skipped);
      return std::strcpy(resolved, there + skipped);
    });
  }
  return redirected(at, none, [&](const char* there) {
    char* real = next_realpath(there, resolved);
    if (real) show_as_system_path(real);
    return real;
  });
}

// Pattern characters that stand in the tree's own path, escaped. Null where it does not fit.
const char* escape_tree(const char* path, char* escaped, std::size_t size) {
  const std::size_t tree_length = std::strlen(verbena::preload::tree());
  std::size_t used = 0;
  for (std::size_t i = 0; path[i]; ++i) {
    if (used + 3 > size) return nullptr;
    if (i < tree_length && std::strchr("*?[\\", path[i])) escaped[used++] = '\\';
    escaped[used++] = path[i];
  }
  escaped[used] = '\0';
  return escaped;
}

template <class Function, class Found>
int glob_by(Function& next, const char* pattern, int flags, GlobError on_error, Found* found) {
  const Match at = match(AT_FDCWD, pattern);
  if (at.place == Place::kElsewhere || (flags & GLOB_ALTDIRFUNC)) [[likely]] {
    return next(pattern, flags, on_error, found);
  }
  return redirected(at, GLOB_NOSPACE, [&](const char* there) {
    char escaped[PATH_MAX];
    const char* wanted =
        flags & GLOB_NOESCAPE ? there : escape_tree(there, escaped, sizeof escaped);
    if (!wanted) return GLOB_NOSPACE;
    const int result = next(wanted, flags, on_error, found);
    if (result != 0) return result;
    const std::size_t first = flags & GLOB_DOOFFS ? found->gl_offs : 0;
    for (std::size_t i = 0; i < found->gl_pathc; ++i) {
      show_as_system_path(found->gl_pathv[first + i]);
    }
    return 0;
  });
}

}  // namespace

extern "C" {

DIR* wrapped_opendir(const char* path) VERBENA_WRAP(opendir);
DIR* wrapped_opendir(const char* path) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_opendir(path);
  return redirected(at, static_cast<DIR*>(nullptr),
                    [](const char* there) { return next_opendir(there); });
}

// From then on relative paths lead through the tree by themselves.
int wrapped_chdir(const char* path) VERBENA_WRAP(chdir);
int wrapped_chdir(const char* path) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_chdir(path);
  return redirected(at, -1, [](const char* there) { return next_chdir(there); });
}

int wrapped_scandir(const char* path, dirent*** list, Filter chosen, Order sorted)
    VERBENA_WRAP(scandir);
int wrapped_scandir(const char* path, dirent*** list, Filter chosen, Order sorted) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_scandir(path, list, chosen, sorted);
  return redirected(at, -1,
                    [&](const char* there) { return next_scandir(there, list, chosen, sorted); });
}

int wrapped_scandir64(const char* path, dirent64*** list, Filter64 chosen, Order64 sorted)
    VERBENA_WRAP(scandir64);
int wrapped_scandir64(const char* path, dirent64*** list, Filter64 chosen, Order64 sorted) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_scandir64(path, list, chosen, sorted);
  return redirected(at, -1,
                    [&](const char* there) { return next_scandir64(there, list, chosen, sorted); });
}

int wrapped_scandirat(int directory, const char* path, dirent*** list, Filter chosen, Order sorted)
    VERBENA_WRAP(scandirat);
int wrapped_scandirat(int directory, const char* path, dirent*** list, Filter chosen,
                      Order sorted) {
  return scandirat_by(next_scandirat, directory, path, list, chosen, sorted);
}

int wrapped_scandirat64(int directory, const char* path, dirent64*** list, Filter64 chosen,
                        Order64 sorted) VERBENA_WRAP(scandirat64);
int wrapped_scandirat64(int directory, const char* path, dirent64*** list, Filter64 chosen,
                        Order64 sorted) {
  return scandirat_by(next_scandirat64, directory, path, list, chosen, sorted);
}

ssize_t wrapped_readlink(const char* path, char* target, std::size_t size) VERBENA_WRAP(readlink);
ssize_t wrapped_readlink(const char* path, char* target, std::size_t size) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_readlink(path, target, size);
  return read_link_in_tree(at, target, size);
}

ssize_t wrapped_readlinkat(int directory, const char* path, char* target, std::size_t size)
    VERBENA_WRAP(readlinkat);
ssize_t wrapped_readlinkat(int directory, const char* path, char* target, std::size_t size) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]] {
    return next_readlinkat(directory, path, target, size);
  }
  return read_link_in_tree(at, target, size);
}

// The fortified forms check that the buffer has room for what is asked. Let libc say so.
ssize_t wrapped_readlink_chk(const char* path, char* target, std::size_t size, std::size_t room)
    VERBENA_WRAP(__readlink_chk);
ssize_t wrapped_readlink_chk(const char* path, char* target, std::size_t size, std::size_t room) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere || size > room) [[likely]] {
    return next___readlink_chk(path, target, size, room);
  }
  return read_link_in_tree(at, target, size);
}

ssize_t wrapped_readlinkat_chk(int directory, const char* path, char* target, std::size_t size,
                               std::size_t room) VERBENA_WRAP(__readlinkat_chk);
ssize_t wrapped_readlinkat_chk(int directory, const char* path, char* target, std::size_t size,
                               std::size_t room) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere || size > room) [[likely]] {
    return next___readlinkat_chk(directory, path, target, size, room);
  }
  return read_link_in_tree(at, target, size);
}

char* wrapped_realpath(const char* path, char* resolved) VERBENA_WRAP(realpath);
char* wrapped_realpath(const char* path, char* resolved) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_realpath(path, resolved);
  return real_path_in_tree(at, resolved);
}

char* wrapped_realpath_chk(const char* path, char* resolved, std::size_t room)
    VERBENA_WRAP(__realpath_chk);
char* wrapped_realpath_chk(const char* path, char* resolved, std::size_t room) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere || room < PATH_MAX) [[likely]] {
    return next___realpath_chk(path, resolved, room);
  }
  return real_path_in_tree(at, resolved);
}

char* wrapped_canonicalize_file_name(const char* path) VERBENA_WRAP(canonicalize_file_name);
char* wrapped_canonicalize_file_name(const char* path) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_canonicalize_file_name(path);
  return real_path_in_tree(at, nullptr);
}

int wrapped_glob(const char* pattern, int flags, GlobError on_error, glob_t* found)
    VERBENA_WRAP(glob);
int wrapped_glob(const char* pattern, int flags, GlobError on_error, glob_t* found) {
  return glob_by(next_glob, pattern, flags, on_error, found);
}

int wrapped_glob64(const char* pattern, int flags, GlobError on_error, glob64_t* found)
    VERBENA_WRAP(glob64);
int wrapped_glob64(const char* pattern, int flags, GlobError on_error, glob64_t* found) {
  return glob_by(next_glob64, pattern, flags, on_error, found);
}

}  // extern "C"
