// SPDX-License-Identifier: MIT
#include "cli/tree_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "base/unique_fd.h"

namespace verbena::cli {
namespace {

using Kind = TreeEntry::Kind;

constexpr mode_t kPrivate = 0700;
constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr time_t kAbandonedSeconds = 3600;  // a tree that nobody finished
constexpr std::string_view kUnfinished = ".new-";

std::string because(const std::string& path, int error) {
  return fmt::format("{}: {}", path, std::strerror(error));
}

// FNV-1a over every entry with its ends marked.
std::uint64_t content_hash(std::span<const TreeEntry> entries) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](std::string_view text) {
    for (const char c : text)
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash = (hash ^ 0x100u) * 0x100000001b3u;
  };
  for (const TreeEntry& entry : entries) {
    add(std::to_string(static_cast<int>(entry.kind)));
    add(entry.path);
    add(entry.content);
  }
  return hash;
}

std::string tree_name(std::span<const TreeEntry> entries) {
  struct stat network = {};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return fmt::format("{}-{:016x}", network.st_ino, content_hash(entries));
}

// The user's own folder in `base`.
Result<UniqueFd, std::string> open_private_folder(const std::string& path) {
  if (mkdir(path.c_str(), kPrivate) != 0 && errno != EEXIST) return refuse(because(path, errno));
  UniqueFd folder(open(path.c_str(), kOpenFolder));
  struct stat status = {};
  if (folder.get() < 0 || fstat(folder.get(), &status) != 0) return refuse(because(path, errno));
  if (status.st_uid != geteuid()) return refuse(path + ": belongs to another user");
  if ((status.st_mode & 0777) != kPrivate && fchmod(folder.get(), kPrivate) != 0) {
    return refuse(because(path, errno));
  }
  return folder;
}

// Makes the folders above `path` in `root`.
bool make_folders_above(int root, const std::string& path) {
  for (std::size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (mkdirat(root, path.substr(0, slash).c_str(), 0755) != 0 && errno != EEXIST) return false;
  }
  return true;
}

bool make_file(int root, const TreeEntry& entry) {
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const UniqueFd file(openat(root, entry.path.c_str(), flags, 0444));
  if (file.get() < 0) return false;
  const ssize_t written = write(file.get(), entry.content.data(), entry.content.size());
  if (written == static_cast<ssize_t>(entry.content.size())) return true;
  if (written >= 0) errno = ENOSPC;
  return false;
}

bool make_entry(int root, const TreeEntry& entry) {
  if (!make_folders_above(root, entry.path)) return false;
  switch (entry.kind) {
    case Kind::kFolder: return mkdirat(root, entry.path.c_str(), 0755) == 0 || errno == EEXIST;
    case Kind::kFile: return make_file(root, entry);
    case Kind::kLink: return symlinkat(entry.content.c_str(), root, entry.path.c_str()) == 0;
  }
  return false;
}

// Cleaners of /tmp take files away one by one.
bool is_complete(int store, const std::string& name, std::span<const TreeEntry> entries) {
  const UniqueFd tree(openat(store, name.c_str(), kOpenFolder));
  if (tree.get() < 0) return false;
  return std::all_of(entries.begin(), entries.end(), [&](const TreeEntry& entry) {
    struct stat status = {};
    if (fstatat(tree.get(), entry.path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return false;
    const auto size = static_cast<off_t>(entry.content.size());
    return entry.kind == Kind::kFolder || status.st_size == size;
  });
}

// Removes what `name` is in `parent`, with everything below; follows no link.
void remove_all(int parent, const std::string& name) {
  if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
  UniqueFd folder(openat(parent, name.c_str(), kOpenFolder));
  if (folder.get() < 0) return;
  if (DIR* listing = fdopendir(dup(folder.get()))) {
    while (const dirent* entry = readdir(listing)) {
      const std::string_view child = entry->d_name;
      if (child != "." && child != "..") remove_all(folder.get(), std::string(child));
    }
    closedir(listing);
  }
  unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

// Keeps the store small: what nobody finished goes, and the trees that were used longest ago.
void prune(int store) {
  std::vector<std::pair<time_t, std::string>> trees;
  DIR* listing = fdopendir(dup(store));
  if (!listing) return;
  rewinddir(listing);
  const time_t now = time(nullptr);
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    struct stat status = {};
    if (name == "." || name == "..") continue;
    if (fstatat(store, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const bool is_unfinished = name.starts_with(kUnfinished);
    if (is_unfinished && now - status.st_mtime > kAbandonedSeconds) remove_all(store, name);
    if (!is_unfinished) trees.emplace_back(status.st_mtime, name);
  }
  closedir(listing);
  std::sort(trees.begin(), trees.end());
  for (std::size_t i = 0; i + kTreesMax < trees.size(); ++i)
    remove_all(store, trees[i].second);
}

// Puts the finished tree in its place. Another process may have done the same meanwhile, and an
// incomplete one may be there.
bool put_in_place(int store, const std::string& made, const std::string& name,
                  std::span<const TreeEntry> entries) {
  if (renameat2(store, made.c_str(), store, name.c_str(), RENAME_NOREPLACE) == 0) return true;
  const int error = errno;
  if (error == EEXIST && !is_complete(store, name, entries)) {
    if (renameat2(store, made.c_str(), store, name.c_str(), RENAME_EXCHANGE) != 0) return false;
    remove_all(store, made);
    return true;
  }
  // Some file systems have no such flags; a plain rename replaces no folder that has content.
  if (error == EINVAL && renameat(store, made.c_str(), store, name.c_str()) == 0) return true;
  return is_complete(store, name, entries);
}

Result<void, std::string> make_tree(int store, const std::string& name,
                                    std::span<const TreeEntry> entries) {
  KernelRandom random;
  const std::string made = fmt::format("{}{}-{:x}", kUnfinished, getpid(), random.next());
  if (mkdirat(store, made.c_str(), 0755) != 0) return refuse(because(made, errno));
  const UniqueFd root(openat(store, made.c_str(), kOpenFolder));
  const bool is_made =
      root.get() >= 0 && std::all_of(entries.begin(), entries.end(), [&](const TreeEntry& entry) {
        return make_entry(root.get(), entry);
      });
  if (is_made && put_in_place(store, made, name, entries)) {
    remove_all(store, made);  // where another process was quicker
    prune(store);
    return {};
  }
  const int error = errno;
  remove_all(store, made);
  return refuse(because(name, error));
}

}  // namespace

std::vector<std::string> tree_bases() {
  std::vector<std::string> bases;
  for (const char* variable : {"XDG_RUNTIME_DIR", "", "TMPDIR"}) {
    const char* base = *variable ? std::getenv(variable) : "/tmp";
    if (!base || base[0] != '/') continue;
    // As the program will see it, also when it asks for real paths.
    char* real = realpath(base, nullptr);
    if (!real) continue;
    if (std::find(bases.begin(), bases.end(), real) == bases.end()) bases.emplace_back(real);
    std::free(real);
  }
  bases.emplace_back("/dev/shm");
  return bases;
}

Result<std::string, std::string> store_tree(const std::string& base,
                                            std::span<const TreeEntry> entries) {
  const std::string path = fmt::format("{}/verbena-{}", base, geteuid());
  Result<UniqueFd, std::string> store = open_private_folder(path);
  if (!store) return refuse(store.error());
  const std::string name = tree_name(entries);
  if (is_complete(store->get(), name, entries)) {
    utimensat(store->get(), name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);  // used now
  } else if (Result<void, std::string> made = make_tree(store->get(), name, entries); !made) {
    return refuse(path + "/" + made.error());
  }
  return path + "/" + name;
}

}  // namespace verbena::cli
