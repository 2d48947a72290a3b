// SPDX-License-Identifier: MIT
#include "host/poller.h"

#include <algorithm>
#include <array>
#include <cerrno>

namespace verbena::host {

std::optional<std::size_t> Poller::wait(std::span<Ready> into, Duration limit) {
  constexpr std::int64_t kMillisecond = 1'000'000;
  std::array<epoll_event, 64> events;
  // Rounded up: a deadline that is waited for must have come when we wake.
  const std::int64_t nanoseconds = std::max<std::int64_t>(limit.count_nanoseconds(), 0);
  const auto milliseconds = std::min<std::int64_t>((nanoseconds + kMillisecond - 1) / kMillisecond,
                                                   std::int64_t{1} << 30);
  const auto most = static_cast<int>(std::min(into.size(), events.size()));
  const int count =
      raw::epoll_wait(epoll_.get(), events.data(), most, static_cast<int>(milliseconds));
  if (count < 0) return errno == EINTR ? std::optional<std::size_t>(0) : std::nullopt;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const std::uint64_t data = events[i].data.u64;
    into[i].what = {static_cast<Source>(data & 0xFF), static_cast<std::uint32_t>(data >> 8)};
    into[i].writable = (events[i].events & EPOLLOUT) != 0;
  }
  return static_cast<std::size_t>(count);
}

}  // namespace verbena::host
