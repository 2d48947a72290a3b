// SPDX-License-Identifier: MIT
// Any path that a program may open: what of it goes to the tree of devices is what a look at its
// components says, and nothing of it is lost.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "preload/redirect.h"

using namespace verbena::preload;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

// Without those that stay where they are, but for one at the end.
std::vector<std::string> components(std::string_view path) {
  std::vector<std::string> all;
  while (!path.empty()) {
    const std::string_view one = path.substr(0, path.find('/'));
    const bool is_last = one.size() == path.size();
    if (!one.empty() && (one != "." || is_last)) all.emplace_back(one);
    path.remove_prefix(is_last ? one.size() : one.size() + 1);
  }
  return all;
}

bool is(const std::vector<std::string>& path, std::size_t at, std::string_view name) {
  return at < path.size() && path[at] == name;
}

Place place_of(const std::vector<std::string>& path) {
  if (is(path, 0, "dev") && is(path, 1, "infiniband"))
    return path.size() == 2 ? Place::kSysfs : Place::kDevice;
  if (is(path, 0, "sys") && is(path, 1, "devices") && is(path, 2, "verbena")) return Place::kSysfs;
  const bool is_class = is(path, 0, "sys") && is(path, 1, "class") && path.size() > 2 &&
                        (path[2] == "infiniband" || path[2].starts_with("infiniband_"));
  return is_class ? Place::kSysfs : Place::kElsewhere;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string path(reinterpret_cast<const char*>(data), size);
  path.resize(std::strlen(path.c_str()));
  const auto parts = components(path);
  const Match match = match_from_root(path.c_str());
  VERBENA_ASSERT(match.place == place_of(parts));
  if (match.place == Place::kElsewhere) return 0;
  VERBENA_ASSERT(match.rest >= path.c_str() && match.rest <= path.c_str() + path.size());
  VERBENA_ASSERT(components(match.folder + std::string(match.rest)) == parts);
  return 0;
}
