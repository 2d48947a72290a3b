// SPDX-License-Identifier: MIT
// A socket of its own for what one peer sends from one source port, beside the group's: connected,
// so the kernel finds it without the group's program, and need not tell whom a packet is from. That
// is 0.3 us of a packet's way.
//
// It is bound to any address, as the group's are, and is the group's last for the moment until it
// is connected: bound to the peer's address it would take what is for others meanwhile. Connecting
// makes the kernel put the group's last one into its place, which is itself as long as nobody
// joins: hence the JoinLock. docs/decisions/0033.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/unique_fd.h"
#include "port/counters.h"
#include "port/port.h"

namespace verbena::port {

class ConnectedReceiver {
 public:
  // Longer packets than any of RoCEv2 are dropped, and counted.
  static constexpr std::size_t kBytesMax = 8192;

  // For packets that come from where `with` came from, to where it came. Null: somebody joins the
  // group just now, there is no socket to be had, or the system would take another address; or the
  // address is a link's, and which one is not known; or this system has sockets of IPv4 only, which
  // take what is others' for a moment while they are connected. `made`: hears of the descriptor
  // before anything can come to it.
  static std::unique_ptr<ConnectedReceiver> open(const Received& with, std::uint16_t port,
                                                 void (*made)(int fd));
  ConnectedReceiver(const ConnectedReceiver&) = delete;
  ConnectedReceiver& operator=(const ConnectedReceiver&) = delete;
  // Closes the socket, if the number still is our socket. What lies in it is lost.
  ~ConnectedReceiver();

  int fd() const { return socket_.get(); }
  // False: somebody closed it, and the number is free or some other file's.
  bool is_open() const;

  // How many packets came: one or none. What it gave before is void.
  std::size_t take(Received& into, Counters& counters);

 private:
  ConnectedReceiver(UniqueFd socket, const Received& with);

  UniqueFd socket_;
  const ino_t file_;
  Received head_;  // of each packet
  std::array<std::byte, kBytesMax> bytes_;
};

}  // namespace verbena::port
