// SPDX-License-Identifier: MIT
#include "memory/open_files.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

// As the kernel writes it (getdents64(2)).
struct DirectoryEntry {
  std::uint64_t inode;
  std::int64_t next;
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};
constexpr std::size_t kNameOffset = offsetof(DirectoryEntry, name);

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
  alignas(DirectoryEntry) char entries[4096];
  bool is_going_on = true;
  bool has_any = false;
  long got = 0;
  while (is_going_on && (got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0) {
    for (long at = 0; is_going_on && at < got;) {
      std::uint16_t length = 0;
      std::memcpy(&length, entries + at + offsetof(DirectoryEntry, length), sizeof length);
      const char* const name = entries + at + static_cast<long>(kNameOffset);
      has_any = true;
      if (*name != '.' && is_ring(folder, name)) is_going_on = see(name);
      at += length;
    }
  }
  raw::close(folder);
  return got >= 0 && has_any;
}

// Takes "0x7f8260359064/300000" apart.
bool parse_buffer(std::string_view text, std::uint64_t& begin, std::uint64_t& length) {
  if (!text.starts_with("0x")) return false;
  const char* const end = text.data() + text.size();
  const auto address = std::from_chars(text.data() + 2, end, begin, 16);
  if (address.ec != std::errc{} || address.ptr == end || *address.ptr != '/') return false;
  return std::from_chars(address.ptr + 1, end, length).ec == std::errc{};
}

// Reads /proc/self/fdinfo/N of a ring line by line: after "UserBufs:" comes a line a buffer.
class RingBuffers {
 public:
  RingBuffers(std::uint64_t begin, std::uint64_t end) : begin_(begin), end_(end) {}

  // False: the kernel does not say which buffers there are.
  bool read(const char* number) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/fdinfo/%.16s", number);
    const int file = raw::open(path, O_RDONLY);
    if (file < 0) return false;
    has_list_ = is_in_list_ = false;
    char text[1024];
    long got = 0;
    while ((got = syscall(SYS_read, file, text, sizeof text)) > 0) {
      for (const char c : std::string_view(text, static_cast<std::size_t>(got)))
        take(c);
    }
    raw::close(file);
    return got == 0 && has_list_;
  }
  bool overlaps() const { return overlaps_; }
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  void take(char c) {
    if (c != '\n') {
      if (length_ < line_.size()) line_[length_++] = c;
      return;
    }
    see({line_.data(), length_});
    length_ = 0;
  }
  void see(std::string_view line) {
    if (line.starts_with("UserBufs:")) {
      has_list_ = is_in_list_ = true;
      return;
    }
    const std::size_t at = line.find("0x");
    if (!line.starts_with(' ')) is_in_list_ = false;
    if (!is_in_list_ || at == std::string_view::npos) return;
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
    if (!parse_buffer(line.substr(at), begin, length)) return;
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const std::uint64_t first = begin / page * page;
    const std::uint64_t last = (begin + length + page - 1) / page * page;
    pinned_bytes_ += last - first;
    if (first < end_ && last > begin_) overlaps_ = true;
  }

  const std::uint64_t begin_;
  const std::uint64_t end_;
  std::array<char, 128> line_{};
  std::size_t length_ = 0;
  bool has_list_ = false;
  bool is_in_list_ = false;
  bool overlaps_ = false;
  std::uint64_t pinned_bytes_ = 0;
};

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
  RingBuffers buffers(first, first + length);
  bool is_told = true;
  const bool is_read = each_ring([&](const char* number) {
    is_told = buffers.read(number);
    return is_told && !buffers.overlaps();
  });
  // What no ring explains is somebody else's, who may mean this range as well.
  return !is_read || !is_told || buffers.overlaps() || buffers.pinned_bytes() < pinned_bytes;
}

}  // namespace verbena::memory
