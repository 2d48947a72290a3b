// SPDX-License-Identifier: MIT
// Calls of rsockets in any order, in any state, with arguments that may be nonsense, as long as
// pointers are good. Each call fails with its reason, or does what it says, soon; a stream brings
// exactly what was sent; a datagram comes once, unaltered, or not at all; a peer writes only where
// something is mapped for it; in the end everything can be closed, and no descriptor is left. One
// process, by the loopback addresses. For tests only.
#pragma once

#include <netinet/tcp.h>
#include <sys/resource.h>

#include <climits>

#include "rsocket/test_socket_transfer.h"

namespace verbena::rsocket {

class SocketCalls : private SocketTransfer {
 public:
  using SocketTransfer::SocketTransfer;
  using SocketTransfer::was_slow;

  void run() {
    const std::uint8_t first = input.take();
    if ((first & 1) != 0) connect_pair();
    if ((first & 2) != 0) make_datagram_pair((first & 4) != 0 ? AF_INET : AF_INET6);
    for (int steps = 0; !input.empty() && steps < 100; ++steps) {
      step();
      check_arenas();
    }
    drain();
    hear_of_ends();
    for (End& each : ends)
      close(each);
    check_arenas();
  }

 private:
  void step() {
    const std::uint8_t what = input.take();
    End& end = any();
    switch (what & 31) {
      case 0: return make_any(end);
      case 1: return make(end, family(), SOCK_STREAM, 0);
      case 2: return make(end, family(), SOCK_DGRAM, 0);
      case 3: return bind(end, any_address());
      case 4: return bind(end, loopback(end.family, 0));
      case 5: return listen(end, number());
      case 6: return accept(end, input.one_in(4) ? input.take() : sizeof(sockaddr_in6));
      case 7:
      case 8: return connect(end, any_address());
      case 9: return shut_down(end, input.one_in(8) ? number() : input.below(3));
      case 10: return close(end);
      case 11: return ask_names(end);
      case 12: return set_option(end);
      case 13: return get_option(end);
      case 14: return control(end);
      case 15: return poll();
      case 16: return select();
      case 17: return map(end);
      case 18: return unmap(end);
      case 19:
      case 20: return write_mapped(end);
      case 21: return call_foreign();
      case 22: return input.one_in(2) ? connect_pair() : with_few_descriptors(end);
      case 23: return progress(2);
      case 24:
      case 25:
      case 26:
      case 27: return send(end);
      default: static_cast<void>(receive(end)); return;
    }
  }
  int family() { return input.one_in(2) ? AF_INET6 : AF_INET; }
  void make_any(End& end) {
    constexpr std::array kFamilies{AF_INET, AF_INET6, AF_IB, AF_UNIX};
    const int family = input.one_in(8) ? number() : kFamilies[input.below(kFamilies.size())];
    const std::uint8_t how = input.take();
    int type = (how & 1) != 0 ? SOCK_STREAM : SOCK_DGRAM;
    if ((how & 6) == 6) type = number();
    if ((how & 8) != 0) type |= SOCK_NONBLOCK | SOCK_CLOEXEC;
    make(end, family, type, (how & 16) != 0 ? number() : 0);
  }

  // -- pairs, which inputs need not find
  void connect_pair() {
    const std::uint8_t how = input.take();
    const int family = (how & 1) != 0 ? AF_INET6 : AF_INET;
    End* const listener = free_end();
    if (!listener) return;
    make(*listener, family, SOCK_STREAM, 0);
    End* const from = free_end();
    if (from) make(*from, family, SOCK_STREAM, 0);
    if (!from || !free_end()) {
      close(*listener);
      if (from) close(*from);
      return;
    }
    for (const End* each : {listener, from}) {
      if ((how & 2) != 0) set_number(*each, SOL_RDMA, RDMA_IOMAPSIZE, 4);
      if ((how & 4) != 0) set_number(*each, SOL_SOCKET, SO_RCVBUF, 1);
      if ((how & 8) != 0) set_number(*each, SOL_SOCKET, SO_SNDBUF, 1);
      if ((how & 16) != 0) set_number(*each, SOL_RDMA, RDMA_SQSIZE, 1);
      if ((how & 32) != 0) set_number(*each, SOL_RDMA, RDMA_RQSIZE, 1);
      if ((how & 64) != 0) set_number(*each, SOL_RDMA, RDMA_INLINE, 0);
    }
    bind(*listener, loopback(family, 0));
    listen(*listener, 1);
    VERBENA_ASSERT(listener->is_listening);
    connect(*from, loopback(family, port_of(*listener)));
    VERBENA_ASSERT(from->connection != nullptr);
    // One that was connecting may have the same port, or have come first to one that was another's.
    Connection& made = *from->connection;
    VERBENA_ASSERT(wait_for([&] {
      accept(*listener);
      return made.is_accepted || !made.is_known || !free_end();
    }));
    made.is_known = made.is_known && made.is_accepted;
    if ((how & 128) == 0) settle(*from);
    close(*listener);
  }
  // A call where there are hardly any left to open.
  void with_few_descriptors(End& end) {
    const std::uint8_t how = input.take();
    rlimit usual{};
    VERBENA_ASSERT(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    const int next = dup(world.silent);
    VERBENA_ASSERT(next >= 0 && ::close(next) == 0);
    rlimit few = usual;
    few.rlim_cur = static_cast<rlim_t>(next) + (how & 15);
    VERBENA_ASSERT(setrlimit(RLIMIT_NOFILE, &few) == 0);
    switch (how >> 4 & 3) {
      case 0: make(end, family(), SOCK_STREAM, 0); break;
      case 1: make(end, family(), SOCK_DGRAM, 0); break;
      case 2: accept(end); break;
      default: static_cast<void>(receive(end)); break;
    }
    VERBENA_ASSERT(setrlimit(RLIMIT_NOFILE, &usual) == 0);
  }
  void make_datagram_pair(int family) {
    for (int i = 0; i < 2; ++i) {
      End* const end = free_end();
      if (!end) return;
      make(*end, family, SOCK_DGRAM, 0);
      bind(*end, loopback(family, 0));
    }
  }

  // -- questions and settings
  void ask_names(const End& end) {
    Bytes name(input.take());
    auto size = static_cast<socklen_t>(name.size());
    auto* const to = reinterpret_cast<sockaddr*>(name.data());
    if (input.one_in(2)) {
      static_cast<void>(error_of([&] { return rgetsockname(end.fd, to, &size); }));
    } else {
      static_cast<void>(error_of([&] { return rgetpeername(end.fd, to, &size); }));
    }
  }
  struct Option {
    int level;
    int name;
  };
  Option any_option() {
    // Those that rsockets know, in an order that inputs of the corpus go by.
    constexpr std::array<Option, 30> kKnown{{
        {SOL_SOCKET, SO_REUSEADDR},  {SOL_SOCKET, SO_RCVBUF},     {SOL_SOCKET, SO_SNDBUF},
        {SOL_SOCKET, SO_KEEPALIVE},  {SOL_SOCKET, SO_OOBINLINE},  {SOL_SOCKET, SO_LINGER},
        {SOL_SOCKET, SO_TYPE},       {SOL_SOCKET, SO_DOMAIN},     {SOL_SOCKET, SO_PROTOCOL},
        {SOL_SOCKET, SO_ACCEPTCONN}, {SOL_SOCKET, SO_ERROR},      {IPPROTO_TCP, TCP_NODELAY},
        {IPPROTO_TCP, TCP_MAXSEG},   {IPPROTO_TCP, TCP_KEEPIDLE}, {IPPROTO_TCP, TCP_KEEPINTVL},
        {IPPROTO_TCP, TCP_KEEPCNT},  {IPPROTO_TCP, TCP_INFO},     {IPPROTO_IPV6, IPV6_V6ONLY},
        {SOL_RDMA, RDMA_SQSIZE},     {SOL_RDMA, RDMA_RQSIZE},     {SOL_RDMA, RDMA_INLINE},
        {SOL_RDMA, RDMA_IOMAPSIZE},  {SOL_RDMA, RDMA_ROUTE},      {SOL_SOCKET, SO_REUSEPORT},
        {SOL_SOCKET, SO_BROADCAST},  {SOL_SOCKET, SO_RCVLOWAT},   {SOL_SOCKET, SO_RCVTIMEO},
        {SOL_SOCKET, SO_BUSY_POLL},  {SOL_SOCKET, SO_TIMESTAMP},  {SOL_SOCKET, SO_PEEK_OFF},
    }};
    const std::uint8_t which = input.take();
    return which < 0xE0 ? kKnown[which % kKnown.size()] : Option{number(), number()};
  }
  void set_number(const End& end, int level, int name, int value) {
    VERBENA_ASSERT(
        error_of([&] { return rsetsockopt(end.fd, level, name, &value, sizeof value); }) == 0);
  }
  void set_option(const End& end) {
    const Option option = any_option();
    // What the kernel does with a datagram may alter it, or take it to another host.
    if (!end.is_stream() && option.level != SOL_SOCKET && option.level != SOL_RDMA) return;
    Bytes value(input.one_in(4) ? input.take() : sizeof(int));
    int first = number();
    // Within what the memory of a test holds.
    const bool is_size =
        option.level == SOL_SOCKET && (option.name == SO_RCVBUF || option.name == SO_SNDBUF);
    if (is_size) first &= 0x7FFFF;
    if (!value.empty()) std::memcpy(value.data(), &first, std::min(value.size(), sizeof first));
    for (std::size_t i = sizeof first; i < value.size(); ++i)
      value[i] = input.take();
    const int error = error_of([&] {
      return rsetsockopt(end.fd, option.level, option.name, value.data(),
                         static_cast<socklen_t>(value.size()));
    });
    if (error != 0 || !end.is_stream()) return;
    if (option.level == SOL_SOCKET && option.name == SO_LINGER) has_linger = true;
    if (option.level == SOL_RDMA && option.name == RDMA_ROUTE) has_strange_route = true;
  }
  void get_option(const End& end) {
    const Option option = any_option();
    Bytes value(input.one_in(4) ? input.take<std::uint16_t>() : sizeof(int));
    auto size = static_cast<socklen_t>(value.size());
    const int error = error_of(
        [&] { return rgetsockopt(end.fd, option.level, option.name, value.data(), &size); });
    if (error == 0) VERBENA_ASSERT(size <= value.size());
  }
  void control(const End& end) {
    constexpr std::array kCommands{F_GETFL, F_SETFL, F_GETFD, F_SETFD};
    const int command = input.one_in(4) ? number() : kCommands[input.below(kCommands.size())];
    long argument = number();
    if (command == F_SETFD) argument = FD_CLOEXEC;
    const int done = call([&] { return rfcntl(end.fd, command, argument); });
    if (!end.is_open()) VERBENA_ASSERT(done == -1 && errno == EBADF);
    if (command != F_SETFL || done < 0) return;
    const int flags = call([&] { return rfcntl(end.fd, F_GETFL, 0L); });
    VERBENA_ASSERT((flags & O_NONBLOCK) == (argument & O_NONBLOCK));
    VERBENA_ASSERT(call([&] { return rfcntl(end.fd, F_SETFL, long{O_NONBLOCK}); }) == 0);
  }

  // -- waiting
  // One of ours, or one that the library does not know.
  int any_descriptor() {
    const std::uint8_t which = input.take();
    switch (which & 15) {
      case 13: return world.silent;
      case 14: return -1;
      case 15: return FD_SETSIZE - 1;
      default: return ends[which % kEnds].fd;
    }
  }
  void poll() {
    std::vector<pollfd> fds(input.below(9));
    for (pollfd& each : fds)
      each = {any_descriptor(), input.one_in(4) ? input.take<short>() : short{POLLIN | POLLOUT}, 0};
    int timeout = input.below(4);
    if (input.one_in(4)) {
      fds.push_back({world.readable, POLLIN, 0});
      timeout = number();
      if (input.one_in(4)) timeout = -1;
    }
    const int count = call([&] { return rpoll(fds.data(), fds.size(), timeout); });
    if (count < 0) return;
    int ready = 0;
    for (const pollfd& each : fds) {
      ready += each.revents != 0 ? 1 : 0;
      VERBENA_ASSERT((each.revents & ~(each.events | POLLERR | POLLHUP | POLLNVAL)) == 0);
    }
    VERBENA_ASSERT(count == ready);
  }
  void select() {
    std::array<fd_set, 3> asked{};
    for (unsigned i = input.below(9); i > 0; --i) {
      const int fd = any_descriptor();
      if (fd >= 0 && fd < FD_SETSIZE) FD_SET(fd, &asked[input.below(3)]);
    }
    timeval time{0, input.below(4) * 1000};
    if (input.one_in(4)) {
      FD_SET(world.readable, &asked[0]);
      time = {input.one_in(2) ? input.take<time_t>() : number(), number()};
    }
    std::array<fd_set, 3> told = asked;
    const int most =
        input.one_in(4) && !FD_ISSET(world.readable, &asked[0]) ? number() : FD_SETSIZE;
    const int count = call([&] { return rselect(most, told.data(), &told[1], &told[2], &time); });
    if (count < 0) return;
    int ready = 0;
    for (int fd = 0; fd < std::min(most, int{FD_SETSIZE}); ++fd)
      for (std::size_t i = 0; i < asked.size(); ++i) {
        if (!FD_ISSET(fd, &told[i])) continue;
        ++ready;
        VERBENA_ASSERT(FD_ISSET(fd, &asked[i]));
      }
    VERBENA_ASSERT(count == ready);
  }

  // All calls of a descriptor that is no rsocket.
  void call_foreign() {
    constexpr std::array kNone{-1, INT_MAX, INT_MIN};
    const std::uint8_t which = input.take();
    End none(world.arena(0).first(0));
    none.fd = (which & 1) != 0 ? world.silent : kNone[which % kNone.size()];
    const auto is_refused = [](auto done) {
      return done == static_cast<decltype(done)>(-1) && errno == EBADF;
    };
    Bytes some(8);
    auto* const at = reinterpret_cast<sockaddr*>(some.data());
    auto size = static_cast<socklen_t>(some.size());
    const int fd = none.fd;
    VERBENA_ASSERT(is_refused(call([&] { return rbind(fd, at, size); })));
    VERBENA_ASSERT(is_refused(call([&] { return rlisten(fd, 1); })));
    VERBENA_ASSERT(is_refused(call([&] { return raccept(fd, at, &size); })));
    VERBENA_ASSERT(is_refused(call([&] { return rconnect(fd, at, size); })));
    VERBENA_ASSERT(is_refused(call([&] { return rshutdown(fd, number()); })));
    VERBENA_ASSERT(is_refused(call([&] { return rclose(fd); })));
    VERBENA_ASSERT(is_refused(call([&] { return rgetpeername(fd, at, &size); })));
    VERBENA_ASSERT(is_refused(call([&] { return rgetsockname(fd, at, &size); })));
    VERBENA_ASSERT(is_refused(call([&] { return rsetsockopt(fd, 1, 2, at, size); })));
    VERBENA_ASSERT(is_refused(call([&] { return rgetsockopt(fd, 1, 2, at, &size); })));
    VERBENA_ASSERT(is_refused(call([&] { return riounmap(fd, at, size); })));
    VERBENA_ASSERT(is_refused(call([&] { return riomap(fd, at, size, PROT_WRITE, 0, -1); })));
    VERBENA_ASSERT(is_refused(call([&] { return riowrite(fd, at, size, 0, 0); })));
    TestParts parts(input, some.size(), true);
    TestAddress nowhere;
    const auto form = static_cast<Form>(input.below(kForms));
    VERBENA_ASSERT(is_refused(give(none, form, parts, some.size(), number(), nowhere)));
    VERBENA_ASSERT(is_refused(take(none, form, parts, some.size(), number())));
  }
};

// Once; and again where it took long or left a descriptor, which a busy machine or something that
// is kept for the next time may do as well, but not each time.
inline void run_socket_calls(SocketWorld& world, TestInput input) {
  constexpr int kTurns = 4;
  for (int turn = 0; turn < kTurns; ++turn) {
    SocketCalls calls(world, input);
    calls.run();
    const std::size_t before = world.open_descriptors;
    world.open_descriptors = count_descriptors();
    if (!calls.was_slow() && world.open_descriptors <= before) return;
  }
  const bool is_slow_or_leaves_a_descriptor = true;
  VERBENA_ASSERT(!is_slow_or_leaves_a_descriptor);
}

}  // namespace verbena::rsocket
