// SPDX-License-Identifier: MIT
// What the two tell each other over TCP: lines of text, so that a person can read them along.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace write_to_client {

// How to reach a queue pair.
struct Address {
  std::uint32_t queue_pair = 0;
  std::uint32_t first_psn = 0;
  std::uint16_t lid = 0;  // only InfiniBand fabrics have them
  ibv_gid gid = {};
};

// What the server says first.
struct Offer {
  Address address;
  std::uint64_t size = 0;
  std::uint64_t checksum = 0;
};

// What the client answers: where it wants the data.
struct Place {
  Address address;
  std::uint64_t memory = 0;
  std::uint32_t key = 0;
};

// A connection. Every wait has a limit, so that the end of one process ends the other.
class Wire {
 public:
  // Waits for one client. `port` 0 takes a free one; `on_listening` hears which.
  template <class OnListening>
  static Wire accept(const std::string& address, std::uint16_t port, OnListening on_listening) {
    const int listening = listen_at(address, port);
    on_listening(port_of(listening));
    return accept_one(listening);
  }
  static Wire connect(const std::string& host, std::uint16_t port);

  Wire(Wire&& other) noexcept;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  Wire& operator=(Wire&&) = delete;
  ~Wire();

  void send(const Offer& offer);
  void send(const Place& place);
  void send_verdict(bool is_right);
  Offer receive_offer();
  Place receive_place();
  bool receive_verdict();
  int descriptor() const { return socket_; }

 private:
  explicit Wire(int socket) : socket_(socket) {}
  static int listen_at(const std::string& address, std::uint16_t port);
  static std::uint16_t port_of(int listening);
  static Wire accept_one(int listening);
  void send_line(const std::string& line);
  std::string receive_line();

  int socket_;
};

}  // namespace write_to_client
