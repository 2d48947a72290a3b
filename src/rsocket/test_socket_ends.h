// SPDX-License-Identifier: MIT
// The sockets of a program that makes calls in any order: how they come, connect, and go. For tests
// only.
#pragma once

#include <endian.h>
#include <infiniband/ib.h>
#include <netinet/in.h>

#include "base/test_input.h"
#include "rsocket/test_socket_world.h"

namespace verbena::rsocket {

// An address of this host, or nonsense; in memory as long as it says.
struct TestAddress {
  Bytes bytes;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(bytes.data()); }
  socklen_t size() const { return static_cast<socklen_t>(bytes.size()); }
};

template <class Address>
TestAddress test_address(const Address& from) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&from);
  return {{bytes, bytes + sizeof from}};
}

inline TestAddress loopback(int family, std::uint16_t port) {
  if (family == AF_INET6) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htobe16(port);
    address.sin6_addr = in6addr_loopback;
    return test_address(address);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htobe16(port);
  address.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
  return test_address(address);
}

class SocketEnds {
 public:
  SocketEnds(SocketWorld& of, TestInput from) : world(of), input(from) {
    for (std::size_t i = 0; i < kEnds; ++i)
      ends.emplace_back(world.arena(i));
  }
  SocketEnds(const SocketEnds&) = delete;
  SocketEnds& operator=(const SocketEnds&) = delete;

  bool was_slow() const { return was_slow_; }

 protected:
  // A goodbye to a peer that has been accepted and does not get ready, as it is this thread's, is
  // tried for 8.6 s.
  static constexpr auto kSlow = std::chrono::seconds(12);
  static constexpr auto kPatience = std::chrono::seconds(20);
  static constexpr auto kStep = std::chrono::milliseconds(100);

  // A call: -1 comes with its reason, and soon.
  template <class Body>
  auto call(Body body) {
    const auto begin = TestClock::now();
    errno = 0;
    const auto done = body();
    const int error = errno;
    was_slow_ = was_slow_ || TestClock::now() - begin > kSlow;
    if (done == static_cast<decltype(done)>(-1)) VERBENA_ASSERT(error > 0);
    errno = error;
    return done;
  }
  // One whose answer is 0 otherwise. Its errno value.
  template <class Body>
  int error_of(Body body) {
    const int done = call(body);
    VERBENA_ASSERT(done == 0 || done == -1);
    return done == 0 ? 0 : errno;
  }

  End& any() { return ends[input.below(kEnds)]; }
  End* free_end() {
    const auto found = std::ranges::find_if(ends, [](const End& each) { return !each.is_open(); });
    return found == ends.end() ? nullptr : &*found;
  }
  // Who is at the other side; null where it is closed.
  End* peer_of(const End& end) {
    for (End& each : ends)
      if (each.is_open() && each.connection == end.connection && each.side != end.side)
        return end.connection ? &each : nullptr;
    return nullptr;
  }
  int number() {
    const std::uint8_t code = input.take();
    return code < 0xF0 ? code : input.take<int>();
  }

  short look(const End& end, short events) {
    pollfd one{end.fd, events, 0};
    const int count = call([&] { return rpoll(&one, 1, 0); });
    VERBENA_ASSERT(count == (one.revents != 0 ? 1 : 0));
    return one.revents;
  }
  // Everybody takes what has come.
  void progress(int milliseconds) {
    std::vector<pollfd> all;
    for (const End& each : ends)
      if (each.is_open()) all.push_back({each.fd, POLLIN | POLLOUT, 0});
    for (pollfd& each : all)
      VERBENA_ASSERT(call([&] { return rpoll(&each, 1, 0); }) >= 0);
    for (pollfd& each : all)
      each.events = POLLIN;
    if (all.empty() || milliseconds == 0) return;
    const int count = call([&] { return rpoll(all.data(), all.size(), milliseconds); });
    VERBENA_ASSERT(count >= 0 || errno == EINTR);  // libFuzzer has a timer
  }
  // While the machine stands still nobody can get ready: a step counts for no more than kStep.
  template <class Ready>
  bool wait_for(Ready is_ready) {
    TestClock::duration waited{};
    for (auto before = TestClock::now(); !is_ready();) {
      if (waited > kPatience) return false;
      progress(1);
      const auto after = TestClock::now();
      waited += std::min<TestClock::duration>(after - before, kStep);
      before = after;
    }
    return true;
  }

  // -- addresses
  std::uint16_t port_of(const End& end) {
    sockaddr_in6 name{};
    socklen_t size = sizeof name;
    if (!end.is_open()) return 0;
    const int error =
        error_of([&] { return rgetsockname(end.fd, reinterpret_cast<sockaddr*>(&name), &size); });
    return error == 0 ? be16toh(name.sin6_port) : 0;  // where IPv4 has it as well
  }
  bool has_peer(const End& end) {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    return error_of([&] {
             return rgetpeername(end.fd, reinterpret_cast<sockaddr*>(&name), &size);
           }) == 0;
  }
  // Nothing that leads to another host.
  TestAddress any_address() {
    const std::uint8_t how = input.take();
    const End& whose = any();
    const std::uint16_t port = (how & 0x80) != 0 ? input.below(2) : port_of(whose);
    TestAddress address = loopback(whose.family, port);
    if ((how & 0x70) == 0x70) address = strange_address(port);
    if ((how & 0x0F) == 0x0F) address.bytes.resize(input.take());
    return address;
  }
  TestAddress strange_address(std::uint16_t port) {
    TestAddress address = loopback(input.one_in(2) ? AF_INET : AF_INET6, port);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htobe16(port);
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htobe16(port);
    switch (input.below(6)) {
      case 0: return test_address(six);
      case 1: return test_address(four);
      case 2: inet_mapped(six.sin6_addr); return test_address(six);
      case 3: {
        sockaddr_ib ib{};
        ib.sib_family = AF_IB;
        ib.sib_sid = htobe64(0x0106ULL << 16 | port);
        in6_addr here = in6addr_loopback;
        if (input.one_in(2)) inet_mapped(here);
        std::memcpy(&ib.sib_addr, &here, sizeof here);
        return test_address(ib);
      }
      default:
        address.get()->sa_family = input.take();
        if (address.get()->sa_family == AF_INET)
          reinterpret_cast<sockaddr_in*>(address.get())->sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
        return address;
    }
  }
  static void inet_mapped(in6_addr& address) {
    constexpr std::array<std::uint8_t, 16> kHere{0, 0, 0,    0,    0,   0, 0, 0,
                                                 0, 0, 0xFF, 0xFF, 127, 0, 0, 1};
    std::memcpy(&address, kHere.data(), sizeof address);
  }

  // -- coming
  void make(End& end, int family, int type, int protocol) {
    if (end.is_open()) return;
    const int fd = call([&] { return ::rsocket(family, type, protocol); });
    VERBENA_ASSERT(fd >= -1);
    if (fd < 0) return;
    begin(end, fd, family, type & 0xF);
  }
  void begin(End& end, int fd, int family, int type) {
    end.fd = fd;
    end.family = family;
    end.type = type;
    end.is_listening = false;
    end.connection = nullptr;
    end.side = 0;
    VERBENA_ASSERT(call([&] { return rfcntl(fd, F_SETFL, long{O_NONBLOCK}); }) == 0);
  }
  void bind(const End& end, TestAddress address) {
    static_cast<void>(error_of([&] { return rbind(end.fd, address.get(), address.size()); }));
  }
  void listen(End& end, int backlog) {
    if (error_of([&] { return rlisten(end.fd, backlog); }) == 0) end.is_listening = true;
  }
  void connect(End& end, TestAddress address) {
    const int error = error_of([&] { return rconnect(end.fd, address.get(), address.size()); });
    if ((error != 0 && error != EINPROGRESS) || !end.is_stream() || end.connection) return;
    Connection& made = add_connection();
    end.connection = &made;
    end.side = 0;
    made.port = port_of(end);
    made.is_broken = has_strange_route;
  }
  Connection& add_connection() {
    Connection& made = connections.emplace_back();
    made.number = static_cast<unsigned>(connections.size());
    made.flows[0].start = made.number * 977;
    made.flows[1].start = made.number * 977 + 331;
    return made;
  }
  void accept(const End& listener, std::size_t room = sizeof(sockaddr_in6)) {
    for (const End& each : ends)
      if (each.connection && each.side == 0 && each.connection->port == 0)
        each.connection->port = port_of(each);
    End* const end = free_end();
    if (!end) return;
    Bytes name(room);
    auto size = static_cast<socklen_t>(name.size());
    const int fd =
        call([&] { return raccept(listener.fd, reinterpret_cast<sockaddr*>(name.data()), &size); });
    VERBENA_ASSERT(fd >= -1);
    if (fd < 0) return;
    VERBENA_ASSERT(listener.is_listening);
    begin(*end, fd, listener.family, SOCK_STREAM);
    end->side = 1;
    end->connection = &connection_of(*end);
    end->connection->is_accepted = true;
  }
  // By the port of the other side.
  Connection& connection_of(const End& accepted) {
    sockaddr_in6 name{};
    socklen_t size = sizeof name;
    VERBENA_ASSERT(error_of([&] {
                     return rgetpeername(accepted.fd, reinterpret_cast<sockaddr*>(&name), &size);
                   }) == 0);
    Connection* found = nullptr;
    bool is_clear = true;
    for (Connection& each : connections) {
      if (each.is_accepted || each.port != be16toh(name.sin6_port)) continue;
      if (found) is_clear = each.is_known = found->is_known = false;
      found = &each;
    }
    if (found && is_clear) return *found;
    Connection& unknown = add_connection();
    unknown.is_known = false;
    return unknown;
  }

  // -- going
  void shut_down(End& end, int how) {
    const int error = error_of([&] { return rshutdown(end.fd, how); });
    if (error != 0) return;
    VERBENA_ASSERT(how == SHUT_RD || how == SHUT_WR || how == SHUT_RDWR);
    if (how != SHUT_WR) end.is_listening = false;  // it sends nothing
    if (!end.connection) return;
    if (how != SHUT_RD) end.outgoing()->has_end = true;
    if (how != SHUT_WR) end.incoming()->is_ignored = true;
  }
  void close(End& end) {
    if (!end.is_open()) return;
    // Who accepts waits until all that it sent has arrived, which takes one that knows of it.
    if (End* const peer = peer_of(end); peer && end.connection->is_accepted) settle(*peer);
    const bool is_orderly = !has_linger && end.connection && has_peer(end);
    VERBENA_ASSERT(error_of([&] { return rclose(end.fd); }) == 0);
    end.fd = -1;
    end.is_listening = false;
    end.arena.unmap_all(end.mark());
    if (Connection* const connection = end.connection) {
      if (!is_orderly) connection->is_broken = true;
      end.outgoing()->has_end = true;
      end.incoming()->is_ignored = true;
      connection->owed[end.side].clear();
    }
    end.connection = nullptr;
  }
  void settle(const End& end) {
    if (!end.connection->is_known || end.connection->is_broken) return;
    VERBENA_ASSERT(wait_for([&] { return has_peer(end); }));
  }

  SocketWorld& world;
  TestInput input;
  std::vector<End> ends;
  std::list<Connection> connections;
  Datagrams datagrams;
  bool has_linger = false;         // an rclose may cut off what was sent
  bool has_strange_route = false;  // a connection may come to nothing

 private:
  bool was_slow_ = false;
};

}  // namespace verbena::rsocket
