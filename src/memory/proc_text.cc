// SPDX-License-Identifier: MIT
#include "memory/proc_text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace verbena::memory {
namespace {

// Takes a number off the front.
std::uint64_t take_number(std::string_view& text, int base) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty()) text.remove_prefix(1);  // what follows it
  return value;
}

void skip_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
}

}  // namespace

Mapping parse_mapping(std::string_view line, char (&name)[64]) {
  name[0] = 0;
  Mapping mapping;
  mapping.begin = take_number(line, 16);
  mapping.end = take_number(line, 16);
  if (line.size() < 5) return {};
  mapping.rights = (line[0] == 'r' ? PROT_READ : 0) | (line[1] == 'w' ? PROT_WRITE : 0) |
                   (line[2] == 'x' ? PROT_EXEC : 0);
  mapping.is_shared = line[3] == 's';
  line.remove_prefix(5);
  mapping.offset = take_number(line, 16);
  const auto device_major = static_cast<unsigned>(take_number(line, 16));
  const auto device_minor = static_cast<unsigned>(take_number(line, 16));
  mapping.device = makedev(device_major, device_minor);
  mapping.inode = take_number(line, 10);
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::size_t length = std::min(line.size(), sizeof name - 1);
  std::memcpy(name, line.data(), length);
  name[length] = 0;
  return mapping;
}

std::optional<ProcessFigures> parse_status(std::string_view text) {
  bool is_complete = true;
  const auto figure = [&](std::string_view key) -> std::uint64_t {
    const std::size_t at = text.find(key);
    if (at == std::string_view::npos) {
      is_complete = false;
      return 0;
    }
    std::string_view rest = text.substr(at + key.size());
    skip_blanks(rest);
    return take_number(rest, 10);
  };
  const ProcessFigures figures{.threads = figure("\nThreads:"),
                               .locked_bytes = figure("\nVmLck:") << 10,
                               .pinned_bytes = figure("\nVmPin:") << 10,
                               .address_bytes = figure("\nVmSize:") << 10,
                               .data_bytes = figure("\nVmData:") << 10};
  if (!is_complete) return std::nullopt;
  return figures;
}

bool may_be_direct(std::string_view fdinfo) {
  constexpr std::string_view kKey = "flags:";
  const std::size_t key = fdinfo.find(kKey);
  if (key == std::string_view::npos) return true;
  fdinfo.remove_prefix(key + kKey.size());
  skip_blanks(fdinfo);
  std::uint64_t flags = 0;
  const auto parsed = std::from_chars(fdinfo.data(), fdinfo.data() + fdinfo.size(), flags, 8);
  return parsed.ec != std::errc{} || (flags & O_DIRECT) != 0;
}

std::optional<std::uint64_t> parse_figure(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr == end || *parsed.ptr != '\n') return std::nullopt;
  return value;
}

std::optional<PinnedRange> parse_buffer(std::string_view text, std::uint64_t page) {
  if (!text.starts_with("0x")) return std::nullopt;
  text.remove_prefix(2);
  const char* const end = text.data() + text.size();
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
  const auto address = std::from_chars(text.data(), text.data() + text.size(), begin, 16);
  if (address.ec != std::errc{} || address.ptr == end || *address.ptr != '/') return std::nullopt;
  if (std::from_chars(address.ptr + 1, end, length).ec != std::errc{}) return std::nullopt;
  const std::uint64_t last = begin + length;
  if (last < begin || last > ~std::uint64_t{0} - page) return std::nullopt;
  return PinnedRange{.begin = begin / page * page, .end = (last + page - 1) / page * page};
}

}  // namespace verbena::memory
