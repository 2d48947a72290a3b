// SPDX-License-Identifier: MIT
// The functions that ask about a file: stat, access, statfs, extended attributes (ls asks for
// those), pathconf, watches.
//
// In the tree /dev/infiniband/uverbsN is a link to /dev/null: a character device that everybody may
// open. Nobody is shown the link.
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "preload/next.h"
#include "preload/redirect.h"

using verbena::preload::match;
using verbena::preload::Match;
using verbena::preload::Place;
using verbena::preload::redirected;

VERBENA_NEXT(stat, int(const char*, struct stat*));
VERBENA_NEXT(stat64, int(const char*, struct stat64*));
VERBENA_NEXT(lstat, int(const char*, struct stat*));
VERBENA_NEXT(lstat64, int(const char*, struct stat64*));
VERBENA_NEXT(fstatat, int(int, const char*, struct stat*, int));
VERBENA_NEXT(fstatat64, int(int, const char*, struct stat64*, int));
VERBENA_NEXT(statx, int(int, const char*, int, unsigned, struct statx*));
VERBENA_NEXT(__xstat, int(int, const char*, struct stat*));
VERBENA_NEXT(__xstat64, int(int, const char*, struct stat64*));
VERBENA_NEXT(__lxstat, int(int, const char*, struct stat*));
VERBENA_NEXT(__lxstat64, int(int, const char*, struct stat64*));
VERBENA_NEXT(__fxstatat, int(int, int, const char*, struct stat*, int));
VERBENA_NEXT(__fxstatat64, int(int, int, const char*, struct stat64*, int));
VERBENA_NEXT(access, int(const char*, int));
VERBENA_NEXT(eaccess, int(const char*, int));
VERBENA_NEXT(euidaccess, int(const char*, int));
VERBENA_NEXT(faccessat, int(int, const char*, int, int));
VERBENA_NEXT(statfs, int(const char*, struct statfs*));
VERBENA_NEXT(statfs64, int(const char*, struct statfs64*));
VERBENA_NEXT(statvfs, int(const char*, struct statvfs*));
VERBENA_NEXT(statvfs64, int(const char*, struct statvfs64*));
VERBENA_NEXT(getxattr, ssize_t(const char*, const char*, void*, std::size_t));
VERBENA_NEXT(lgetxattr, ssize_t(const char*, const char*, void*, std::size_t));
VERBENA_NEXT(listxattr, ssize_t(const char*, char*, std::size_t));
VERBENA_NEXT(llistxattr, ssize_t(const char*, char*, std::size_t));
VERBENA_NEXT(pathconf, long(const char*, int));
VERBENA_NEXT(inotify_add_watch, int(int, const char*, std::uint32_t));

namespace {

// Calls `next(path, arguments...)` with the path that is meant.
template <class Function, class... Arguments>
auto by_path(Function& next, const char* path, Arguments... arguments) {
  using Returned = decltype(next(path, arguments...));
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(path, arguments...);
  return redirected(at, Returned{-1}, [&](const char* there) { return next(there, arguments...); });
}

// As by_path, but a device's link is followed, by `follow`.
template <class Function, class... Arguments>
auto by_path_of_link(Function& next, Function& follow, const char* path, Arguments... arguments) {
  using Returned = decltype(next(path, arguments...));
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(path, arguments...);
  Function& chosen = at.place == Place::kDevice ? follow : next;
  return redirected(at, Returned{-1},
                    [&](const char* there) { return chosen(there, arguments...); });
}

// The flags of fstatat and statx that lead to a device itself.
int seeing_device(const Match& at, int flags) {
  return at.place == Place::kDevice ? flags & ~AT_SYMLINK_NOFOLLOW : flags;
}

template <class Function, class Status>
int fstatat_by(Function& next, int directory, const char* path, Status* status, int flags) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(directory, path, status, flags);
  return redirected(at, -1, [&](const char* there) {
    return next(AT_FDCWD, there, status, seeing_device(at, flags));
  });
}

// The forms that programs built before glibc 2.33 call, with the layout's version in front.
template <class Function, class Status>
int xstat_by(Function& next, int version, const char* path, Status* status) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(version, path, status);
  return redirected(at, -1, [&](const char* there) { return next(version, there, status); });
}

template <class Function, class Status>
int fxstatat_by(Function& next, int version, int directory, const char* path, Status* status,
                int flags) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]] {
    return next(version, directory, path, status, flags);
  }
  return redirected(at, -1, [&](const char* there) {
    return next(version, AT_FDCWD, there, status, seeing_device(at, flags));
  });
}

}  // namespace

extern "C" {

int wrapped_stat(const char* path, struct stat* status) VERBENA_WRAP(stat);
int wrapped_stat(const char* path, struct stat* status) { return by_path(next_stat, path, status); }

int wrapped_stat64(const char* path, struct stat64* status) VERBENA_WRAP(stat64);
int wrapped_stat64(const char* path, struct stat64* status) {
  return by_path(next_stat64, path, status);
}

int wrapped_lstat(const char* path, struct stat* status) VERBENA_WRAP(lstat);
int wrapped_lstat(const char* path, struct stat* status) {
  return by_path_of_link(next_lstat, next_stat, path, status);
}

int wrapped_lstat64(const char* path, struct stat64* status) VERBENA_WRAP(lstat64);
int wrapped_lstat64(const char* path, struct stat64* status) {
  return by_path_of_link(next_lstat64, next_stat64, path, status);
}

int wrapped_fstatat(int directory, const char* path, struct stat* status, int flags)
    VERBENA_WRAP(fstatat);
int wrapped_fstatat(int directory, const char* path, struct stat* status, int flags) {
  return fstatat_by(next_fstatat, directory, path, status, flags);
}

int wrapped_fstatat64(int directory, const char* path, struct stat64* status, int flags)
    VERBENA_WRAP(fstatat64);
int wrapped_fstatat64(int directory, const char* path, struct stat64* status, int flags) {
  return fstatat_by(next_fstatat64, directory, path, status, flags);
}

int wrapped_statx(int directory, const char* path, int flags, unsigned mask, struct statx* status)
    VERBENA_WRAP(statx);
int wrapped_statx(int directory, const char* path, int flags, unsigned mask, struct statx* status) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]] {
    return next_statx(directory, path, flags, mask, status);
  }
  return redirected(at, -1, [&](const char* there) {
    return next_statx(AT_FDCWD, there, seeing_device(at, flags), mask, status);
  });
}

int wrapped_xstat(int version, const char* path, struct stat* status) VERBENA_WRAP(__xstat);
int wrapped_xstat(int version, const char* path, struct stat* status) {
  return xstat_by(next___xstat, version, path, status);
}

int wrapped_xstat64(int version, const char* path, struct stat64* status) VERBENA_WRAP(__xstat64);
int wrapped_xstat64(int version, const char* path, struct stat64* status) {
  return xstat_by(next___xstat64, version, path, status);
}

int wrapped_lxstat(int version, const char* path, struct stat* status) VERBENA_WRAP(__lxstat);
int wrapped_lxstat(int version, const char* path, struct stat* status) {
  const bool is_device = match(AT_FDCWD, path).place == Place::kDevice;
  return xstat_by(is_device ? next___xstat : next___lxstat, version, path, status);
}

int wrapped_lxstat64(int version, const char* path, struct stat64* status) VERBENA_WRAP(__lxstat64);
int wrapped_lxstat64(int version, const char* path, struct stat64* status) {
  const bool is_device = match(AT_FDCWD, path).place == Place::kDevice;
  return xstat_by(is_device ? next___xstat64 : next___lxstat64, version, path, status);
}

int wrapped_fxstatat(int version, int directory, const char* path, struct stat* status, int flags)
    VERBENA_WRAP(__fxstatat);
int wrapped_fxstatat(int version, int directory, const char* path, struct stat* status, int flags) {
  return fxstatat_by(next___fxstatat, version, directory, path, status, flags);
}

int wrapped_fxstatat64(int version, int directory, const char* path, struct stat64* status,
                       int flags) VERBENA_WRAP(__fxstatat64);
int wrapped_fxstatat64(int version, int directory, const char* path, struct stat64* status,
                       int flags) {
  return fxstatat_by(next___fxstatat64, version, directory, path, status, flags);
}

int wrapped_access(const char* path, int mode) VERBENA_WRAP(access);
int wrapped_access(const char* path, int mode) { return by_path(next_access, path, mode); }

int wrapped_eaccess(const char* path, int mode) VERBENA_WRAP(eaccess);
int wrapped_eaccess(const char* path, int mode) { return by_path(next_eaccess, path, mode); }

int wrapped_euidaccess(const char* path, int mode) VERBENA_WRAP(euidaccess);
int wrapped_euidaccess(const char* path, int mode) { return by_path(next_euidaccess, path, mode); }

int wrapped_faccessat(int directory, const char* path, int mode, int flags) VERBENA_WRAP(faccessat);
int wrapped_faccessat(int directory, const char* path, int mode, int flags) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_faccessat(directory, path, mode, flags);
  return redirected(at, -1, [&](const char* there) {
    return next_faccessat(AT_FDCWD, there, mode, seeing_device(at, flags));
  });
}

int wrapped_statfs(const char* path, struct statfs* status) VERBENA_WRAP(statfs);
int wrapped_statfs(const char* path, struct statfs* status) {
  return by_path(next_statfs, path, status);
}

int wrapped_statfs64(const char* path, struct statfs64* status) VERBENA_WRAP(statfs64);
int wrapped_statfs64(const char* path, struct statfs64* status) {
  return by_path(next_statfs64, path, status);
}

int wrapped_statvfs(const char* path, struct statvfs* status) VERBENA_WRAP(statvfs);
int wrapped_statvfs(const char* path, struct statvfs* status) {
  return by_path(next_statvfs, path, status);
}

int wrapped_statvfs64(const char* path, struct statvfs64* status) VERBENA_WRAP(statvfs64);
int wrapped_statvfs64(const char* path, struct statvfs64* status) {
  return by_path(next_statvfs64, path, status);
}

ssize_t wrapped_getxattr(const char* path, const char* name, void* value, std::size_t size)
    VERBENA_WRAP(getxattr);
ssize_t wrapped_getxattr(const char* path, const char* name, void* value, std::size_t size) {
  return by_path(next_getxattr, path, name, value, size);
}

ssize_t wrapped_lgetxattr(const char* path, const char* name, void* value, std::size_t size)
    VERBENA_WRAP(lgetxattr);
ssize_t wrapped_lgetxattr(const char* path, const char* name, void* value, std::size_t size) {
  return by_path_of_link(next_lgetxattr, next_getxattr, path, name, value, size);
}

ssize_t wrapped_listxattr(const char* path, char* names, std::size_t size) VERBENA_WRAP(listxattr);
ssize_t wrapped_listxattr(const char* path, char* names, std::size_t size) {
  return by_path(next_listxattr, path, names, size);
}

ssize_t wrapped_llistxattr(const char* path, char* names, std::size_t size)
    VERBENA_WRAP(llistxattr);
ssize_t wrapped_llistxattr(const char* path, char* names, std::size_t size) {
  return by_path_of_link(next_llistxattr, next_listxattr, path, names, size);
}

long wrapped_pathconf(const char* path, int name) VERBENA_WRAP(pathconf);
long wrapped_pathconf(const char* path, int name) { return by_path(next_pathconf, path, name); }

int wrapped_inotify_add_watch(int watcher, const char* path, std::uint32_t mask)
    VERBENA_WRAP(inotify_add_watch);
int wrapped_inotify_add_watch(int watcher, const char* path, std::uint32_t mask) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next_inotify_add_watch(watcher, path, mask);
  return redirected(
      at, -1, [&](const char* there) { return next_inotify_add_watch(watcher, there, mask); });
}

}  // extern "C"
