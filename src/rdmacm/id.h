// SPDX-License-Identifier: MIT
// An rdma_cm_id, with what the program does not see of it. Under the manager's lock, but for what
// only the program's own calls change, and the stage: a call that looks before it takes the lock is
// refused by the engine when it was too late.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/contracts.h"
#include "base/mutex.h"
#include "cm/types.h"
#include "rdmacm/address.h"
#include "rdmacm/border.h"
#include "rdmacm/channel.h"
#include "rdmacm/devices.h"

namespace verbena::rdmacm {

enum class Stage : std::uint8_t {
  kIdle,
  kBound,       // to an address, or all
  kAddressing,  // waits until a neighbour answers
  kAddressed,   // knows where to
  kRouted,
  kListening,
  kConnecting,  // REQ or SIDR_REQ sent
  kAnswered,    // REP came
  kRequested,   // REQ or SIDR_REQ came
  kAccepting,   // REP sent
  kConnected,
  kOver,  // rejected, unreachable, disconnected
};

// What the two ends agreed on, as ibv_modify_qp wants it.
struct Agreement {
  std::uint32_t own_qp = 0;
  std::uint32_t own_psn = 0;   // with which the peer begins
  std::uint32_t peer_psn = 0;  // with which we begin
  std::uint32_t peer_qp = 0;
  std::uint8_t path_mtu = IBV_MTU_1024;
  std::uint8_t reads_in = 0;   // responder resources
  std::uint8_t reads_out = 0;  // initiator depth
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry_count = 7;
  std::uint8_t timeout = 0;
};

// A group that was joined.
struct Membership {
  Address address;
  Gid group{};
  void* context = nullptr;
  bool is_send_only = false;
  bool is_attached = false;
};

struct Id : rdma_cm_id {
  Id(Manager& owner, rdma_port_space space, ibv_qp_type type);
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  ~Id();

  static Id& of(rdma_cm_id* id) { return *static_cast<Id*>(id); }
  Channel& events() const { return *static_cast<Channel*>(channel); }
  // What the id was created for decides; not qp_type, which is the program's to read while its
  // events are made by another thread.
  bool is_datagram() const { return made_for == IBV_QPT_UD; }
  // Of a port in the id's port space.
  std::uint64_t service_id(std::uint16_t number) const {
    return (std::uint64_t{ps} << 16) + number;
  }
  // What an address stands for.
  std::uint64_t service_id(const Address& address) const {
    return address.is_ib() ? address.service() : service_id(address.port());
  }
  Address source() const { return Address::from(&route.addr.src_addr).value_or(Address()); }
  Address destination() const { return Address::from(&route.addr.dst_addr).value_or(Address()); }
  void set_source(const Address& address) { address.store(route.addr.src_storage); }
  void set_destination(const Address& address) { address.store(route.addr.dst_storage); }

  Manager& manager;
  const ibv_qp_type made_for;  // and so are the ids of those who ask it for a connection
  std::atomic<Stage> stage{Stage::kIdle};
  bool is_sync = false;  // its calls wait for their events, in a channel of its own
  std::optional<LocalPort> port;
  // Told already (interface_changes.h).
  bool is_device_gone = false;
  bool has_address_left = false;

  // Options.
  std::uint8_t traffic_class = 0;
  bool reuses_address = false;
  std::optional<bool> is_ipv6_only;
  std::optional<std::uint8_t> ack_timeout;

  // What it holds of its port space.
  std::vector<GsiPlace> claims;
  bool has_local_port = false;  // one of this process only (ports.h)

  // As a listener.
  std::vector<cm::ListenerId> listeners;

  // As a connection.
  std::optional<cm::CommId> comm;
  // A request brought it, and the program has not accepted that: it is told nothing of the id.
  bool awaits_accept = false;
  std::uint32_t peer_comm = 0;  // the peer's communication id, once it is known
  cm::Route way;
  Agreement agreement;
  std::uint64_t requested_service = 0;  // of a SIDR_REQ
  std::uint32_t qkey = RDMA_UDP_QKEY;
  ibv_ece local_ece{};
  ibv_ece remote_ece{};
  ibv_sa_path_rec path{};
  std::vector<std::byte> connect_data;  // from rdma_getaddrinfo(3)

  // One thread may join and leave while another fetches that it has joined.
  Mutex groups_lock;
  std::vector<Membership> groups;

  // rdma_create_ep of a listener: what its connections get.
  std::optional<ibv_qp_init_attr> template_attributes;
  ibv_pd* template_domain = nullptr;

  // Completion queues and channels that rdma_create_qp made.
  bool owns_send_cq = false;
  bool owns_recv_cq = false;
  bool owns_srq_cq = false;

  std::atomic<std::uint32_t> delivered{0};
  std::atomic<std::uint32_t> acknowledged{0};
};

}  // namespace verbena::rdmacm
