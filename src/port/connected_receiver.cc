// SPDX-License-Identifier: MIT
#include "port/connected_receiver.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "host/raw_calls.h"
#include "port/socket_group.h"
#include "port/udp_socket.h"

namespace verbena::port {

namespace raw = host::raw;

std::unique_ptr<ConnectedReceiver> ConnectedReceiver::open(const Received& with, std::uint16_t port,
                                                           void (*made)(int fd)) {
  if (!has_ipv6_sockets() || (is_link_local(with.from) && with.interface == 0)) return nullptr;
  const auto fd = make_receiver({.buffer = 0, .offload = false});
  if (!fd) return nullptr;
  std::unique_ptr<ConnectedReceiver> receiver;
  // Closed under the lock where it comes to nothing, for it may be in the group.
  const auto lock = JoinLock::try_take();
  // A child that is forked just now would have it for as long as it lives.
  if (lock && made) made(lock->descriptor());
  UniqueFd socket(lift_descriptor(*fd));
  if (!lock || !tell_details(socket.get(), {.destinations = false, .marks = false})) return nullptr;
  if (made) made(socket.get());
  if (bind_receiver(socket.get(), port) && connect_receiver(socket.get(), port, with))
    receiver.reset(new ConnectedReceiver(std::move(socket), with));
  return receiver;
}

ConnectedReceiver::ConnectedReceiver(UniqueFd socket, const Received& with)
    : socket_(std::move(socket)), file_(file_of(socket_.get())), head_(with) {
  head_.payload = {};
  head_.segment = 0;
  head_.ecn = Ecn::kNotCapable;
}

ConnectedReceiver::~ConnectedReceiver() {
  const bool is_ours = is_open();
  const int fd = socket_.release();
  if (is_ours) raw::close(fd);
}

bool ConnectedReceiver::is_open() const { return file_ != 0 && file_of(socket_.get()) == file_; }

std::size_t ConnectedReceiver::take(Received& into, Counters& counters) {
  const ssize_t size = raw::receive(socket_.get(), bytes_.data(), bytes_.size());
  if (size < 0) {
    if (errno != EAGAIN && errno != EINTR) [[unlikely]]
      counters.add(Count::kReceiveErrors);
    return 0;
  }
  counters.add_alone(Count::kReceivedBatches);
  if (static_cast<std::size_t>(size) > bytes_.size()) [[unlikely]] {
    counters.add(Count::kTruncated);
    return 0;
  }
  into = head_;
  into.payload = {bytes_.data(), static_cast<std::size_t>(size)};
  return 1;
}

}  // namespace verbena::port
