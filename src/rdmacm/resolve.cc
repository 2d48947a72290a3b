// SPDX-License-Identifier: MIT
// Addresses and routes of an id: binding, resolving, listening.
#include <endian.h>

#include <memory>
#include <utility>

#include "base/log.h"
#include "host/interfaces.h"
#include "host/neighbours.h"
#include "rdmacm/ids.h"
#include "rdmacm/manager.h"
#include "rdmacm/path.h"
#include "wire/ip.h"

namespace verbena::rdmacm {
namespace {

// Also where none is named, for requests that the program has not fetched yet. The kernel has 1024
// there, but programs connect by the ten thousand, and their servers may have to wait for a core.
constexpr int kBacklogMax = 16'384;

constexpr Duration kUsualPatience = Duration::seconds(2);

// The device that has the id's source address. EADDRNOTAVAIL where none has.
int find_port(Id& id, const Address& source) {
  id.port = id.manager.devices().find(source.gid(), source.scope(), clock_now());
  return id.port ? 0 : EADDRNOTAVAIL;
}

// A GID is bound to a service id, of which the mask says what counts: the port spaces of IP have
// theirs (annex A11.4), and there a number may be left open. RDMA_PS_IB is for all of these, and
// for any other that is named whole.
int complete_service(const Id& id, Address& address) {
  if (!address.is_ib()) return 0;
  const std::uint64_t mask = address.service_mask();
  const std::uint64_t service = address.service() & mask;
  const auto space_mask = static_cast<std::uint64_t>(RDMA_IB_IP_PS_MASK);
  const std::uint64_t port = service & ~space_mask;
  for (const rdma_port_space space : {RDMA_PS_IB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB}) {
    const std::uint64_t first = std::uint64_t{space} << 16;
    const bool is_ours = id.ps == space || id.ps == RDMA_PS_IB;
    if (!is_ours || (service & space_mask) != (first & mask & space_mask)) continue;
    address = Address::of_service(address.gid(), first | port, address.scope());
    if (port == 0) address.set_service_mask(space_mask);
    return 0;
  }
  return id.ps == RDMA_PS_IB && ~mask == 0 && service != 0 ? 0 : EPROTONOSUPPORT;
}

int bind(Id& id, Address address) {
  if (!id.manager.in_owner()) return EIO;
  if (id.stage != Stage::kIdle) return EINVAL;
  if (const int error = complete_service(id, address)) return error;
  if (const int error = id.manager.open()) return error;
  if (!address.is_any()) {
    if (const int error = find_port(id, address)) return error;
  }
  if (const int error = id.manager.ports().claim(id, address)) {
    id.port.reset();
    return error;
  }
  id.set_source(address);
  id.stage = Stage::kBound;
  if (id.port) bind_to_port(id);
  return 0;
}

// Which of our addresses an id that is not bound to one sends from.
int choose_source(Id& id, const Address& destination) {
  const auto found = id.manager.devices().source_towards(destination, clock_now());
  if (!found) return found.error();
  Address source = *found;
  if (find_port(id, source) != 0) return ENODEV;
  const bool is_bound = id.stage == Stage::kBound;
  const std::uint16_t port = is_bound ? id.source().port() : id.manager.ports().borrow(id);
  source.set_port(port);
  if (destination.is_ib()) {
    const std::uint64_t service = is_bound ? id.source().service() : id.service_id(port);
    source = Address::of_service(source.gid(), service, source.scope());
  }
  id.set_source(source);
  return 0;
}

void tell(Id& id, rdma_cm_event_type type, int status) {
  id.events().push(std::make_unique<Event>(id, type, status));
}

// Whether somebody on the way has to answer first. Not where we went a moment ago.
bool needs_neighbour(Id& id, const Address& to) {
  if (to.is_multicast() || id.source().gid() == to.gid()) return false;
  if (host::is_local_address(to.gid())) return false;
  return host::neighbour_towards(to.gid(), to.scope()) != host::Neighbour::kThere;
}

int resolve_address(Id& id, const sockaddr* source, const sockaddr* destination, int timeout) {
  if (!id.manager.in_owner()) return EIO;
  const auto to = Address::from(destination);
  if (!to) return destination ? EAFNOSUPPORT : EINVAL;
  if (const int error = id.manager.open()) return error;
  if (source && id.stage == Stage::kIdle) {
    const auto from = Address::from(source);
    if (!from || from->family() != to->family()) return EINVAL;
    if (!from->is_any() || !from->is_port_open()) {
      if (const int error = bind(id, *from)) return error;
    }
  }
  if (id.stage != Stage::kIdle && id.stage != Stage::kBound) return EINVAL;
  if (id.stage == Stage::kBound && id.source().is_ib() != to->is_ib()) return EINVAL;
  Address resolved = *to;
  if (to->is_any()) {
    // Ourselves.
    Gid loopback = wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 1});
    if (to->family() == AF_INET6) {
      loopback = {};
      loopback.bytes[15] = 1;
    }
    resolved = to->is_ib() ? Address::of_service(loopback, to->service(), 0)
                           : Address::of(loopback, to->port(), 0);
  }
  if (!id.port) {
    if (const int error = choose_source(id, resolved)) return error;
  } else if (wire::is_ipv4(id.source().gid()) != wire::is_ipv4(resolved.gid())) {
    return ENETUNREACH;
  }
  id.set_destination(resolved);
  bind_to_port(id);
  id.way = route_of(id);
  if (needs_neighbour(id, resolved)) {
    id.stage = Stage::kAddressing;
    const auto patience = timeout > 0 ? Duration::milliseconds(timeout) : kUsualPatience;
    id.manager.wait_for_neighbour(id, patience);
    return complete(id);
  }
  id.stage = Stage::kAddressed;
  tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  return complete(id);
}

int resolve_route(Id& id) {
  if (!id.manager.in_owner()) return EIO;
  if (id.stage != Stage::kAddressed) return EINVAL;
  id.path = path_record_of(id);
  id.route.path_rec = &id.path;
  id.route.num_paths = 1;
  id.stage = Stage::kRouted;
  tell(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  return complete(id);
}

cm::Listening listening_of(const Id& id, int backlog) {
  const Address source = id.source();
  const bool is_limited = backlog > 0 && backlog < kBacklogMax;
  cm::Listening what{.service_id = id.service_id(source),
                     .connections = !id.is_datagram(),
                     .datagrams = id.is_datagram(),
                     .backlog = static_cast<std::uint32_t>(is_limited ? backlog : kBacklogMax),
                     .tag = reinterpret_cast<std::uint64_t>(&id)};
  if (!source.is_any()) {
    what.local = source.gid();
    what.local_prefix = 128;
  } else if (source.family() == AF_INET) {
    what.local = source.gid();
    what.local_prefix = 96;  // those that are IPv4-mapped
  }
  return what;
}

int errno_of(cm::Refusal refusal) {
  switch (refusal) {
    case cm::Refusal::kInUse: return EADDRINUSE;
    case cm::Refusal::kNoRoom: return ENOMEM;
    case cm::Refusal::kNoSuchId:
    case cm::Refusal::kWrongState:
    case cm::Refusal::kTooLong:
    case cm::Refusal::kInvalid: return EINVAL;
  }
  return EINVAL;
}

int listen(Id& id, int backlog) {
  if (!id.manager.in_owner()) return EIO;
  if (id.stage == Stage::kIdle) {
    if (const int error = bind(id, Address::any(AF_INET, 0))) return error;
  }
  if (id.stage != Stage::kBound) return EINVAL;
  Ports& ports = id.manager.ports();
  if (id.claims.empty()) {
    Address source = id.source();
    if (const int error = ports.claim(id, source)) return error;
    id.set_source(source);
  }
  {
    Turn turn(id.manager);
    const auto listener = turn.engine().listen(listening_of(id, backlog));
    if (!listener) return errno_of(listener.error());
    id.listeners.push_back(*listener);
    id.stage = Stage::kListening;
  }
  if (const int error = ports.serve(id)) {
    Turn turn(id.manager);
    turn.engine().unlisten(id.listeners.back(), turn.now());
    id.listeners.clear();
    id.stage = Stage::kBound;
    return error;
  }
  LOG_DEBUG("service 0x%llx: listening",
            static_cast<unsigned long long>(id.service_id(id.source())));
  id.manager.listen_on_wire(id.source().is_loopback() || id.manager.devices().are_all_loopback());
  return 0;
}

}  // namespace
}  // namespace verbena::rdmacm

using namespace verbena::rdmacm;

extern "C" {

int rdma_bind_addr(rdma_cm_id* id, sockaddr* address) {
  const auto where = Address::from(address);
  if (!id || !where) return answer(id && address ? EAFNOSUPPORT : EINVAL);
  return answer(verbena::rdmacm::bind(Id::of(id), *where));
}

int rdma_resolve_addr(rdma_cm_id* id, sockaddr* source, sockaddr* destination, int timeout) {
  if (!id) return answer(EINVAL);
  return answer(resolve_address(Id::of(id), source, destination, timeout));
}

int rdma_resolve_route(rdma_cm_id* id, int /*timeout*/) {
  if (!id) return answer(EINVAL);
  return answer(resolve_route(Id::of(id)));
}

int rdma_listen(rdma_cm_id* id, int backlog) {
  if (!id) return answer(EINVAL);
  return answer(verbena::rdmacm::listen(Id::of(id), backlog));
}

__be16 rdma_get_src_port(rdma_cm_id* id) { return htobe16(Id::of(id).source().port()); }
__be16 rdma_get_dst_port(rdma_cm_id* id) { return htobe16(Id::of(id).destination().port()); }

}  // extern "C"
