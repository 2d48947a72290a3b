// SPDX-License-Identifier: MIT
// The functions that go through folders and follow links.
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "check.h"

namespace preload_test {
namespace {

constexpr char kClass[] = "/sys/class/infiniband";
const std::set<std::string> kNames = {"vrb_test0", "vrb_test1"};

template <class Entry>
std::set<std::string> names_of(Entry** list, int count) {
  std::set<std::string> names;
  for (int i = 0; i < count; ++i) {
    if (list[i]->d_name[0] != '.') names.insert(list[i]->d_name);
    std::free(list[i]);
  }
  if (count >= 0) std::free(static_cast<void*>(list));
  return names;
}

std::string taken(char* allocated) {
  const std::string text = allocated ? allocated : "null";
  std::free(allocated);
  return text;
}

std::string linked(ssize_t length, const char* target) {
  return length < 0 ? "error" : std::string(target, static_cast<std::size_t>(length));
}

}  // namespace

void check_folders() {
  std::set<std::string> names;
  DIR* folder = opendir(kClass);
  CHECK(folder != nullptr);
  while (const dirent* entry = folder ? readdir(folder) : nullptr) {
    if (entry->d_name[0] != '.') names.insert(entry->d_name);
  }
  if (folder) closedir(folder);
  CHECK(names == kNames);
  CHECK(opendir("/sys/class/infinibandX") == nullptr && errno == ENOENT);

  dirent** list = nullptr;
  dirent64** list64 = nullptr;
  int count = scandir(kClass, &list, nullptr, alphasort);
  CHECK(names_of(list, count) == kNames);
  count = scandir64(kClass, &list64, nullptr, alphasort64);
  CHECK(names_of(list64, count) == kNames);
  count = scandirat(AT_FDCWD, kClass, &list, nullptr, alphasort);
  CHECK(names_of(list, count) == kNames);
  count = scandirat64(AT_FDCWD, kClass, &list64, nullptr, alphasort64);
  CHECK(names_of(list64, count) == kNames);

  CHECK(chdir("/sys/class/infiniband/vrb_test0") == 0);
  CHECK(access("node_type", R_OK) == 0);
  CHECK(chdir("/") == 0);
  CHECK(access("sys/class/infiniband/vrb_test0/node_type", R_OK) == 0);
}

void check_links() {
  constexpr char kLink[] = "/sys/class/infiniband/vrb_test0";
  constexpr char kTarget[] = "../../devices/verbena/vrb_test0/infiniband/vrb_test0";
  constexpr char kReal[] = "/sys/devices/verbena/vrb_test0/infiniband/vrb_test0";
  char target[PATH_MAX] = "";
  volatile std::size_t size = sizeof target;  // not known when compiled: the fortified forms check
  CHECK(linked(readlink(kLink, target, size), target) == kTarget);
  CHECK(linked(readlinkat(AT_FDCWD, kLink, target, size), target) == kTarget);
  CHECK(readlink(kDevice, target, size) < 0 && errno == EINVAL);
  CHECK(readlink("/dev/infiniband/uverbs9", target, size) < 0 && errno == ENOENT);
  CHECK(readlink("/proc/self/exe", target, size) > 0);

  CHECK(realpath(kLink, target) == target && std::string(target) == kReal);
  CHECK(taken(realpath(kLink, nullptr)) == kReal);
  CHECK(taken(canonicalize_file_name(kLink)) == kReal);
  CHECK(access((std::string(kReal) + "/node_type").c_str(), R_OK) == 0);
  CHECK(taken(realpath(kDevice, nullptr)) == kDevice);
  CHECK(taken(realpath("/sys/class/infiniband/missing", nullptr)) == "null" && errno == ENOENT);
  CHECK(taken(realpath("/usr/../proc", nullptr)) == "/proc");
}

void check_globs() {
  glob_t found = {};
  CHECK(glob("/sys/class/infiniband/vrb_test[0-9]/node_type", 0, nullptr, &found) == 0);
  CHECK(found.gl_pathc == 2 &&
        std::string(found.gl_pathv[1]) == "/sys/class/infiniband/vrb_test1/node_type");
  CHECK(glob("/proc/sel?", GLOB_APPEND, nullptr, &found) == 0);
  CHECK(found.gl_pathc == 3 && std::string(found.gl_pathv[2]) == "/proc/self");
  globfree(&found);
  glob64_t found64 = {};
  found64.gl_offs = 2;
  CHECK(glob64("/dev/infiniband/*", GLOB_DOOFFS, nullptr, &found64) == 0);
  CHECK(found64.gl_pathc == 2 && std::string(found64.gl_pathv[2]) == kDevice);
  globfree64(&found64);
  CHECK(glob("/sys/class/infiniband/none*", 0, nullptr, &found) == GLOB_NOMATCH);
}

}  // namespace preload_test
