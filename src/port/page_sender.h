// SPDX-License-Identifier: MIT
// Sends the trains of one queue pair without a copy: their pages go through a pipe to a socket
// (vmsplice and splice, with MSG_SPLICE_PAGES in the kernel since Linux 6.5), and whoever receives
// them copies them from there. splice names no destination, so the socket is connected; over IPv4
// its identifications are found out first (connected_ids.h).
//
// It has the source port of the one that sends everything else. docs/decisions/0036.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "port/port.h"
#include "port/udp_socket.h"

namespace verbena::port {

// For one thread at a time.
class PageSender final : public Lane {
 public:
  // Whether this system sends trains of pages as they are: tried once, on loopback.
  static bool is_possible();
  // To UDP port `port`, with the source port and address of `like`. Null: there is none to be had,
  // or the route wants of each packet what is said to other sockets packet by packet.
  static std::unique_ptr<PageSender> open(const Sender& like, const Route& route,
                                          std::uint16_t port, std::uint32_t buffer);
  PageSender(const PageSender&) = delete;
  PageSender& operator=(const PageSender&) = delete;
  ~PageSender();

  int socket() const { return socket_.fd; }
  std::uint16_t source_port() const { return source_port_; }
  // Somebody closed one of its descriptors, or it has failed.
  bool is_over() const { return is_over_; }

  Sent send(std::span<const Train> trains) override;
  std::uint16_t next_id() const override { return next_id_; }

 private:
  PageSender(int fd, std::uint16_t source_port) : socket_(known(fd)), source_port_(source_port) {}
  bool connect(const Route& route, std::uint16_t port);
  bool has_pipe();
  void check(std::size_t trains);
  // How many of them, from the first on, the pipe takes together.
  std::size_t count_lendable(std::span<const Train> trains) const;
  bool lend(std::span<const Train> trains);
  bool pass_on(const Train& train);
  bool copy(const Train& train);
  bool begin(const Train& train);
  bool divide(std::uint32_t segment_size);

  struct Descriptor {
    int fd = -1;
    ino_t file = 0;
  };
  static Descriptor known(int fd) { return {fd, file_of(fd)}; }

  Descriptor socket_;
  std::array<Descriptor, 2> pipe_;  // to read, and to write
  const std::uint16_t source_port_;
  std::uint16_t next_id_ = 0;
  std::uint32_t segment_size_ = 0;
  std::size_t lent_most_ = 0;
  std::size_t unchecked_left_ = 0;  // trains
  bool is_over_ = false;
};

}  // namespace verbena::port
