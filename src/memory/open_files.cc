// SPDX-License-Identifier: MIT
#include "memory/open_files.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "memory/directory_names.h"
#include "memory/raw_calls.h"
#include "memory/ring_buffers.h"

namespace verbena::memory {
namespace {

bool is_ring(int folder, const char* name) {
  char target[64];
  const long length = syscall(SYS_readlinkat, folder, name, target, sizeof target);
  return length > 0 &&
         std::string_view(target, static_cast<std::size_t>(length)) == "anon_inode:[io_uring]";
}

// Calls `see(number of the descriptor as text)` for every io_uring, until it says false. The
// folder is that of the process's first thread: its table is the program's. False: it cannot be
// read.
template <class See>
bool each_ring(See see) {
  const int folder = raw::open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
  if (folder < 0) return false;
  alignas(8) char entries[4096];
  bool has_any = false;
  NamesEnd end = NamesEnd::kAll;
  long got = 0;
  while (end == NamesEnd::kAll &&
         (got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0) {
    has_any = true;
    end = each_name({entries, static_cast<std::size_t>(got)}, [&](const char* name) {
      return *name == '.' || !is_ring(folder, name) || see(name);
    });
  }
  raw::close(folder);
  return got >= 0 && has_any && end != NamesEnd::kBroken;
}

// False: the kernel does not say which buffers the ring has.
bool read_buffers(const char* number, RingBuffers& buffers) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%.16s", number);
  const int file = raw::open(path, O_RDONLY);
  if (file < 0) return false;
  buffers.begin();
  char text[1024];
  long got = 0;
  while ((got = syscall(SYS_read, file, text, sizeof text)) > 0)
    buffers.take({text, static_cast<std::size_t>(got)});
  raw::close(file);
  return got == 0 && buffers.has_list();
}

}  // namespace

AsynchronousIo find_asynchronous_io(const ProcessMap* map) {
  bool has_ring = false;
  errno = 0;
  const bool is_known = each_ring([&](const char*) {
    has_ring = true;
    return false;
  });
  if (has_ring) return AsynchronousIo::kThere;
  const bool is_short = errno == EMFILE || errno == ENFILE;
  if (!is_known && !(is_short && map)) return AsynchronousIo::kUnknown;
  if (!map) return AsynchronousIo::kNone;
  const std::optional<MapSurvey> survey = map->survey();
  if (!survey) return AsynchronousIo::kUnknown;
  return survey->has_asynchronous_io ? AsynchronousIo::kThere : AsynchronousIo::kNone;
}

bool may_be_pinned(const std::byte* begin, std::size_t length, std::uint64_t pinned_bytes) {
  if (pinned_bytes == 0) return false;
  const auto first = reinterpret_cast<std::uint64_t>(begin);
  RingBuffers buffers(first, first + length, static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
  bool is_told = true;
  const bool is_read = each_ring([&](const char* number) {
    is_told = read_buffers(number, buffers);
    return is_told && !buffers.overlaps();
  });
  // What no ring explains is somebody else's, who may mean this range as well.
  return !is_read || !is_told || buffers.overlaps() || buffers.pinned_bytes() < pinned_bytes;
}

}  // namespace verbena::memory
