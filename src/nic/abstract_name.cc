// SPDX-License-Identifier: MIT
#include "nic/abstract_name.h"

#include <algorithm>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

#include "host/netlink.h"
#include "host/raw_calls.h"

namespace verbena::nic {

AbstractName::AbstractName(const char* format, ...) {
  address_.sun_family = AF_UNIX;
  constexpr std::size_t kRoom = sizeof address_.sun_path - 1;  // the first byte is 0
  va_list values;
  va_start(values, format);
  const int length = std::vsnprintf(address_.sun_path + 1, kRoom, format, values);
  va_end(values);
  const std::size_t used =
      std::min<std::size_t>(length < 0 ? 0 : static_cast<unsigned>(length), kRoom - 1);
  size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + used);
}

UniqueFd name_socket() { return host::socket_for_a_moment(AF_UNIX, SOCK_DGRAM, 0); }

bool is_bound(const UniqueFd& socket, const AbstractName& name) {
  return host::raw::connect(socket.get(), name.get(), name.size()) == 0;
}

}  // namespace verbena::nic
