// SPDX-License-Identifier: MIT
// What a program with many rsockets knows of its connections and datagrams, held against what it is
// told. For tests only.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "base/assert.h"

namespace verbena::rsocket {

using Bytes = std::vector<std::uint8_t>;
using TestClock = std::chrono::steady_clock;

constexpr std::size_t kEnds = 6;           // sockets at a time
constexpr std::size_t kPlainMost = 65535;  // bytes in a call
constexpr std::size_t kArena = 4096;       // memory of each to map

// What outlives an input: bytes to send, memory to map, descriptors that are no rsockets.
class SocketWorld {
 public:
  SocketWorld() {
    // No period that a buffer's size divides.
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < kPeriod; ++i) {
      state = state * 1'664'525 + 1'013'904'223;
      pattern_.push_back(static_cast<std::uint8_t>(state >> 24));
    }
    while (pattern_.size() < kPeriod + kPlainMost)
      pattern_.push_back(pattern_[pattern_.size() - kPeriod]);
    void* const memory =
        mmap(nullptr, kEnds * kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    VERBENA_ASSERT(memory != MAP_FAILED);
    memory_ = static_cast<std::uint8_t*>(memory);
    std::array<int, 2> ends{};
    VERBENA_ASSERT(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    VERBENA_ASSERT(write(ends[1], "", 1) == 1);
    readable = ends[0];
    silent = open("/dev/null", O_RDWR | O_CLOEXEC);
  }

  // Of a stream that begins there, from that byte on.
  std::span<const std::uint8_t> pattern(std::size_t start, std::size_t offset,
                                        std::size_t size) const {
    VERBENA_ASSERT(size <= kPlainMost);
    return {pattern_.data() + (start + offset) % kPeriod, size};
  }
  std::span<std::uint8_t> arena(std::size_t end) const { return {memory_ + end * kArena, kArena}; }

  int readable = -1;  // always
  int silent = -1;
  std::uint32_t datagrams = 0;       // so many were sent: none looks like an earlier one
  std::size_t open_descriptors = 0;  // after the last input

 private:
  static constexpr std::size_t kPeriod = 65'521;
  Bytes pattern_;
  std::uint8_t* memory_ = nullptr;
};

inline std::size_t count_descriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  VERBENA_ASSERT(folder != nullptr);
  std::size_t count = 0;
  while (readdir(folder))
    ++count;
  closedir(folder);
  return count;
}

// One direction of a connection.
struct Flow {
  std::size_t start = 0;  // in the pattern
  std::size_t sent = 0;
  std::size_t in_doubt = 0;  // of a call that failed midway
  std::size_t received = 0;
  bool has_end = false;     // the sender says that no more comes
  bool is_ignored = false;  // the receiver wants no more
};

// Bytes that riowrite put into an arena.
struct Owed {
  std::size_t end;
  std::size_t at;
  std::size_t size;
};

struct Connection {
  unsigned number = 0;
  sa_family_t family = 0;
  std::uint16_t port = 0;  // of who connects; 0: not known yet
  bool is_accepted = false;
  bool is_known = true;       // false: two that look the same, nothing can be said of their bytes
  bool is_broken = false;     // by what the program did: not everything arrives
  std::array<Flow, 2> flows;  // what each side sends: the one that connects, the one that accepts
  std::array<bool, 2> has_written{};   // by riowrite
  std::array<bool, 2> has_unmapped{};  // what the other may write into
  std::array<std::vector<Owed>, 2> owed;

  std::uint8_t mark() const { return static_cast<std::uint8_t>(1 + number % 255); }
  void judge_maps() {
    for (const int side : {0, 1})
      if (has_written[side] && has_unmapped[1 - side]) is_broken = true;
  }
};

struct SentDatagram {
  std::uint32_t number;
  Bytes bytes;
  bool is_refused = false;
  bool has_arrived = false;
};

class Datagrams {
 public:
  SentDatagram& add(SocketWorld& world, std::size_t size) {
    const std::uint32_t number = world.datagrams++;
    const auto bytes = world.pattern(number % 60'000, 0, size);
    all_.push_back({number, {bytes.begin(), bytes.end()}, false, false});
    if (size > 0) std::memcpy(all_.back().bytes.data(), &number, std::min(size, sizeof number));
    return all_.back();
  }
  // Whole and unaltered, or cut by little room; once, unless only looked at.
  void check(std::span<const std::uint8_t> got, std::size_t room, bool is_peek) {
    const bool is_cut = got.size() == room;
    bool is_one_of_them = false;
    for (SentDatagram& each : all_) {
      const bool has_size =
          is_cut ? each.bytes.size() >= got.size() : each.bytes.size() == got.size();
      if (each.is_refused || !has_size || !std::ranges::equal(got, first(each, got.size())))
        continue;
      is_one_of_them = true;
      if (got.size() < sizeof each.number) break;  // who knows which
      VERBENA_ASSERT(!each.has_arrived);
      each.has_arrived = !is_peek;
    }
    VERBENA_ASSERT(is_one_of_them);
  }

 private:
  static std::span<const std::uint8_t> first(const SentDatagram& each, std::size_t size) {
    return std::span(each.bytes).first(size);
  }
  std::list<SentDatagram> all_;
};

// Memory of a socket that it maps for its peer, and what may be in it.
class Arena {
 public:
  struct Mapping {
    std::size_t at;
    std::size_t size;
    off_t offset;
  };
  explicit Arena(std::span<std::uint8_t> memory) : memory_(memory), known_(memory.size()) {
    std::ranges::fill(memory_, std::uint8_t{0});
  }

  std::uint8_t* at(std::size_t place) const { return memory_.data() + place; }
  const std::vector<Mapping>& mappings() const { return mappings_; }
  // Where a mapping is, or was.
  off_t offset(std::size_t which) const {
    which %= mappings_.size() + 1;
    return which < mappings_.size() ? mappings_[which].offset : last_offset_;
  }
  // The one that has this offset; none where that is not clear.
  const Mapping* find(off_t offset, std::size_t size) const {
    const Mapping* found = nullptr;
    for (const Mapping& each : mappings_) {
      const auto begin = static_cast<std::uint64_t>(each.offset);
      const auto wanted = static_cast<std::uint64_t>(offset);
      if (wanted < begin || wanted - begin >= each.size) continue;
      if (found || wanted - begin + size > each.size) return nullptr;
      found = &each;
    }
    return found;
  }
  void map(const Mapping& mapping) { mappings_.push_back(mapping); }
  // The library says that it is not mapped any more: from now on it stays as it is.
  void unmap(std::size_t place, std::size_t size, std::uint8_t mark) {
    const auto found = std::ranges::find_if(
        mappings_, [&](const Mapping& each) { return each.at == place && each.size == size; });
    VERBENA_ASSERT(found != mappings_.end());
    settle(mark);
    last_offset_ = found->offset;
    mappings_.erase(found);
    // What still comes shows.
    std::ranges::fill(memory_.subspan(place, size), std::uint8_t{0});
    std::ranges::fill(std::span(known_).subspan(place, size), std::uint8_t{0});
  }
  void unmap_all(std::uint8_t mark) {
    settle(mark);
    mappings_.clear();
  }
  void check(std::uint8_t mark) { settle(mark); }

 private:
  // Each byte is as it was, or the peer's in what is mapped.
  void settle(std::uint8_t mark) {
    for (std::size_t i = 0; i < known_.size(); ++i) {
      const std::uint8_t now = __atomic_load_n(&memory_[i], __ATOMIC_RELAXED);
      if (now == known_[i]) continue;
      VERBENA_ASSERT(now == mark && is_mapped(i));
      known_[i] = now;
    }
  }
  bool is_mapped(std::size_t place) const {
    return std::ranges::any_of(mappings_, [place](const Mapping& each) {
      return place >= each.at && place - each.at < each.size;
    });
  }

  std::span<std::uint8_t> memory_;
  Bytes known_;
  std::vector<Mapping> mappings_;
  off_t last_offset_ = 0;
};

// A socket of the program.
struct End {
  explicit End(std::span<std::uint8_t> memory) : arena(memory) {}

  int fd = -1;
  int family = 0;
  int type = 0;
  bool is_listening = false;
  Connection* connection = nullptr;
  int side = 0;  // of it
  Arena arena;

  bool is_open() const { return fd >= 0; }
  bool is_stream() const { return type == SOCK_STREAM; }
  Flow* outgoing() const { return connection ? &connection->flows[side] : nullptr; }
  Flow* incoming() const { return connection ? &connection->flows[1 - side] : nullptr; }
  std::uint8_t mark() const { return connection ? connection->mark() : 0; }
};

}  // namespace verbena::rsocket
