// SPDX-License-Identifier: MIT
#include "write_to_client/wire.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "write_to_client/roles.h"

namespace write_to_client {
namespace {

constexpr int kPatienceMs = 60'000;
constexpr std::size_t kLineMax = 512;

void wait_for(int socket, short event, const char* what) {
  pollfd one = {.fd = socket, .events = event, .revents = 0};
  int ready = 0;
  do {
    ready = poll(&one, 1, kPatienceMs);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) fail("%s: nothing for %d seconds", what, kPatienceMs / 1000);
  if (ready < 0) fail("%s: %s", what, std::strerror(errno));
}

addrinfo* look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) fail("%s: %s", host.c_str(), gai_strerror(error));
  return found;
}

std::string spell(const Address& address) {
  char gid[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, address.gid.raw, gid, sizeof gid);
  char text[128];
  std::snprintf(text, sizeof text, "qp %u psn %u lid %u gid %s", address.queue_pair,
                address.first_psn, address.lid, gid);
  return text;
}

// Parses the address behind what has been read already.
Address parse_address(const char* text) {
  Address address;
  char gid[INET6_ADDRSTRLEN] = "";
  if (std::sscanf(text, " qp %u psn %u lid %" SCNu16 " gid %45s", &address.queue_pair,
                  &address.first_psn, &address.lid, gid) != 4 ||
      inet_pton(AF_INET6, gid, address.gid.raw) != 1) {
    fail("the other side talks nonsense: '%s'", text);
  }
  return address;
}

}  // namespace

int Wire::listen_at(const std::string& address, std::uint16_t port) {
  addrinfo* const found = look_up(address, port, AI_PASSIVE);
  const int listening = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  if (listening < 0 || setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      bind(listening, found->ai_addr, found->ai_addrlen) != 0 || listen(listening, 1) != 0) {
    fail("cannot listen at %s port %u: %s", address.c_str(), port, std::strerror(errno));
  }
  freeaddrinfo(found);
  return listening;
}

std::uint16_t Wire::port_of(int listening) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  char port[NI_MAXSERV] = "0";
  auto* address = reinterpret_cast<sockaddr*>(&bound);
  if (getsockname(listening, address, &size) != 0 ||
      getnameinfo(address, size, nullptr, 0, port, sizeof port, NI_NUMERICSERV) != 0) {
    fail("cannot tell which port this is");
  }
  unsigned value = 0;
  std::sscanf(port, "%u", &value);
  return static_cast<std::uint16_t>(value);
}

Wire Wire::accept_one(int listening) {
  wait_for(listening, POLLIN, "waiting for a client");
  const int accepted = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
  if (accepted < 0) fail("accept: %s", std::strerror(errno));
  close(listening);
  return Wire(accepted);
}

Wire Wire::connect(const std::string& host, std::uint16_t port) {
  addrinfo* const found = look_up(host, port, 0);
  int error = 0;
  for (const addrinfo* at = found; at; at = at->ai_next) {
    const int connected = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connected >= 0 && ::connect(connected, at->ai_addr, at->ai_addrlen) == 0) {
      freeaddrinfo(found);
      return Wire(connected);
    }
    error = errno;
    if (connected >= 0) close(connected);
  }
  fail("cannot reach %s port %u: %s", host.c_str(), port, std::strerror(error));
}

Wire::Wire(Wire&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}

Wire::~Wire() {
  if (socket_ >= 0) close(socket_);
}

void Wire::send_line(const std::string& line) {
  const std::string text = line + "\n";
  const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(text.size())) fail("the other side went away");
}

std::string Wire::receive_line() {
  std::string line;
  for (char next = 0; line.size() < kLineMax; line += next) {
    wait_for(socket_, POLLIN, "waiting for the other side");
    const ssize_t got = recv(socket_, &next, 1, 0);
    if (got <= 0) fail("the other side went away");
    if (next == '\n') return line;
  }
  fail("the other side talks nonsense");
}

void Wire::send(const Offer& offer) {
  char text[128];
  std::snprintf(text, sizeof text, "offer %" PRIu64 " checksum %" PRIx64 " ", offer.size,
                offer.checksum);
  send_line(text + spell(offer.address));
}

Offer Wire::receive_offer() {
  const std::string line = receive_line();
  Offer offer;
  int read = 0;
  if (std::sscanf(line.c_str(), "offer %" SCNu64 " checksum %" SCNx64 "%n", &offer.size,
                  &offer.checksum, &read) != 2) {
    fail("the other side talks nonsense: '%s'", line.c_str());
  }
  offer.address = parse_address(line.c_str() + read);
  return offer;
}

void Wire::send(const Place& place) {
  char text[128];
  std::snprintf(text, sizeof text, "memory %" PRIx64 " key %" PRIx32 " ", place.memory, place.key);
  send_line(text + spell(place.address));
}

Place Wire::receive_place() {
  const std::string line = receive_line();
  Place place;
  int read = 0;
  if (std::sscanf(line.c_str(), "memory %" SCNx64 " key %" SCNx32 "%n", &place.memory, &place.key,
                  &read) != 2) {
    fail("the other side talks nonsense: '%s'", line.c_str());
  }
  place.address = parse_address(line.c_str() + read);
  return place;
}

void Wire::send_verdict(bool is_right) { send_line(is_right ? "right" : "wrong"); }

bool Wire::receive_verdict() { return receive_line() == "right"; }

}  // namespace write_to_client
