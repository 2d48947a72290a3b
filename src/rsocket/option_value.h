// SPDX-License-Identifier: MIT
// Values of socket options, as programs give and take them.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace verbena::rsocket {

template <class Value>
std::optional<Value> read_option(const void* value, socklen_t size) {
  Value read;
  if (!value || size < sizeof read) return std::nullopt;
  std::memcpy(&read, value, sizeof read);
  return read;
}

template <class Value>
int write_option(const Value& known, void* value, socklen_t* size) {
  *size = std::min<socklen_t>(*size, sizeof known);
  std::memcpy(value, &known, *size);
  return 0;
}

}  // namespace verbena::rsocket
