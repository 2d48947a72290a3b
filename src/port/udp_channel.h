// SPDX-License-Identifier: MIT
// A socket of its own for the small packets of one queue pair to a peer on this host. It is
// connected, so the kernel looks for no route: a sixth of such a packet's way.
//
// Over IPv4 its identifications are found out first (connected_ids.h), and known from then on.
// docs/decisions/0031.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "port/counters.h"
#include "port/port.h"

namespace verbena::port {

class UdpChannel {
 public:
  // What is longer does not go by it: who receives takes it for the sign of a port that sends
  // everything (UdpPort::is_conversation_over).
  static constexpr std::size_t kBytesMax = 512;

  // Null: there is no socket to be had, or this kernel counts in another way.
  static std::unique_ptr<UdpChannel> open(const Route& route, std::uint16_t port,
                                          Counters& counters);
  UdpChannel(const UdpChannel&) = delete;
  UdpChannel& operator=(const UdpChannel&) = delete;
  ~UdpChannel();

  int fd() const { return fd_; }
  std::uint16_t source_port() const { return source_port_; }
  // Of the next packet; of no meaning over IPv6.
  std::uint16_t next_id() const { return next_id_; }
  // False: it was not sent, and this channel sends nothing any more.
  bool send(std::span<const std::byte> packet);

 private:
  UdpChannel(int fd, Counters& counters);
  bool learn_port();
  bool learn_id(const Route& route);

  const int fd_;
  const ino_t file_;
  Counters& counters_;
  std::uint16_t source_port_ = 0;
  std::uint16_t next_id_ = 0;
  unsigned sent_ = 0;
  bool is_over_ = false;
};

}  // namespace verbena::port
