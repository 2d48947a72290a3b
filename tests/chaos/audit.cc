// SPDX-License-Identifier: MIT
#include "audit.h"

#include <dirent.h>

#include <cstdio>
#include <cstring>
#include <set>

namespace chaos {
namespace {

unsigned entries_of(const std::string& folder) {
  DIR* opened = opendir(folder.c_str());
  if (!opened) return 0;
  unsigned count = 0;
  while (const dirent* entry = readdir(opened))
    count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(opened);
  return count;
}

}  // namespace

std::string audit() {
  // Threads may have tables of their own.
  unsigned fds = 0, threads = 0, maps = 0;
  // A file counts once, however many pieces of it are mapped.
  std::set<unsigned long> files;
  if (DIR* tasks = opendir("/proc/self/task")) {
    while (const dirent* task = readdir(tasks)) {
      if (task->d_name[0] == '.') continue;
      ++threads;
      fds += entries_of(std::string("/proc/self/task/") + task->d_name + "/fd");
    }
    closedir(tasks);
  }
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  --threads;  // the sanitizer's own
#endif
#endif
  if (FILE* file = std::fopen("/proc/self/maps", "re")) {
    char line[512];
    while (std::fgets(line, sizeof line, file)) {
      ++maps;
      unsigned long inode = 0;
      const bool is_shared =
          std::strstr(line, "memfd:") && std::sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1;
      if (is_shared) files.insert(inode);
    }
    std::fclose(file);
  }
  return "fds " + std::to_string(fds) + " maps " + std::to_string(maps) + " shared " +
         std::to_string(files.size()) + " threads " + std::to_string(threads);
}

}  // namespace chaos
