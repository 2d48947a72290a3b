// SPDX-License-Identifier: MIT
// Any text and any directory of /proc: nothing is read beyond it. What the kernel would write is
// understood: mappings that the input makes up, written as in /proc/self/maps, come back.
#include <sys/mman.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/test_input.h"
#include "memory/directory_names.h"
#include "memory/maps_walk.h"
#include "memory/other_threads.h"
#include "memory/proc_text.h"
#include "memory/ring_buffers.h"

using namespace verbena;          // NOLINT(google-build-using-namespace): a fuzzer is one function
using namespace verbena::memory;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

constexpr std::uint64_t kPage = 4096;

// -- any text
void look_at_lines(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    char name[64];
    std::memset(name, 'x', sizeof name);
    const Mapping mapping = parse_mapping(line, name);
    VERBENA_ASSERT(std::memchr(name, 0, sizeof name) != nullptr);
    VERBENA_ASSERT((mapping.rights & ~(PROT_READ | PROT_WRITE | PROT_EXEC)) == 0);
  }
}

void look_at_figures(std::string_view text) {
  static_cast<void>(parse_status(text));
  if (const auto figure = parse_figure(text)) {
    const std::string written = std::to_string(*figure) + "\n";
    VERBENA_ASSERT(parse_figure(written) == figure);
  }
  // Who opened it past the page cache is not taken for another.
  VERBENA_ASSERT(may_be_direct("flags:\t0140000\n" + std::string(text)));
  ThreadCall call;
  if (parse_call(text.data(), text.size(), call) && call.is_running)
    VERBENA_ASSERT(call.number == -1);
}

void look_at_buffers(std::string_view text) {
  if (const auto pinned = parse_buffer(text, kPage)) {
    VERBENA_ASSERT(pinned->begin <= pinned->end && pinned->begin % kPage == 0 &&
                   pinned->end % kPage == 0);
  }
  RingBuffers everywhere(0, ~std::uint64_t{0}, kPage);
  RingBuffers nowhere(0, 0, kPage);
  everywhere.take(text);
  for (const char& each : text)  // as it comes in pieces
    nowhere.take({&each, 1});
  VERBENA_ASSERT(everywhere.pinned_bytes() == nowhere.pinned_bytes() && !nowhere.overlaps());
  VERBENA_ASSERT(everywhere.has_list() == nowhere.has_list());
  if (everywhere.pinned_bytes() != 0) {
    VERBENA_ASSERT(everywhere.has_list() || text.find("UserBufs:") != std::string_view::npos);
  }
}

void look_at_directory(std::string_view entries) {
  std::size_t seen = 0;
  static_cast<void>(each_name({entries.data(), entries.size()}, [&](const char* name) {
    const std::size_t length = std::strlen(name);
    VERBENA_ASSERT(name >= entries.data() && name + length < entries.data() + entries.size());
    ++seen;
    return true;
  }));
  VERBENA_ASSERT(seen * 20 <= entries.size());
}

// -- what the kernel would write
struct Made {
  Mapping mapping;
  std::string name;
};

std::vector<Made> make_mappings(TestInput& input) {
  std::vector<Made> all;
  std::uintptr_t at = 0;
  while (!input.empty() && all.size() < 12) {
    constexpr std::array<const char*, 6> kNames{
        "", "[heap]", "[anon: a b]", "/usr/lib/x", "/dev/zero (deleted)", "anon_inode:[io_uring]"};
    const std::uint8_t how = input.take();
    Made made;
    at += (how & 0x80) != 0 ? (1 + input.take<std::uint32_t>()) * kPage : 0;
    made.mapping.begin = at;
    at += (1 + input.take<std::uint16_t>()) * kPage;
    made.mapping.end = at;
    made.mapping.rights = how & 7;
    made.mapping.is_shared = (how & 8) != 0;
    made.mapping.offset = input.take<std::uint32_t>() * kPage;
    made.mapping.device = makedev(input.take(), input.take<std::uint16_t>());
    made.mapping.inode = input.take<std::uint32_t>();
    made.name = kNames[input.below(kNames.size())];
    all.push_back(made);
  }
  return all;
}

std::string written(const Made& made) {
  char head[128];
  const Mapping& m = made.mapping;
  const int size = std::snprintf(head, sizeof head, "%08lx-%08lx %c%c%c%c %08lx %02x:%02x %lu",
                                 m.begin, m.end, (m.rights & PROT_READ) != 0 ? 'r' : '-',
                                 (m.rights & PROT_WRITE) != 0 ? 'w' : '-',
                                 (m.rights & PROT_EXEC) != 0 ? 'x' : '-', m.is_shared ? 's' : 'p',
                                 m.offset, major(m.device), minor(m.device), m.inode);
  std::string line(head, static_cast<std::size_t>(size));
  if (!made.name.empty()) line.resize(std::max<std::size_t>(line.size() + 1, 73), ' ');
  return line + made.name;
}

void expect_same(const Made& made) {
  char name[64];
  const Mapping m = parse_mapping(written(made), name);
  const Mapping& w = made.mapping;
  VERBENA_ASSERT(m.begin == w.begin && m.end == w.end && m.offset == w.offset &&
                 m.device == w.device && m.inode == w.inode && m.rights == w.rights &&
                 m.is_shared == w.is_shared && name == made.name);
}

bool is_there(const std::vector<Made>& all, const PageRange& range) {
  const int right = range.is_written ? PROT_WRITE : PROT_READ;
  std::uintptr_t at = range.begin;
  for (const Made& each : all) {
    if (each.mapping.end <= at) continue;
    if (at >= range.end) return true;
    if (each.mapping.begin > at || (each.mapping.rights & right) == 0) return false;
    at = each.mapping.end;
  }
  return at >= range.end;
}

void look_at_made(TestInput input) {
  const std::uint32_t first = input.take<std::uint16_t>();
  const std::uint32_t pages = 1 + input.take<std::uint16_t>();
  const PageRange range{.begin = first * kPage,
                        .end = (std::uintptr_t{first} + pages) * kPage,
                        .is_written = input.one_in(2)};
  const std::vector<Made> all = make_mappings(input);
  MapsText maps(range);
  Presence seen = Presence::kUnknown;
  for (const Made& each : all) {
    expect_same(each);
    if (seen == Presence::kUnknown) seen = maps.take(written(each) + "\n");
  }
  VERBENA_ASSERT((seen == Presence::kThere) == is_there(all, range));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  look_at_lines(text);
  look_at_figures(text);
  look_at_buffers(text);
  look_at_directory(text);
  const PageRange all{.begin = 0, .end = ~std::uintptr_t{0}, .is_written = false};
  static_cast<void>(MapsText(all).take(text));
  look_at_made(TestInput(data, size));
  return 0;
}
