// SPDX-License-Identifier: MIT
// The way to a peer: what verbs need for it, and what REQ says of it.
#pragma once

#include "rdmacm/border.h"
#include "rdmacm/id.h"
#include "wire/cm.h"

namespace verbena::rdmacm {

// 4.096 us * 2^n: how long a packet may take one way on Ethernet, as the kernel assumes.
inline constexpr std::uint8_t kPacketLifetime = 16;
// And how long a connection manager takes for an answer: 4 s, asked for 15 times more.
inline constexpr std::uint8_t kResponseTimeout = 20;
inline constexpr std::uint8_t kRetriesMax = 15;

// As verbs have it.
ibv_gid gid_of(const Gid& gid);

// With id.port: shows the program which device it is, and its addresses.
void bind_to_port(Id& id);
// With id.port and both addresses: where the id's MADs go.
cm::Route route_of(const Id& id);
ibv_ah_attr path_to_peer(const Id& id);
// What rdma_resolve_route gives.
ibv_sa_path_rec path_record_of(const Id& id);
wire::CmPath cm_path_of(const Id& id);
std::uint8_t active_mtu_of(const Id& id);

}  // namespace verbena::rdmacm
