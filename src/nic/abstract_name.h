// SPDX-License-Identifier: MIT
// Abstract unix names: exclusive in the network namespace, visible to all users and from every
// pid, ipc and mount namespace, and taken back by the kernel when whoever bound them dies.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include "base/unique_fd.h"

namespace verbena::nic {

class AbstractName {
 public:
  // As printf; what is too long is cut off.
  [[gnu::format(printf, 2, 3)]] explicit AbstractName(const char* format, ...);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_un address_{};
  socklen_t size_ = 0;
};

// For is_bound(), or to bind a name for a moment.
UniqueFd name_socket();
// Connecting a datagram socket says whether the name is bound, and disturbs nobody.
bool is_bound(const UniqueFd& socket, const AbstractName& name);

}  // namespace verbena::nic
