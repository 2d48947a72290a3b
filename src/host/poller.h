// SPDX-License-Identifier: MIT
// What the control thread waits for: an epoll instance whose events say which of our things is
// ready.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <optional>
#include <span>

#include "base/time.h"
#include "host/descriptor_table.h"
#include "host/private_fd.h"
#include "host/raw_calls.h"

namespace verbena::host {

enum class Source : std::uint8_t { kMailbox, kListener, kLink, kPeerProcess, kInterfaces };

// A thing that is waited for: its kind, and which of that kind. Numbers are not used again, so an
// event that was fetched before its thing went finds nobody.
struct Watched {
  Source source{};
  std::uint32_t number = 0;
};

struct Ready {
  Watched what;
  bool writable = false;
};

class Poller {
 public:
  explicit Poller(DescriptorTable& table)
      : epoll_(table.make([] { return raw::epoll_create(); })) {}

  explicit operator bool() const { return static_cast<bool>(epoll_); }

  bool add(int fd, Watched what) { return control(EPOLL_CTL_ADD, fd, what, EPOLLIN); }
  void watch_writable(int fd, Watched what, bool writable) {
    control(EPOLL_CTL_MOD, fd, what, writable ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  // Before the descriptor is closed: a copy elsewhere would keep it in the set.
  void remove(int fd) { control(EPOLL_CTL_DEL, fd, {}, 0); }

  // Waits until something is ready or `limit` is over. How many; none when the instance is broken.
  std::optional<std::size_t> wait(std::span<Ready> into, Duration limit);

 private:
  bool control(int operation, int fd, Watched what, unsigned events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = std::uint64_t{what.number} << 8 | static_cast<std::uint8_t>(what.source);
    return raw::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
  }

  PrivateFd epoll_;
};

}  // namespace verbena::host
