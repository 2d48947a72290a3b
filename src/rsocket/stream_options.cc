// SPDX-License-Identifier: MIT
// rsetsockopt(3) and rgetsockopt(3) of streams: those that rsocket(7) names, and some that programs
// set without a thought.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rsocket/option_value.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {
namespace {

constexpr std::size_t kRouteMax = 16 * sizeof(ibv_path_data);

}  // namespace

int StreamSocket::set_option(int level, int option, const void* value, socklen_t size) {
  const Lock held(lock);
  if (!value) return EFAULT;
  switch (level) {
    case SOL_SOCKET: return set_socket_option(option, value, size);
    case IPPROTO_TCP: return set_tcp_option(option, value, size);
    case IPPROTO_IPV6: {
      const auto number = read_option<int>(value, size);
      if (option != IPV6_V6ONLY) return ENOPROTOOPT;
      if (!number || phase_ != Phase::kNew) return EINVAL;
      is_ipv6_only_ = *number != 0;
      if (!id_) return 0;
      int only = is_ipv6_only_;
      return rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only) == 0
                 ? 0
                 : errno;
    }
    case SOL_RDMA: return set_rdma_option(option, value, size);
    default: return ENOPROTOOPT;
  }
}

int StreamSocket::set_socket_option(int option, const void* value, socklen_t size) {
  if (option == SO_LINGER) {
    const auto given = read_option<linger>(value, size);
    if (!given) return EINVAL;
    linger_ = *given;
    return 0;
  }
  const auto number = read_option<int>(value, size);
  if (!number) return EINVAL;
  const auto bytes = static_cast<std::uint32_t>(std::max(*number, 0));
  switch (option) {
    case SO_REUSEADDR: reuses_address_ = *number != 0; return 0;
    case SO_RCVBUF:
      if (!stream_) settings.receive_bytes = buffer_size(std::uint64_t{bytes} * 2);
      return 0;
    case SO_SNDBUF:
      if (!stream_) settings.send_bytes = buffer_size(std::uint64_t{bytes} * 2);
      return 0;
    case SO_KEEPALIVE: keeps_alive_ = *number != 0; return set_keepalive_timer();
    case SO_OOBINLINE: has_inline_oob_ = *number != 0; return 0;
    default: return ENOPROTOOPT;
  }
}

int StreamSocket::set_tcp_option(int option, const void* value, socklen_t size) {
  const auto number = read_option<int>(value, size);
  if (!number) return EINVAL;
  const bool is_positive = *number > 0;
  const auto count = static_cast<std::uint32_t>(*number);
  switch (option) {
    case TCP_NODELAY: is_no_delay_ = *number != 0; return 0;
    case TCP_MAXSEG: return 0;
    case TCP_KEEPIDLE:
      if (!is_positive) return EINVAL;
      keep_idle_seconds_ = count;
      return set_keepalive_timer();
    case TCP_KEEPINTVL:
      if (!is_positive) return EINVAL;
      keep_interval_seconds_ = count;
      return 0;
    case TCP_KEEPCNT:
      if (!is_positive) return EINVAL;
      keep_count_ = count;
      return 0;
    default: return ENOPROTOOPT;
  }
}

int StreamSocket::set_rdma_option(int option, const void* value, socklen_t size) {
  if (option == RDMA_ROUTE) {
    if (size == 0 || size > kRouteMax || size % sizeof(ibv_path_data) != 0) return EINVAL;
    const auto* const bytes = static_cast<const std::byte*>(value);
    route_.assign(bytes, bytes + size);
    return 0;
  }
  const auto number = read_option<int>(value, size);
  if (!number || *number < 0) return EINVAL;
  if (stream_) return EINVAL;  // too late
  const auto count = static_cast<std::uint32_t>(*number);
  switch (option) {
    case RDMA_SQSIZE: settings.send_slots = slot_count(count); return 0;
    case RDMA_RQSIZE: settings.receive_slots = slot_count(count); return 0;
    case RDMA_INLINE: settings.inline_bytes = count; return 0;
    case RDMA_IOMAPSIZE:
      // As the peer will know it.
      settings.map_slots = unscaled(scale_of(std::min(count, kMapsMax)));
      return 0;
    default: return ENOPROTOOPT;
  }
}

std::optional<int> StreamSocket::number_of(int level, int option) {
  const auto of = [](auto value) { return static_cast<int>(value); };
  if (level == SOL_SOCKET) {
    switch (option) {
      case SO_REUSEADDR: return reuses_address_;
      case SO_RCVBUF: return of(settings.receive_bytes);
      case SO_SNDBUF: return of(settings.send_bytes);
      case SO_KEEPALIVE: return keeps_alive_;
      case SO_OOBINLINE: return has_inline_oob_;
      case SO_TYPE: return SOCK_STREAM;
      case SO_DOMAIN: return family();
      case SO_PROTOCOL: return IPPROTO_TCP;
      case SO_ACCEPTCONN: return phase_ == Phase::kListening;
      case SO_ERROR: {
        step();
        const int error = told_error_ ? 0 : error_;
        told_error_ = true;
        return error;
      }
      default: return std::nullopt;
    }
  }
  if (level == IPPROTO_TCP) {
    switch (option) {
      case TCP_NODELAY: return is_no_delay_;
      case TCP_MAXSEG: return of(channel_.packet_bytes());
      case TCP_KEEPIDLE: return of(keep_idle_seconds_);
      case TCP_KEEPINTVL: return of(keep_interval_seconds_);
      case TCP_KEEPCNT: return of(keep_count_);
      default: return std::nullopt;
    }
  }
  if (level == IPPROTO_IPV6 && option == IPV6_V6ONLY) return is_ipv6_only_;
  if (level != SOL_RDMA) return std::nullopt;
  switch (option) {
    case RDMA_SQSIZE: return of(settings.send_slots);
    case RDMA_RQSIZE: return of(settings.receive_slots);
    case RDMA_INLINE: return of(settings.inline_bytes);
    case RDMA_IOMAPSIZE: return of(settings.map_slots);
    default: return std::nullopt;
  }
}

int StreamSocket::get_option(int level, int option, void* value, socklen_t* size) {
  const Lock held(lock);
  if (!value || !size) return EFAULT;
  if (level == SOL_SOCKET && option == SO_LINGER) return write_option(linger_, value, size);
  if (level == IPPROTO_TCP && option == TCP_INFO) return get_tcp_info(value, size);
  if (level == SOL_RDMA && option == RDMA_ROUTE) {
    if (*size < route_.size()) return EINVAL;
    std::copy(route_.begin(), route_.end(), static_cast<std::byte*>(value));
    *size = static_cast<socklen_t>(route_.size());
    return 0;
  }
  const auto number = number_of(level, option);
  return number ? write_option(*number, value, size) : ENOPROTOOPT;
}

// The timer is among the socket's events: whoever waits for the peer asks whether it is there. Only
// where there is a peer, for what nobody reads would wake everyone for ever.
int StreamSocket::set_keepalive_timer() {
  if (!keeps_alive_ || phase_ != Phase::kConnected) {
    keep_timer_.reset();
    return 0;
  }
  if (!keep_timer_) {
    keep_timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!keep_timer_ || !watch(keep_timer_.get())) return errno;
  }
  itimerspec times{};
  times.it_value.tv_sec = times.it_interval.tv_sec = keep_idle_seconds_;
  return timerfd_settime(keep_timer_.get(), 0, &times, nullptr) == 0 ? 0 : errno;
}

// The reliable connection repeats what is not answered, and fails when nobody answers at all.
void StreamSocket::keep_alive() {
  std::uint64_t times = 0;
  if (!keep_timer_ || read(keep_timer_.get(), &times, sizeof times) != sizeof times) return;
  if (stream_->is_connected() && channel_.has_control_slot()) channel_.post_keepalive();
}

}  // namespace verbena::rsocket
