// SPDX-License-Identifier: MIT
// The functions that open files. The tree is shared by all programs of a user, so it opens for
// reading only; a write to the kernel's own files would be refused likewise.
#include <fcntl.h>
#include <stdio.h>

#include <cstdarg>
#include <cstring>

#include "preload/next.h"
#include "preload/redirect.h"

using verbena::preload::match;
using verbena::preload::Match;
using verbena::preload::Place;
using verbena::preload::redirected;

VERBENA_NEXT(open, int(const char*, int, ...));
VERBENA_NEXT(open64, int(const char*, int, ...));
VERBENA_NEXT(__open, int(const char*, int, ...));
VERBENA_NEXT(__open64, int(const char*, int, ...));
VERBENA_NEXT(openat, int(int, const char*, int, ...));
VERBENA_NEXT(openat64, int(int, const char*, int, ...));
VERBENA_NEXT(__open_2, int(const char*, int));
VERBENA_NEXT(__open64_2, int(const char*, int));
VERBENA_NEXT(__openat_2, int(int, const char*, int));
VERBENA_NEXT(__openat64_2, int(int, const char*, int));
VERBENA_NEXT(fopen, FILE*(const char*, const char*));
VERBENA_NEXT(fopen64, FILE*(const char*, const char*));
VERBENA_NEXT(freopen, FILE*(const char*, const char*, FILE*));
VERBENA_NEXT(freopen64, FILE*(const char*, const char*, FILE*));

namespace {

bool is_refused(const Match& at, bool writes) {
  if (at.place != Place::kSysfs || !writes) return false;
  errno = EACCES;
  return true;
}

bool writes(int flags) { return (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != O_RDONLY; }

bool has_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

// The third or fourth argument of open, which is there only when a file may be made.
#define MODE_AFTER(flags)             \
  mode_t mode = 0;                    \
  if (has_mode(flags)) {              \
    va_list arguments;                \
    va_start(arguments, flags);       \
    mode = va_arg(arguments, mode_t); \
    va_end(arguments);                \
  }

template <class Function>
int open_by(Function& next, const char* path, int flags, mode_t mode) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(path, flags, mode);
  if (is_refused(at, writes(flags))) return -1;
  return redirected(at, -1, [&](const char* there) { return next(there, flags, mode); });
}

template <class Function>
int openat_by(Function& next, int directory, const char* path, int flags, mode_t mode) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(directory, path, flags, mode);
  if (is_refused(at, writes(flags))) return -1;
  return redirected(at, -1, [&](const char* there) { return next(AT_FDCWD, there, flags, mode); });
}

template <class Function>
FILE* fopen_by(Function& next, const char* path, const char* mode) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(path, mode);
  if (is_refused(at, std::strpbrk(mode, "wa+"))) return nullptr;
  return redirected(at, static_cast<FILE*>(nullptr),
                    [&](const char* there) { return next(there, mode); });
}

// The old stream is closed in any case, also when the new file cannot be opened.
template <class Function>
FILE* freopen_by(Function& next, const char* path, const char* mode, FILE* stream) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next(path, mode, stream);
  if (is_refused(at, std::strpbrk(mode, "wa+"))) {
    fclose(stream);
    errno = EACCES;
    return nullptr;
  }
  return redirected(at, static_cast<FILE*>(nullptr),
                    [&](const char* there) { return next(there, mode, stream); });
}

}  // namespace

extern "C" {

int wrapped_open(const char* path, int flags, ...) VERBENA_WRAP(open);
int wrapped_open(const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return open_by(next_open, path, flags, mode);
}

int wrapped_open64(const char* path, int flags, ...) VERBENA_WRAP(open64);
int wrapped_open64(const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return open_by(next_open64, path, flags, mode);
}

int wrapped_dunder_open(const char* path, int flags, ...) VERBENA_WRAP(__open);
int wrapped_dunder_open(const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return open_by(next___open, path, flags, mode);
}

int wrapped_dunder_open64(const char* path, int flags, ...) VERBENA_WRAP(__open64);
int wrapped_dunder_open64(const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return open_by(next___open64, path, flags, mode);
}

int wrapped_openat(int directory, const char* path, int flags, ...) VERBENA_WRAP(openat);
int wrapped_openat(int directory, const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return openat_by(next_openat, directory, path, flags, mode);
}

int wrapped_openat64(int directory, const char* path, int flags, ...) VERBENA_WRAP(openat64);
int wrapped_openat64(int directory, const char* path, int flags, ...) {
  MODE_AFTER(flags)
  return openat_by(next_openat64, directory, path, flags, mode);
}

// What fortified programs call when they give no mode.
int wrapped_open_2(const char* path, int flags) VERBENA_WRAP(__open_2);
int wrapped_open_2(const char* path, int flags) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next___open_2(path, flags);
  return open_by(next_open, path, flags, 0);
}

int wrapped_open64_2(const char* path, int flags) VERBENA_WRAP(__open64_2);
int wrapped_open64_2(const char* path, int flags) {
  const Match at = match(AT_FDCWD, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next___open64_2(path, flags);
  return open_by(next_open64, path, flags, 0);
}

int wrapped_openat_2(int directory, const char* path, int flags) VERBENA_WRAP(__openat_2);
int wrapped_openat_2(int directory, const char* path, int flags) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next___openat_2(directory, path, flags);
  return openat_by(next_openat, directory, path, flags, 0);
}

int wrapped_openat64_2(int directory, const char* path, int flags) VERBENA_WRAP(__openat64_2);
int wrapped_openat64_2(int directory, const char* path, int flags) {
  const Match at = match(directory, path);
  if (at.place == Place::kElsewhere) [[likely]]
    return next___openat64_2(directory, path, flags);
  return openat_by(next_openat64, directory, path, flags, 0);
}

FILE* wrapped_fopen(const char* path, const char* mode) VERBENA_WRAP(fopen);
FILE* wrapped_fopen(const char* path, const char* mode) { return fopen_by(next_fopen, path, mode); }

FILE* wrapped_fopen64(const char* path, const char* mode) VERBENA_WRAP(fopen64);
FILE* wrapped_fopen64(const char* path, const char* mode) {
  return fopen_by(next_fopen64, path, mode);
}

FILE* wrapped_freopen(const char* path, const char* mode, FILE* stream) VERBENA_WRAP(freopen);
FILE* wrapped_freopen(const char* path, const char* mode, FILE* stream) {
  return freopen_by(next_freopen, path, mode, stream);
}

FILE* wrapped_freopen64(const char* path, const char* mode, FILE* stream) VERBENA_WRAP(freopen64);
FILE* wrapped_freopen64(const char* path, const char* mode, FILE* stream) {
  return freopen_by(next_freopen64, path, mode, stream);
}

}  // extern "C"
