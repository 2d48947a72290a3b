// SPDX-License-Identifier: MIT
// Sends trains without a copy: their pages go through a pipe to a socket (vmsplice and splice, with
// MSG_SPLICE_PAGES in the kernel since Linux 6.5), and whoever receives them copies them from
// there. The first bytes go ahead by an ordinary call that says where to and how long packets are,
// and leaves the datagram open (MSG_MORE): so the socket is not connected, and identifications are
// those of unconnected sockets (port.h).
//
// An open datagram is a state of the socket: it is of nobody else, and has the source port of the
// one that sends everything else. docs/decisions/0036.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "port/port.h"
#include "port/udp_socket.h"

namespace verbena::port {

// For one thread at a time.
class PageSender {
 public:
  // Less is not worth three calls.
  static constexpr std::size_t kBytesLeast = 32 << 10;

  // Whether this system sends trains of pages as they are: tried once, on loopback.
  static bool is_possible();
  // With the source port and address of `like`. Null: there is none to be had.
  static std::unique_ptr<PageSender> open(const Sender& like, const Route& route,
                                          std::uint32_t buffer);
  PageSender(const PageSender&) = delete;
  PageSender& operator=(const PageSender&) = delete;
  ~PageSender();

  // Of which sender it has the source port and address.
  bool is_like(const Sender& sender) const {
    return sender.fd == like_.fd && sender.port == like_.port && is_open_;
  }
  // False: somebody closed one of its descriptors, or it has failed.
  bool check();

  // False: none of it was sent, now or by this one ever again (is_like()).
  bool send(const Train& train, std::uint16_t port);

 private:
  PageSender(const Sender& like, int fd);
  bool has_pipe();
  bool divide(std::uint32_t segment_size);
  bool push(std::span<const std::byte> bytes);

  struct Descriptor {
    int fd = -1;
    ino_t file = 0;
  };
  static Descriptor known(int fd) { return {fd, file_of(fd)}; }

  const Sender like_;
  Descriptor socket_;
  std::array<Descriptor, 2> pipe_;  // to read, and to write
  std::uint32_t segment_size_ = 0;
  bool is_open_ = true;
};

}  // namespace verbena::port
