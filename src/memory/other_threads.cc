// SPDX-License-Identifier: MIT
#include "memory/other_threads.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string_view>

#include "memory/directory_names.h"
#include "memory/proc_text.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

// linux/futex.h of 5.16 and 6.7; the headers may be older than the kernel.
constexpr long kFutexWaitv = 449;
constexpr long kFutexWait = 455;
constexpr std::uint64_t kPrivate = FUTEX_PRIVATE_FLAG;  // FUTEX2_PRIVATE is the same bit

// Our own threads on a processor poll queues; nothing of theirs is the program's memory.
constexpr std::string_view kOurs = "verbena-";

void nap() {
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 50'000};
  syscall(SYS_nanosleep, &kPause, nullptr);
}

// Of a small file of /proc; below 0: it is not there, or is not told.
long read_text(const char* path, char* text, std::size_t size) {
  const int file = raw::open(path, O_RDONLY);
  if (file < 0) return -1;
  const long got = raw::read_at(file, text, size, 0);
  const int saved = errno;
  raw::close(file);
  errno = saved;
  return got;
}

class Look {
 public:
  Look(const PageRun& range, ThreadUse use, std::uint32_t quiet)
      : begin_(reinterpret_cast<std::uint64_t>(range.begin)),
        end_(begin_ + range.length),
        use_(use),
        quiet_(quiet) {}

  // Of all threads but the calling one. False: somebody uses the range, or it is not known.
  bool is_clear() {
    const int folder = raw::open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    if (folder < 0) return (errno == EMFILE || errno == ENFILE) && is_alone();
    char own[16];
    std::snprintf(own, sizeof own, "%d", static_cast<int>(syscall(SYS_gettid)));
    const bool nobody = each_thread(
        folder, [&](const char* id) { return std::strcmp(id, own) == 0 || is_clear_of(id); });
    raw::close(folder);
    return nobody;
  }
  bool has_running() const { return has_running_; }

 private:
  template <class See>
  static bool each_thread(int folder, See see) {
    alignas(8) char entries[2048];
    bool has_any = false;
    long got = 0;
    while ((got = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0) {
      const std::span all(entries, static_cast<std::size_t>(got));
      const NamesEnd end = each_name(all, [&](const char* name) {
        if (*name == '.') return true;
        has_any = true;
        return see(name);
      });
      if (end != NamesEnd::kAll) return false;
    }
    return got == 0 && has_any;
  }

  // The folder has a link for each thread, and two more.
  bool is_alone() const {
    struct stat status{};
    return stat("/proc/self/task", &status) == 0 && status.st_nlink <= quiet_ + std::uint64_t{2};
  }

  bool is_clear_of(const char* id) {
    char path[64];
    char text[256];
    std::snprintf(path, sizeof path, "/proc/self/task/%.16s/syscall", id);
    const long got = read_text(path, text, sizeof text);
    if (got < 0) {
      if (errno == ENOENT || errno == ESRCH) return true;  // it has ended
      return (errno == EMFILE || errno == ENFILE) && is_alone();
    }
    ThreadCall call;
    if (!parse_call(text, static_cast<std::uint64_t>(got), call)) return false;
    if (call.is_running) {
      if (!is_ours(id)) has_running_ = true;
      return true;
    }
    return !sleeps(call) && (use_ == ThreadUse::kSleeps || !reads(call, id));
  }

  static bool is_ours(const char* id) {
    char path[64];
    char name[32];
    std::snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", id);
    const long got = read_text(path, name, sizeof name);
    return got > 0 && std::string_view(name, static_cast<std::size_t>(got)).starts_with(kOurs);
  }

  bool holds(std::uint64_t address) const { return address >= begin_ && address < end_; }

  bool sleeps(const ThreadCall& call) const {
    const auto& arguments = call.arguments;
    switch (call.number) {
      case SYS_futex:
        if ((arguments[1] & kPrivate) != 0) return false;
        return holds(arguments[0]) || holds(arguments[4]);
      case kFutexWait: return (arguments[3] & kPrivate) == 0 && holds(arguments[0]);
      case kFutexWaitv: return true;  // a list of them, in memory that we may be withholding
      default: return false;
    }
  }

  bool reads(const ThreadCall& call, const char* id) const {
    const std::uint64_t at = call.arguments[1];
    const std::uint64_t length = call.arguments[2];
    switch (call.number) {
      case SYS_read:
      case SYS_pread64:
        // As far as it could read.
        if (at >= end_ || (length < ~at && at + length <= begin_)) return false;
        break;
      case SYS_readv:
      case SYS_preadv:
      case SYS_preadv2: break;
      default: return false;
    }
    return may_hold_pages(static_cast<unsigned>(call.arguments[0]), id);
  }

  // A file opened past the page cache; and any file of a file system, because some (FUSE, 9p) go
  // past it by themselves. Sockets, pipes and terminals copy, and may take for ever.
  static bool may_hold_pages(unsigned descriptor, const char* id) {
    char path[64];
    char text[512];
    std::snprintf(path, sizeof path, "/proc/self/task/%.16s/fd/%u", id, descriptor);
    const long length = syscall(SYS_readlinkat, AT_FDCWD, path, text, sizeof text);
    if (length <= 0) return true;  // closed meanwhile, and still read from
    const std::string_view target(text, static_cast<std::size_t>(length));
    if (target.starts_with('/') && !target.starts_with("/dev/")) return true;
    std::snprintf(path, sizeof path, "/proc/self/task/%.16s/fdinfo/%u", id, descriptor);
    const long got = read_text(path, text, sizeof text);
    if (got <= 0) return true;
    return may_be_direct({text, static_cast<std::size_t>(got)});
  }

  const std::uint64_t begin_;
  const std::uint64_t end_;
  const ThreadUse use_;
  const std::uint32_t quiet_;
  bool has_running_ = false;
};

}  // namespace

bool parse_call(const char* text, std::uint64_t length, ThreadCall& call) {
  std::string_view rest(text, length);
  call = {};
  if (rest.starts_with("running")) {
    call.is_running = true;
    return true;
  }
  const char* const end = text + length;
  const auto number = std::from_chars(text, end, call.number);
  if (number.ec != std::errc{}) return false;
  if (call.number < 0) return true;
  const char* at = number.ptr;
  for (std::uint64_t& argument : call.arguments) {
    constexpr std::string_view kBefore = " 0x";
    if (!std::string_view(at, static_cast<std::size_t>(end - at)).starts_with(kBefore)) {
      return false;
    }
    const auto parsed = std::from_chars(at + kBefore.size(), end, argument, 16);
    if (parsed.ec != std::errc{}) return false;
    at = parsed.ptr;
  }
  return true;
}

bool is_used_by_others(const PageRun& range, ThreadUse use, std::uint32_t quiet) {
  // Who is on a processor is looked at twice more.
  constexpr int kLooks = 3;
  for (int i = 0;; ++i) {
    Look look(range, use, quiet);
    if (!look.is_clear()) return true;
    if (!look.has_running() || i + 1 == kLooks) return false;
    nap();
  }
}

bool stays_used_by_others(const PageRun& range, ThreadUse use, std::uint32_t quiet) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    if (!Look(range, use, quiet).is_clear()) {
      nap();
      continue;
    }
    return false;
  }
  return true;
}

}  // namespace verbena::memory
