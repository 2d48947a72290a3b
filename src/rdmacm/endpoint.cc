// SPDX-License-Identifier: MIT
// rdma_getaddrinfo(3), and ids made from what it gives: rdma_create_ep(3), rdma_get_request(3).
#include <netdb.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "rdmacm/ids.h"
#include "rdmacm/manager.h"
#include "rdmacm/queue_pair.h"

namespace verbena::rdmacm {
namespace {

constexpr int kPatienceMs = 2000;

// Everything in an answer is freed by rdma_freeaddrinfo.
template <class Made>
Made* copy_of(const Made* from, std::size_t size) {
  if (!from || size == 0) return nullptr;
  void* const made = std::malloc(size);
  if (made) std::memcpy(made, from, size);
  return static_cast<Made*>(made);
}

void free_answer(rdma_addrinfo* info) {
  while (info) {
    rdma_addrinfo* const next = info->ai_next;
    for (void* each :
         {static_cast<void*>(info->ai_src_addr), static_cast<void*>(info->ai_dst_addr),
          static_cast<void*>(info->ai_src_canonname), static_cast<void*>(info->ai_dst_canonname),
          info->ai_route, info->ai_connect})
      std::free(each);
    std::free(info);
    info = next;
  }
}

struct FreeAnswer {
  void operator()(rdma_addrinfo* info) const { free_answer(info); }
};
using Answer = std::unique_ptr<rdma_addrinfo, FreeAnswer>;

// What getaddrinfo(3) is asked.
addrinfo question_of(const rdma_addrinfo& hints) {
  addrinfo asked{};
  if ((hints.ai_flags & RAI_PASSIVE) != 0) asked.ai_flags |= AI_PASSIVE;
  if ((hints.ai_flags & RAI_NUMERICHOST) != 0) asked.ai_flags |= AI_NUMERICHOST;
  // GIDs are written as IPv6 addresses, and those of RoCEv2 are some: IPv4 in its mapped form.
  asked.ai_family = hints.ai_family == AF_IB ? AF_INET6 : hints.ai_family;
  if (hints.ai_family == AF_IB) asked.ai_flags |= AI_V4MAPPED;
  switch (hints.ai_qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV: asked.ai_socktype = SOCK_STREAM; break;
    case IBV_QPT_UD: asked.ai_socktype = SOCK_DGRAM; break;
    default: break;
  }
  switch (hints.ai_port_space) {
    case RDMA_PS_TCP: asked.ai_protocol = IPPROTO_TCP; break;
    case RDMA_PS_IPOIB:
    case RDMA_PS_UDP: asked.ai_protocol = IPPROTO_UDP; break;
    case RDMA_PS_IB:
      if (asked.ai_socktype == SOCK_STREAM) asked.ai_protocol = IPPROTO_TCP;
      if (asked.ai_socktype == SOCK_DGRAM) asked.ai_protocol = IPPROTO_UDP;
      break;
    default: break;
  }
  return asked;
}

void say_kind(rdma_addrinfo& made, const rdma_addrinfo& hints, int socket_type) {
  const bool is_datagram = socket_type == SOCK_DGRAM;
  made.ai_qp_type = hints.ai_qp_type != 0 ? hints.ai_qp_type
                    : is_datagram         ? IBV_QPT_UD
                                          : IBV_QPT_RC;
  made.ai_port_space = hints.ai_port_space != 0 ? hints.ai_port_space
                       : is_datagram            ? RDMA_PS_UDP
                                                : RDMA_PS_TCP;
}

// A service id with its port open where `service` named none.
Address as_gid(const sockaddr& found, std::uint64_t port_space) {
  const Address from = Address::from(&found).value_or(Address());
  Address made = Address::of_service(from.gid(), port_space << 16 | from.port(), from.scope());
  if (from.port() == 0) made.set_service_mask(RDMA_IB_IP_PS_MASK);
  return made;
}

// 0, or what getaddrinfo(3) gives.
int ask(const char* node, const char* service, const rdma_addrinfo& hints, rdma_addrinfo& made) {
  const addrinfo asked = question_of(hints);
  addrinfo* found = nullptr;
  if (const int refused = getaddrinfo(node, service, &asked, &found)) return refused;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> own(found, freeaddrinfo);
  made.ai_family = found->ai_family;
  say_kind(made, hints, found->ai_socktype);
  const bool is_passive = (hints.ai_flags & RAI_PASSIVE) != 0;
  sockaddr*& address = is_passive ? made.ai_src_addr : made.ai_dst_addr;
  Address shown = Address::from(found->ai_addr).value_or(Address());
  if (hints.ai_family == AF_IB) {
    made.ai_family = AF_IB;
    shown = as_gid(*found->ai_addr, static_cast<std::uint64_t>(made.ai_port_space));
  }
  (is_passive ? made.ai_src_len : made.ai_dst_len) = shown.size();
  address = copy_of(shown.get(), shown.size());
  if (!address) return EAI_MEMORY;
  if (found->ai_canonname) {
    (is_passive ? made.ai_src_canonname : made.ai_dst_canonname) = strdup(found->ai_canonname);
  }
  return 0;
}

// Without a name and a service the hints say all.
int take_hints(const rdma_addrinfo& hints, rdma_addrinfo& made) {
  if (!made.ai_dst_addr && hints.ai_dst_len != 0) {
    made.ai_dst_addr = copy_of(hints.ai_dst_addr, hints.ai_dst_len);
    if (!made.ai_dst_addr) return EAI_MEMORY;
    made.ai_dst_len = hints.ai_dst_len;
  }
  if (!made.ai_src_addr && hints.ai_src_len != 0) {
    made.ai_src_addr = copy_of(hints.ai_src_addr, hints.ai_src_len);
    if (!made.ai_src_addr) return EAI_MEMORY;
    made.ai_src_len = hints.ai_src_len;
  }
  return 0;
}

int resolve_names(const char* node, const char* service, const rdma_addrinfo* given,
                  rdma_addrinfo** result) {
  const rdma_addrinfo none{};
  const rdma_addrinfo& hints = given ? *given : none;
  if (!result) return EAI_SYSTEM;
  if (!node && !service && !given) return EAI_NONAME;
  Answer made(static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo))));
  if (!made) return EAI_MEMORY;
  made->ai_flags = hints.ai_flags;
  if (node || service) {
    if (const int refused = ask(node, service, hints, *made)) return refused;
  } else {
    made->ai_family = hints.ai_family;
    say_kind(*made, hints, hints.ai_port_space == RDMA_PS_UDP ? SOCK_DGRAM : SOCK_STREAM);
  }
  if (const int refused = take_hints(hints, *made)) return refused;
  *result = made.release();
  return 0;
}

// ------------------------------------------------------------------------------------ end points

int resolve(rdma_cm_id* id, const rdma_addrinfo& where) {
  if (rdma_resolve_addr(id, where.ai_src_addr, where.ai_dst_addr, kPatienceMs) != 0) return errno;
  if (where.ai_route_len != 0) {
    if (rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, where.ai_route,
                        where.ai_route_len) != 0) {
      return errno;
    }
    return complete(Id::of(id));
  }
  return rdma_resolve_route(id, kPatienceMs) == 0 ? 0 : errno;
}

int prepare(Id& id, const rdma_addrinfo& where, ibv_pd* pd, ibv_qp_init_attr* attributes) {
  if ((where.ai_flags & RAI_PASSIVE) != 0) {
    if (rdma_bind_addr(&id, where.ai_src_addr) != 0) return errno;
    if (attributes) {
      id.template_attributes = *attributes;
      id.template_attributes->qp_type = static_cast<ibv_qp_type>(where.ai_qp_type);
      id.template_domain = pd;
    }
    return 0;
  }
  if (const int error = resolve(&id, where)) return error;
  if (where.ai_connect_len != 0) {
    const auto* const data = static_cast<const std::byte*>(where.ai_connect);
    id.connect_data.assign(data, data + where.ai_connect_len);
  }
  if (!attributes) return 0;
  attributes->qp_type = static_cast<ibv_qp_type>(where.ai_qp_type);
  return rdma_create_qp(&id, pd, attributes) == 0 ? 0 : errno;
}

int create_endpoint(rdma_cm_id** made, const rdma_addrinfo& where, ibv_pd* pd,
                    ibv_qp_init_attr* attributes) {
  rdma_cm_id* id = nullptr;
  if (const int error =
          create_id(nullptr, &id, nullptr, static_cast<rdma_port_space>(where.ai_port_space),
                    static_cast<ibv_qp_type>(where.ai_qp_type))) {
    return error;
  }
  if (const int error = prepare(Id::of(id), where, pd, attributes)) {
    rdma_destroy_ep(id);
    return error;
  }
  *made = id;
  return 0;
}

int get_request(Id& listener, rdma_cm_id** made) {
  if (!listener.is_sync) return EINVAL;
  if (const int error = next_own_event(listener)) return error;
  rdma_cm_event* const event = std::exchange(listener.event, nullptr);
  int error = event->status < 0 ? -event->status : event->status;
  if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) error = ENODEV;
  if (!error && event->event != RDMA_CM_EVENT_CONNECT_REQUEST) error = EINVAL;
  if (!error && listener.template_attributes) {
    ibv_qp_init_attr attributes = *listener.template_attributes;
    if (rdma_create_qp(event->id, listener.template_domain, &attributes) != 0) {
      // Nobody else knows of it, and who asked is to be told.
      const int why = errno;
      rdma_cm_id* const refused = event->id;
      rdma_ack_cm_event(event);
      rdma_destroy_id(refused);
      return why;
    }
  }
  if (error) {
    listener.event = event;
    return error;
  }
  *made = event->id;
  (*made)->event = event;
  return 0;
}

}  // namespace
}  // namespace verbena::rdmacm

using namespace verbena::rdmacm;

extern "C" {

int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** result) {
  return resolve_names(node, service, hints, result);
}

void rdma_freeaddrinfo(rdma_addrinfo* info) { free_answer(info); }

int rdma_create_ep(rdma_cm_id** id, rdma_addrinfo* where, ibv_pd* pd,
                   ibv_qp_init_attr* attributes) {
  if (!id || !where) return answer(EINVAL);
  return answer(create_endpoint(id, *where, pd, attributes));
}

void rdma_destroy_ep(rdma_cm_id* id) {
  destroy_qp(Id::of(id));
  destroy_srq(Id::of(id));
  static_cast<void>(rdma_destroy_id(id));
}

int rdma_get_request(rdma_cm_id* listener, rdma_cm_id** id) {
  if (!listener || !id) return answer(EINVAL);
  return answer(get_request(Id::of(listener), id));
}

}  // extern "C"
