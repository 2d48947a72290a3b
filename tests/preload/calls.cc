// SPDX-License-Identifier: MIT
// Calls every function that the preload wraps, for a device's file, for what only looks like one,
// and for what is missing. Runs over the tree that run_preload.py makes.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace preload_test {
namespace {

constexpr char kFile[] = "/sys/class/infiniband/vrb_test0/node_type";
constexpr char kContent[] = "1: CA\n";
constexpr off_t kSize = sizeof kContent - 1;
constexpr char kMissing[] = "/sys/class/infiniband/vrb_test0/missing";
constexpr char kNoDevice[] = "/dev/infiniband/uverbs9";

std::string content_of(int file) {
  char text[64] = "";
  const ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  return length < 0 ? "error" : std::string(text, static_cast<std::size_t>(length));
}

std::string content_of(FILE* file) {
  char text[64] = "";
  if (!file) return "error";
  const std::size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  return std::string(text, length);
}

// Whether the call failed, with this error. Its value comes first, so errno is its own.
bool failed_with(int error, bool failed) { return failed && errno == error; }

void check_open() {
  // volatile: fortified headers take the flags for a constant otherwise and do not call __open_2.
  volatile int flags = O_RDONLY;
  CHECK(content_of(open(kFile, flags)) == kContent);
  CHECK(content_of(open64(kFile, flags)) == kContent);
  CHECK(content_of(openat(AT_FDCWD, kFile, flags)) == kContent);
  CHECK(content_of(openat64(AT_FDCWD, kFile, flags)) == kContent);
  CHECK(content_of(openat(-1, kFile, flags)) == kContent);  // an absolute path needs no folder
  CHECK(content_of(open("/sys//class/./infiniband///vrb_test0/node_type", flags)) == kContent);
  CHECK(content_of(open("//sys/class/infiniband/vrb_test0/node_type", flags)) == kContent);
  CHECK(failed_with(ENOENT, open(kMissing, flags) < 0));
  CHECK(failed_with(ENOENT, open("/sys/class/infinibandX/vrb_test0/node_type", flags) < 0));
  CHECK(failed_with(ENOENT, open("/dev/infinibandX", flags) < 0));
  CHECK(failed_with(EACCES, open(kFile, O_RDWR) < 0));
  CHECK(failed_with(EACCES, open(kFile, O_RDONLY | O_TRUNC) < 0));
  CHECK(failed_with(EACCES, open(kMissing, O_RDONLY | O_CREAT, 0600) < 0));
  const int device = open(kDevice, O_RDWR | O_CLOEXEC);
  CHECK(device >= 0 && (fcntl(device, F_GETFD) & FD_CLOEXEC));
  close(device);

  const std::string too_long = std::string("/sys/class/infiniband/") + std::string(5000, 'x');
  CHECK(failed_with(ENAMETOOLONG, open(too_long.c_str(), flags) < 0));
  const std::string component = std::string("/sys/class/infiniband/") + std::string(300, 'x');
  CHECK(failed_with(ENAMETOOLONG, open(component.c_str(), flags) < 0));
}

void check_relative() {
  const int root = open("/", O_RDONLY | O_DIRECTORY);
  const int other = open("/proc", O_RDONLY | O_DIRECTORY);
  struct stat status = {};
  CHECK(content_of(openat(root, "sys/class/infiniband/vrb_test0/node_type", O_RDONLY)) == kContent);
  CHECK(fstatat(root, "dev/infiniband/uverbs0", &status, 0) == 0);
  CHECK(failed_with(ENOENT, fstatat(other, "sys/class/infiniband", &status, 0) != 0));
  CHECK(fstatat(other, "sys/kernel", &status, 0) == 0);
  close(root);
  close(other);
}

bool refuses(int error, FILE* file) {
  const int seen = errno;
  if (file) std::fclose(file);
  return !file && seen == error;
}

// A stream to open anew.
FILE* null_stream() {
  FILE* file = std::fopen("/dev/null", "r");
  if (!file) std::abort();
  return file;
}

void check_stdio() {
  CHECK(content_of(fopen(kFile, "r")) == kContent);
  CHECK(content_of(fopen64(kFile, "re")) == kContent);
  CHECK(refuses(EACCES, fopen(kFile, "w")));
  CHECK(refuses(EACCES, fopen(kFile, "r+")));
  CHECK(refuses(ENOENT, fopen(kMissing, "r")));
  CHECK(content_of(freopen(kFile, "r", null_stream())) == kContent);
  // NOLINTNEXTLINE(clang-analyzer-unix.Stream): freopen64 closes it
  CHECK(content_of(freopen64(kFile, "r", null_stream())) == kContent);
  CHECK(refuses(EACCES, freopen(kFile, "a", null_stream())));
}

void check_stat() {
  struct stat status = {};
  struct stat64 status64 = {};
  struct statx extended = {};
  CHECK(stat(kFile, &status) == 0 && status.st_size == kSize);
  CHECK(stat64(kFile, &status64) == 0 && status64.st_size == kSize);
  CHECK(lstat(kFile, &status) == 0 && S_ISREG(status.st_mode));
  CHECK(lstat64(kFile, &status64) == 0 && S_ISREG(status64.st_mode));
  CHECK(lstat("/sys/class/infiniband/vrb_test0", &status) == 0 && S_ISLNK(status.st_mode));
  CHECK(fstatat(AT_FDCWD, kFile, &status, 0) == 0 && status.st_size == kSize);
  CHECK(fstatat64(AT_FDCWD, kFile, &status64, 0) == 0 && status64.st_size == kSize);
  CHECK(statx(AT_FDCWD, kFile, 0, STATX_SIZE, &extended) == 0 && extended.stx_size == kSize);
  CHECK(failed_with(ENOENT, stat(kMissing, &status) != 0));
  CHECK(failed_with(ENOTDIR, stat("/sys/class/infiniband/vrb_test0/node_type/x", &status) != 0));
}

// A device is a character device that may be opened, whoever asks.
void check_device() {
  struct stat status = {};
  struct stat64 status64 = {};
  struct statx extended = {};
  CHECK(stat(kDevice, &status) == 0 && S_ISCHR(status.st_mode));
  CHECK(lstat(kDevice, &status) == 0 && S_ISCHR(status.st_mode));
  CHECK(lstat64(kDevice, &status64) == 0 && S_ISCHR(status64.st_mode));
  CHECK(fstatat(AT_FDCWD, kDevice, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(status.st_mode));
  CHECK(statx(AT_FDCWD, kDevice, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &extended) == 0 &&
        S_ISCHR(extended.stx_mode));
  CHECK(access(kDevice, R_OK | W_OK) == 0);
  CHECK(failed_with(ENOENT, lstat(kNoDevice, &status) != 0));
  CHECK(failed_with(ENOENT, access(kNoDevice, F_OK) != 0));
  CHECK(stat("/dev/infiniband", &status) == 0 && S_ISDIR(status.st_mode));
  CHECK(stat("/dev/null", &status) == 0);
}

void check_access() {
  CHECK(access(kFile, R_OK) == 0);
  CHECK(eaccess(kFile, R_OK) == 0);
  CHECK(euidaccess(kFile, R_OK) == 0);
  CHECK(faccessat(AT_FDCWD, kFile, R_OK, 0) == 0);
  CHECK(faccessat(AT_FDCWD, kFile, R_OK, AT_EACCESS) == 0);
  CHECK(failed_with(ENOENT, access(kMissing, F_OK) != 0));
  CHECK(failed_with(ENOENT, faccessat(AT_FDCWD, kMissing, F_OK, 0) != 0));
  // The kernel says EFAULT, and nobody crashes. volatile hides the null from the compiler.
  const char* volatile nowhere = nullptr;
  CHECK(failed_with(EFAULT, access(nowhere, F_OK) != 0));
}

void check_the_rest() {
  struct statfs file_system = {};
  struct statvfs file_system_too = {};
  char buffer[256];
  CHECK(statfs(kFile, &file_system) == 0);
  CHECK(statvfs(kFile, &file_system_too) == 0);
  CHECK(pathconf(kFile, _PC_NAME_MAX) > 0);
  CHECK(failed_with(ENODATA, getxattr(kFile, "user.none", buffer, sizeof buffer) < 0) ||
        errno == EOPNOTSUPP);
  CHECK(failed_with(ENOENT, getxattr(kMissing, "user.none", buffer, sizeof buffer) < 0));
  CHECK(listxattr(kFile, buffer, sizeof buffer) >= 0 || errno == EOPNOTSUPP);
  CHECK(llistxattr(kDevice, buffer, sizeof buffer) >= 0 || errno == EOPNOTSUPP);
  const int watcher = inotify_init1(IN_CLOEXEC);
  CHECK(inotify_add_watch(watcher, "/sys/class/infiniband", IN_CREATE) >= 0);
  close(watcher);
}

// What programs call that were built before glibc 2.33. They cannot be linked against today's.
void check_old_stat() {
  using Xstat = int (*)(int, const char*, struct stat*);
  using Fxstatat = int (*)(int, int, const char*, struct stat*, int);
  constexpr int kVersion = 1;
  struct stat status = {};
  for (const char* name : {"__xstat", "__xstat64", "__lxstat", "__lxstat64"}) {
    const auto old = reinterpret_cast<Xstat>(dlsym(RTLD_DEFAULT, name));
    CHECK(old && old(kVersion, kFile, &status) == 0 && status.st_size == kSize);
    CHECK(old && old(kVersion, kDevice, &status) == 0 && S_ISCHR(status.st_mode));
    CHECK(old && old(kVersion, "/proc", &status) == 0 && S_ISDIR(status.st_mode));
  }
  for (const char* name : {"__fxstatat", "__fxstatat64"}) {
    const auto old = reinterpret_cast<Fxstatat>(dlsym(RTLD_DEFAULT, name));
    CHECK(old && old(kVersion, AT_FDCWD, kFile, &status, 0) == 0 && status.st_size == kSize);
  }
}

// Eight threads at once, and one that is cancelled in a call.
void check_threads() {
  constexpr int kThreads = 8;
  constexpr int kRounds = 500;
  std::vector<int> good(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&good, i] {
      for (int round = 0; round < kRounds; ++round) {
        good[static_cast<std::size_t>(i)] += content_of(open(kFile, O_RDONLY)) == kContent;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const int count : good)
    CHECK(count == kRounds);

  pthread_t cancelled = {};
  void* result = nullptr;
  const auto open_for_ever = [](void*) -> void* {
    for (;;)
      close(open(kFile, O_RDONLY));
  };
  CHECK(pthread_create(&cancelled, nullptr, open_for_ever, nullptr) == 0);
  pthread_cancel(cancelled);
  pthread_join(cancelled, &result);
  CHECK(result == PTHREAD_CANCELED);
}

}  // namespace
}  // namespace preload_test

int main() {
  using namespace preload_test;  // NOLINT(google-build-using-namespace): main
  check_open();
  check_relative();
  check_stdio();
  check_stat();
  check_device();
  check_access();
  check_the_rest();
  check_old_stat();
  check_threads();
  check_links();
  check_folders();
  check_globs();
  const char* early = getenv("EARLY_READ");
  CHECK(early && std::strcmp(early, kContent) == 0);
  // What the tree is may not change under a program that rearranges its environment.
  setenv("VERBENA_SYSFS", "/nowhere", 1);
  CHECK(access(kFile, R_OK) == 0);
  std::printf("%d hold, %d do not\n", passes, failures);
  return failures == 0 ? 0 : 1;
}
