// SPDX-License-Identifier: MIT
// The name of the file to record into, as VERBENA_CAPTURE says it.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace verbena::port {

// %p: the process id; %%: %. Another % is one.
inline std::string capture_path(std::string_view value, pid_t process) {
  std::string path;
  while (!value.empty()) {
    const bool is_process = value.starts_with("%p");
    const bool is_short = is_process || value.starts_with("%%");
    path += is_process ? std::to_string(process) : std::string(1, value[0]);
    value.remove_prefix(is_short ? 2 : 1);
  }
  return path;
}

}  // namespace verbena::port
