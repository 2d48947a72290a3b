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
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "base/far_fence.h"
#include "base/time.h"
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

// What a thread needs at most from finding the memory to going to sleep, of a processor's time.
constexpr Duration kWayToSleep = Duration::microseconds(100);
// Longer than this no thread is waited for: it would be held up by others for so long.
constexpr Duration kPatience = Duration::milliseconds(20);

Instant read_clock(clockid_t clock) {
  timespec time{};
  if (syscall(SYS_clock_gettime, clock, &time) != 0) return Instant::never();
  return Instant::at(std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec);
}

// How long it has had a processor; never: it has ended, or that is not told (linux/posix-timers.h:
// CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED).
Instant time_of(int thread) { return read_clock(~thread * 8 | 4 | 2); }

void nap() { raw::nap(50); }

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
    runner_count_ = 0;
    const int folder = raw::open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    if (folder < 0) return (errno == EMFILE || errno == ENFILE) && is_alone();
    char own[16];
    std::snprintf(own, sizeof own, "%d", static_cast<int>(syscall(SYS_gettid)));
    const bool nobody = each_thread(
        folder, [&](const char* id) { return std::strcmp(id, own) == 0 || is_clear_of(id); });
    raw::close(folder);
    return nobody;
  }

  // Those that were on a processor, or about to be, may have found the memory, and not be asleep
  // yet. Each is given the time for that. False: it sleeps by now.
  bool runners_are_clear() {
    const Instant begin = read_clock(CLOCK_MONOTONIC);
    while (runner_count_ != 0) {
      const Instant before = read_clock(CLOCK_MONOTONIC);
      if (before - begin > kPatience) return true;
      nap();
      // A processor of a virtual machine may not be there for a while, and its thread's time goes
      // on; it answers when it is there again.
      if (has_joined_far_fences()) far_fence();
      if (read_clock(CLOCK_MONOTONIC) - before > kWayToSleep * 3) {
        give_more_time();
      } else if (!pass_over_runners()) {
        return false;
      }
    }
    return true;
  }

 private:
  enum class Seen : std::uint8_t { kClear, kUses, kRuns };
  struct Runner {
    int thread;
    Instant time;  // that it had had when it was seen
  };

  // More than fit are passed over: a processor each, so they have been there all the time.
  void note_runner(const char* id) {
    const Runner runner{std::atoi(id), time_of(std::atoi(id))};
    if (runner_count_ < std::size(runners_)) runners_[runner_count_++] = runner;
  }

  void give_more_time() {
    for (Runner& runner : std::span(runners_, runner_count_))
      runner.time = time_of(runner.thread);
  }

  // Leaves those that may still be on their way. False: one sleeps.
  bool pass_over_runners() {
    std::size_t left = 0;
    for (const Runner& runner : std::span(runners_, runner_count_)) {
      char id[16];
      std::snprintf(id, sizeof id, "%d", runner.thread);
      const Seen seen = look_at(id);
      if (seen == Seen::kUses) return false;
      const Instant now = time_of(runner.thread);
      const bool has_had_time = now == Instant::never() || now - runner.time >= kWayToSleep;
      if (seen == Seen::kRuns && !has_had_time) runners_[left++] = runner;
    }
    runner_count_ = left;
    return true;
  }

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
    const Seen seen = look_at(id);
    if (seen == Seen::kRuns && !is_ours(id)) note_runner(id);
    return seen != Seen::kUses;
  }

  Seen look_at(const char* id) const {
    char path[64];
    char text[256];
    std::snprintf(path, sizeof path, "/proc/self/task/%.16s/syscall", id);
    const long got = read_text(path, text, sizeof text);
    if (got < 0) {
      if (errno == ENOENT || errno == ESRCH) return Seen::kClear;  // it has ended
      const bool is_nobody = (errno == EMFILE || errno == ENFILE) && is_alone();
      return is_nobody ? Seen::kClear : Seen::kUses;
    }
    ThreadCall call;
    if (!parse_call(text, static_cast<std::uint64_t>(got), call)) return Seen::kUses;
    if (call.is_running) return Seen::kRuns;
    const bool is_used = sleeps(call) || (use_ == ThreadUse::kSleepsOrReads && reads(call, id));
    return is_used ? Seen::kUses : Seen::kClear;
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
  Runner runners_[64];
  std::size_t runner_count_ = 0;
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
  Look look(range, use, quiet);
  return !look.is_clear() || !look.runners_are_clear();
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
