// SPDX-License-Identifier: MIT
#include "host/interface_watch.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "base/log.h"
#include "host/raw_calls.h"

namespace verbena::host {

void InterfaceWatch::open(DescriptorTable& table, Poller& poller) {
  socket_ = table.make(raw::route_socket);
  sockaddr_nl groups{};
  groups.nl_family = AF_NETLINK;
  groups.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  const bool listens =
      socket_ &&
      raw::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&groups), sizeof groups) == 0 &&
      poller.add(socket_.get(), {Source::kInterfaces});
  if (listens) return;
  LOG_INFO("changes of network interfaces will not be noticed: error %d", errno);
  socket_.reset();
}

void InterfaceWatch::heard(Poller& poller, Instant now) {
  if (tell_at_ != Instant::never()) return;
  tell_at_ = now + kSettling;
  poller.remove(socket_.get());
}

bool InterfaceWatch::take_change(Poller& poller, Instant now) {
  if (now < tell_at_) return false;
  tell_at_ = Instant::never();
  drain();
  poller.add(socket_.get(), {Source::kInterfaces});
  return true;
}

// What comes from now on is another change. That there was too much for the socket is one, too.
void InterfaceWatch::drain() {
  std::array<std::byte, 8192> unread;
  ssize_t size = 0;
  do {
    size = raw::read(socket_.get(), unread.data(), unread.size());
  } while (size > 0 || (size < 0 && (errno == ENOBUFS || errno == EINTR)));
}

}  // namespace verbena::host
