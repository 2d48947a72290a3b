// SPDX-License-Identifier: MIT
// Calls of rdma_cm in any order, on ids in any state and with arguments that may be nonsense, as
// long as pointers are good: each is done or refused, no call waits for long, every event is one
// that its id can have, and in the end everything is destroyed. One process, on the loopback
// interface. Ids have event channels; the calls of those without wait for the peer, which would be
// this thread. For tests only.
#pragma once

#include <fcntl.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstring>

#include "base/assert.h"
#include "base/test_input.h"
#include "rdmacm/address.h"
#include "rdmacm/border.h"
#include "wire/ip.h"

namespace verbena::rdmacm {

// What stays from one input to the next.
struct IdCallsWorld {
  static constexpr std::size_t kBytes = 4096;

  IdCallsWorld() {
    for (rdma_event_channel*& channel : channels) {
      channel = rdma_create_event_channel();
      VERBENA_ASSERT(channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    }
  }
  std::array<rdma_event_channel*, 2> channels{};
  std::array<std::byte, kBytes> memory{};
};

class IdCalls {
 public:
  IdCalls(IdCallsWorld& in, TestInput given) : world_(in), input_(given) {}
  IdCalls(const IdCalls&) = delete;
  IdCalls& operator=(const IdCalls&) = delete;
  ~IdCalls() {
    for (Held& held : ids_)
      destroy(held);
    // Those that asked to be connected and were not looked at.
    while (take_event(0) || take_event(1)) {
      for (Held& held : ids_)
        destroy(held);
    }
  }

  void run() {
    create(ids_[0], RDMA_PS_TCP);
    create(ids_[1], RDMA_PS_TCP);
    for (int steps = 0; !input_.empty() && steps < 60; ++steps) {
      step();
      take_events();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  // More than any call should need, also where the machine stands still for a moment.
  static constexpr std::chrono::seconds kPatience{30};

  // An id and what it may be told.
  struct Held {
    rdma_cm_id* id = nullptr;
    unsigned addresses = 0;  // questions that were taken and not answered
    unsigned routes = 0;
    unsigned joins = 0;
    bool has_listened = false;
    bool has_connected = false;
    bool was_asked = false;  // made by a request
    bool is_answered = false;
  };

  void step() {
    Held& held = any_id();
    const std::uint8_t what = input_.below(32);
    if (!held.id) {
      constexpr std::array kSpaces{RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB, RDMA_PS_IPOIB};
      return what == 31 ? create_endpoint(held) : create(held, kSpaces[what % kSpaces.size()]);
    }
    switch (what) {
      case 0: return destroy(held);
      case 1:
      case 2: return bind(held);
      case 3:
      case 4:
      case 5: return resolve_address(held);
      case 6:
      case 7: return resolve_route(held);
      case 8:
      case 9: return listen(held);
      case 10:
      case 11:
      case 12: return connect(held);
      case 13:
      case 14:
      case 15: return accept(held);
      case 16: return reject(held);
      case 17: return disconnect(held);
      case 18: return establish(held);
      case 19: return create_queue_pair(held);
      case 20: return rdma_destroy_qp(held.id);
      case 21: return set_option(held);
      case 22: return migrate(held);
      case 23: return join(held);
      case 24: return leave(held);
      case 25: return ask_attributes(held);
      case 26: return ask_about_path(held);
      case 27: return exchange_ece(held);
      case 28: return notify(held);
      case 29: return ask_addresses();
      case 30: return ask_devices();
      default: return step_far(held);
    }
  }

  // From nothing to a connection, or part of the way: inputs shall not have to find that.
  void step_far(Held& listener) {
    Held& client = any_id();
    const std::uint8_t how_far = input_.take();
    if (&client == &listener || !client.id) return;
    const Address any = address_of(0);
    static_cast<void>(answered(rdma_bind_addr(listener.id, raw(any))));
    listener.has_listened |= answered(rdma_listen(listener.id, 4)) == 0;
    const Address to = Address::from(rdma_get_local_addr(listener.id)).value_or(any);
    client.addresses += answered(rdma_resolve_addr(client.id, nullptr, raw(to), 1000)) == 0;
    take_events();
    client.routes += answered(rdma_resolve_route(client.id, 1000)) == 0;
    take_events();
    if ((how_far & 1) != 0) create_queue_pair(client);
    rdma_conn_param asks = usual_parameters();
    if (answered(rdma_connect(client.id, &asks)) != 0) return;
    client.has_connected = true;
    wait_for_event(listener);
    if ((how_far & 2) == 0) return;
    for (Held& server : ids_) {
      if (!server.id || !server.was_asked || server.is_answered) continue;
      if ((how_far & 4) != 0) create_queue_pair(server);
      rdma_conn_param takes = usual_parameters();
      if (answered(rdma_accept(server.id, &takes)) != 0) continue;
      server.is_answered = true;
      wait_for_event(client);
      if (client.id && !client.id->qp) establish(client);
      wait_for_event(server);
    }
  }

  // -- the calls
  void create(Held& held, rdma_port_space space) {
    rdma_cm_id* id = nullptr;
    const int error = answered(rdma_create_id(channel(), &id, this, space));
    held = {};
    if (error == 0) held.id = id;
  }
  // It comes without a channel; and an active one has resolved all when it comes.
  void create_endpoint(Held& held) {
    rdma_addrinfo hints{};
    hints.ai_flags = RAI_NUMERICHOST | (input_.one_in(2) ? RAI_PASSIVE : 0);
    hints.ai_port_space = input_.one_in(2) ? RDMA_PS_TCP : RDMA_PS_UDP;
    rdma_addrinfo* found = nullptr;
    const char* const node = input_.one_in(2) ? "127.0.0.1" : "::1";
    if (rdma_getaddrinfo(node, "20001", &hints, &found) != 0) return;
    ibv_qp_init_attr wanted = attributes();
    rdma_cm_id* id = nullptr;
    const bool is_passive = (hints.ai_flags & RAI_PASSIVE) != 0;
    const int error =
        answered(rdma_create_ep(&id, found, nullptr, input_.one_in(2) ? &wanted : nullptr));
    rdma_freeaddrinfo(found);
    if (error != 0) return;
    held = {};
    held.id = id;
    if (answered(rdma_migrate_id(id, channel())) == 0) return;
    VERBENA_ASSERT(!is_passive);  // nothing waits there
    rdma_destroy_ep(id);
    held = {};
  }
  void destroy(Held& held) {
    if (!held.id) return;
    if (held.id->qp) rdma_destroy_qp(held.id);
    VERBENA_ASSERT(answered(rdma_destroy_id(held.id)) == 0);
    held = {};
  }
  void bind(Held& held) {
    const Address where = address_of(input_.take());
    static_cast<void>(answered(rdma_bind_addr(held.id, raw(where))));
  }
  void resolve_address(Held& held) {
    const Address from = address_of(input_.take());
    Address to = address_of(input_.take());
    // Most often somebody is there.
    if (const Held& other = any_id(); other.id && !input_.one_in(4)) {
      to = Address::from(rdma_get_local_addr(other.id)).value_or(to);
    }
    sockaddr* const source = input_.one_in(4) ? raw(from) : nullptr;
    if (answered(rdma_resolve_addr(held.id, source, raw(to), timeout())) != 0) return;
    ++held.addresses;
    if (!input_.one_in(4)) wait_for_event(held);
  }
  void resolve_route(Held& held) {
    if (answered(rdma_resolve_route(held.id, timeout())) != 0) return;
    ++held.routes;
    if (!input_.one_in(4)) wait_for_event(held);
  }
  void listen(Held& held) {
    if (answered(rdma_listen(held.id, input_.take<std::int8_t>())) == 0) held.has_listened = true;
  }
  void connect(Held& held) {
    rdma_conn_param how = parameters();
    rdma_conn_param* const given = input_.one_in(8) ? nullptr : &how;
    if (answered(rdma_connect(held.id, given)) != 0) return;
    held.has_connected = true;
    if (!input_.one_in(4)) wait_for_event(held);
  }
  void accept(Held& held) {
    rdma_conn_param how = parameters();
    rdma_conn_param* const given = input_.one_in(8) ? nullptr : &how;
    if (answered(rdma_accept(held.id, given)) != 0) return;
    VERBENA_ASSERT(held.was_asked || held.has_connected);
    held.is_answered = true;
    if (!input_.one_in(4)) wait_for_event(held);
  }
  void reject(Held& held) {
    const int error = input_.one_in(2) ? answered(rdma_reject(held.id, data(), input_.take()))
                                       : answered(rdma_reject_ece(held.id, data(), input_.take()));
    if (error == 0) VERBENA_ASSERT(held.was_asked || held.has_connected);
  }
  void disconnect(Held& held) {
    if (answered(rdma_disconnect(held.id)) != 0) return;
    VERBENA_ASSERT(held.was_asked || held.has_connected);
    if (!input_.one_in(4)) wait_for_event(held);
  }
  void establish(Held& held) {
    if (answered(rdma_establish(held.id)) == 0) {
      VERBENA_ASSERT(held.has_connected && !held.id->qp);
    }
  }
  void create_queue_pair(Held& held) {
    ibv_qp_init_attr wanted = attributes();
    if (held.id->qp) return;
    const int error = answered(rdma_create_qp(held.id, nullptr, &wanted));
    VERBENA_ASSERT((error == 0) == (held.id->qp != nullptr));
  }
  void set_option(Held& held) {
    const int level = input_.below(3);
    const int option = input_.below(5);
    const std::size_t length = input_.below(2) == 0 ? input_.below(9) : input_.take();
    std::memset(world_.memory.data(), 0, 256);
    input_.fill(world_.memory.data(), length);
    static_cast<void>(
        answered(rdma_set_option(held.id, level, option, world_.memory.data(), length)));
  }
  void migrate(Held& held) { static_cast<void>(answered(rdma_migrate_id(held.id, channel()))); }
  void join(Held& held) {
    const Address group = group_of(input_.take());
    rdma_cm_join_mc_attr_ex how{};
    how.comp_mask = input_.below(8);
    how.join_flags = input_.below(4);
    how.addr = raw(group);
    const int error = input_.one_in(2) ? answered(rdma_join_multicast(held.id, raw(group), this))
                                       : answered(rdma_join_multicast_ex(held.id, &how, this));
    if (error != 0) return;
    ++held.joins;
    if (!input_.one_in(4)) wait_for_event(held);
  }
  void leave(Held& held) {
    const Address group = group_of(input_.take());
    static_cast<void>(answered(rdma_leave_multicast(held.id, raw(group))));
  }
  void ask_attributes(Held& held) {
    ibv_qp_attr found{};
    found.qp_state = static_cast<ibv_qp_state>(input_.below(9));
    int mask = 0;
    static_cast<void>(answered(rdma_init_qp_attr(held.id, &found, &mask)));
  }
  static void ask_about_path(Held& held) {
    static_cast<void>(rdma_get_src_port(held.id));
    static_cast<void>(rdma_get_dst_port(held.id));
    VERBENA_ASSERT(held.id->route.num_paths == 0 || held.id->route.path_rec);
  }
  void exchange_ece(Held& held) {
    ibv_ece ece{.vendor_id = input_.take(), .options = input_.take(), .comp_mask = 0};
    static_cast<void>(answered(rdma_set_local_ece(held.id, &ece)));
    static_cast<void>(answered(rdma_get_remote_ece(held.id, &ece)));
  }
  void notify(Held& held) {
    static_cast<void>(
        answered(rdma_notify(held.id, static_cast<ibv_event_type>(input_.below(24)))));
  }
  // Numbers only: names would be asked of somebody.
  void ask_addresses() {
    constexpr std::array<const char*, 6> kNodes{nullptr, "127.0.0.1", "::1", "0.0.0.0", "::", "1"};
    constexpr std::array<const char*, 4> kServices{nullptr, "0", "20001", "70000"};
    rdma_addrinfo hints{};
    hints.ai_flags = input_.take() | RAI_NUMERICHOST;
    hints.ai_family = input_.below(3) == 0 ? AF_INET6 : input_.below(64);
    hints.ai_port_space = input_.one_in(4) ? input_.take<std::uint16_t>() : int{RDMA_PS_TCP};
    hints.ai_qp_type = input_.below(12);
    rdma_addrinfo* found = nullptr;
    const int error = rdma_getaddrinfo(kNodes[input_.below(6)], kServices[input_.below(4)],
                                       input_.one_in(4) ? nullptr : &hints, &found);
    if (error == 0) rdma_freeaddrinfo(found);
  }
  static void ask_devices() {
    int count = -1;
    ibv_context** const devices = rdma_get_devices(&count);
    VERBENA_ASSERT(devices && count > 0 && !devices[count]);
    rdma_free_devices(devices);
  }

  // -- events
  void take_events() {
    for (std::size_t i = 0; i < world_.channels.size(); ++i) {
      while (take_event(i)) {
      }
    }
  }
  // A moment, and only as long as something may come.
  void wait_for_event(const Held& held) {
    if (!held.id || !held.id->channel) return;
    constexpr int kMilliseconds = 1;
    pollfd one{.fd = held.id->channel->fd, .events = POLLIN, .revents = 0};
    static_cast<void>(poll(&one, 1, kMilliseconds));
    take_events();
  }
  bool take_event(std::size_t channel) {
    rdma_cm_event* event = nullptr;
    if (answered(rdma_get_cm_event(world_.channels[channel], &event)) != 0) return false;
    VERBENA_ASSERT(event && event->id && event->id->channel == world_.channels[channel]);
    rdma_cm_id* const orphan = look_at(*event);
    VERBENA_ASSERT(answered(rdma_ack_cm_event(event)) == 0);
    if (orphan) VERBENA_ASSERT(answered(rdma_destroy_id(orphan)) == 0);
    return true;
  }
  // An id that nobody keeps, or null.
  rdma_cm_id* look_at(const rdma_cm_event& event) {
    if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return take_request(event);
    Held* const held = find(event.id);
    VERBENA_ASSERT(held);  // nothing is told of an id that was destroyed
    VERBENA_ASSERT(!held->was_asked || held->is_answered || is_of_a_group(event));
    switch (event.event) {
      case RDMA_CM_EVENT_ADDR_RESOLVED:
      case RDMA_CM_EVENT_ADDR_ERROR:
        VERBENA_ASSERT(held->addresses-- > 0);
        VERBENA_ASSERT((event.status == 0) == (event.event == RDMA_CM_EVENT_ADDR_RESOLVED));
        break;
      // A path of the program's own is told as a route, too (rdma_set_option(3)).
      case RDMA_CM_EVENT_ROUTE_RESOLVED:
        VERBENA_ASSERT(event.status == 0 && held->id->route.num_paths > 0);
        break;
      case RDMA_CM_EVENT_ROUTE_ERROR: VERBENA_ASSERT(held->routes > 0 && event.status != 0); break;
      case RDMA_CM_EVENT_CONNECT_RESPONSE:
        VERBENA_ASSERT(held->has_connected && !held->id->qp && event.status == 0);
        check_data(event.param.conn.private_data, event.param.conn.private_data_len);
        break;
      case RDMA_CM_EVENT_REJECTED: VERBENA_ASSERT(event.status != 0); [[fallthrough]];
      case RDMA_CM_EVENT_CONNECT_ERROR:
      case RDMA_CM_EVENT_UNREACHABLE:
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        VERBENA_ASSERT(held->has_connected || held->was_asked);
        break;
      case RDMA_CM_EVENT_ESTABLISHED:
        VERBENA_ASSERT(held->has_connected || held->was_asked);
        VERBENA_ASSERT(event.status == 0);
        break;
      case RDMA_CM_EVENT_MULTICAST_JOIN:
      case RDMA_CM_EVENT_MULTICAST_ERROR: VERBENA_ASSERT(held->joins-- > 0); break;
      // Another test may be changing the machine's interfaces.
      case RDMA_CM_EVENT_ADDR_CHANGE:
      case RDMA_CM_EVENT_DEVICE_REMOVAL: break;
      case RDMA_CM_EVENT_CONNECT_REQUEST:
      default: VERBENA_ASSERT(false);
    }
    return nullptr;
  }
  // Which a program may join also with an id that it has not accepted.
  static bool is_of_a_group(const rdma_cm_event& event) {
    return event.event == RDMA_CM_EVENT_MULTICAST_JOIN ||
           event.event == RDMA_CM_EVENT_MULTICAST_ERROR;
  }
  rdma_cm_id* take_request(const rdma_cm_event& event) {
    const Held* const listener = find(event.listen_id);
    VERBENA_ASSERT(listener && listener->has_listened && event.status == 0);
    VERBENA_ASSERT(!find(event.id) && event.id->verbs);
    VERBENA_ASSERT(event.id->context == event.listen_id->context);
    const bool is_datagram = event.id->qp_type == IBV_QPT_UD;
    if (is_datagram) {
      check_data(event.param.ud.private_data, event.param.ud.private_data_len);
    } else {
      check_data(event.param.conn.private_data, event.param.conn.private_data_len);
    }
    for (Held& free : ids_) {
      if (free.id) continue;
      free = {};
      free.id = event.id;
      free.was_asked = true;
      return nullptr;
    }
    return event.id;
  }
  static void check_data(const void* data, std::size_t length) {
    VERBENA_ASSERT(length == 0 || data);
    const auto* const bytes = static_cast<const volatile std::uint8_t*>(data);
    for (std::size_t i = 0; i < length; ++i)
      static_cast<void>(bytes[i]);
  }
  Held* find(const rdma_cm_id* id) {
    for (Held& held : ids_) {
      if (held.id == id) return &held;
    }
    return nullptr;
  }

  // -- arguments
  // 0 or errno, of a call that has just come back.
  int answered(int result) {
    const auto now = Clock::now();
    VERBENA_ASSERT(now - last_ < kPatience);
    last_ = now;
    if (result == 0) return 0;
    VERBENA_ASSERT(result == -1 && errno > 0);
    return errno;
  }
  Held& any_id() { return ids_[input_.below(kIds)]; }
  rdma_event_channel* channel() { return world_.channels[input_.below(2)]; }
  int timeout() { return input_.one_in(8) ? input_.take<std::int8_t>() : 1000; }
  static sockaddr* raw(const Address& address) { return const_cast<sockaddr*>(address.get()); }
  static Address address_of(std::uint8_t which) {
    constexpr std::array<std::uint16_t, 4> kPorts{0, 20001, 20002, 20003};
    const std::uint16_t port = kPorts[which & 3];
    const Gid ipv4 = wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 1});
    Gid ipv6{};
    ipv6.bytes[15] = 1;
    switch (which >> 2 & 7) {
      case 0:
      case 1: return Address::of(ipv4, port, 0);
      case 2: return Address::of(ipv6, port, 0);
      case 3: return Address::any(AF_INET, port);
      case 4: return Address::any(AF_INET6, port);
      case 5: return Address::of_service(ipv4, std::uint64_t{RDMA_PS_TCP} << 16 | port, 0);
      // Nobody's (RFC 5737).
      case 6:
        return Address::of(wire::gid_of(std::array<std::uint8_t, 4>{203, 0, 113, 9}), port, 0);
      default: return Address();
    }
  }
  static Address group_of(std::uint8_t which) {
    const std::uint8_t last = which & 3;
    return (which & 4) != 0
               ? address_of(which)
               : Address::of(wire::gid_of(std::array<std::uint8_t, 4>{239, 1, 2, last}), 0, 0);
  }
  const void* data() const { return world_.memory.data(); }
  rdma_conn_param parameters() {
    rdma_conn_param made{};
    made.private_data = data();
    made.private_data_len = input_.one_in(4) ? input_.take() : input_.below(57);
    made.responder_resources = input_.below(20);
    made.initiator_depth = input_.below(20);
    made.retry_count = input_.below(9);
    made.rnr_retry_count = input_.below(9);
    made.qp_num = input_.one_in(2) ? 0x111 : input_.take<std::uint32_t>();
    return made;
  }
  rdma_conn_param usual_parameters() const {
    rdma_conn_param made{};
    made.private_data = data();
    made.private_data_len = 16;
    made.responder_resources = made.initiator_depth = 1;
    made.retry_count = made.rnr_retry_count = 7;
    made.qp_num = 0x111;
    return made;
  }
  ibv_qp_init_attr attributes() {
    ibv_qp_init_attr made{};
    constexpr std::array kTypes{IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_UC, IBV_QPT_XRC_SEND};
    made.qp_type = kTypes[input_.one_in(3) ? input_.below(4) : 0];
    made.cap.max_send_wr = made.cap.max_recv_wr = 1 + input_.below(17);
    made.cap.max_send_sge = made.cap.max_recv_sge = 1 + input_.below(5);
    made.cap.max_inline_data = input_.take();
    made.sq_sig_all = input_.below(2);
    return made;
  }

  static constexpr std::size_t kIds = 5;
  IdCallsWorld& world_;
  TestInput input_;
  std::array<Held, kIds> ids_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace verbena::rdmacm
