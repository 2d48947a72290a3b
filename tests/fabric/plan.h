// SPDX-License-Identifier: MIT
// What a run of the fabric is like: everything that its seed decides in advance, as numbers with
// names, so that a run can be repeated with some of them changed, and a failing one made smaller.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace verbena::fabric {

inline constexpr std::uint32_t kOneIn = 100'000;  // chances count packets of so many

// How two ends come to selective repeat (roce/agreement.h).
enum Agreeing : std::uint32_t { kNobodyAsks, kOneAsks, kBothAsk, kAgreedBefore };
// The service of a connection.
enum Service : std::uint32_t { kReliable, kUnreliable, kDatagrams, kExtended, kAnyService };

struct Plan {
  std::uint32_t nodes = 2;
  std::uint32_t connections = 1;
  std::uint32_t operations = 1;  // of each end of a connection
  std::uint32_t size_max = 64;   // bytes
  std::uint32_t service = kReliable;
  std::uint32_t lives = 1;        // a connection that failed is made again
  std::uint32_t managed = 0;      // connections are made and ended by rdma_cm's protocol
  std::uint32_t thinking_us = 0;  // how long a program takes to answer a request
  std::uint32_t rejects = 0;      // or rejects it

  std::uint32_t path_mtu = 256;
  std::uint32_t ipv6 = 0;
  std::uint32_t partition_key = 0x7FFF;  // without the bit of membership
  std::uint32_t packets_in_flight = 64;
  std::uint32_t kib_in_flight = 64;
  std::uint32_t reads_max = 4;
  std::uint32_t reorder_packets = 0;
  std::uint32_t reorder_patience_us = 0;
  std::uint32_t agreeing = kNobodyAsks;
  std::uint32_t psn_wraps = 0;
  std::uint32_t unsignaled = 0;
  std::uint32_t fences = 0;
  std::uint32_t shared_receives = 0;
  std::uint32_t retry_count = 7;
  std::uint32_t rnr_retry = 7;
  std::uint32_t dcqcn = 0;

  std::uint32_t megabits = 25'000;
  std::uint32_t delay_ns = 2'000;
  std::uint32_t queue_kib = 1024;  // of a port of the switch
  std::uint32_t loss = 0;          // chances
  std::uint32_t duplicate = 0;
  std::uint32_t reorder = 0;
  std::uint32_t reorder_us = 5;
  std::uint32_t corrupt = 0;
  std::uint32_t truncate = 0;
  std::uint32_t mark = 0;  // ECN

  std::uint32_t partition_us = 0;    // one node is cut off for so long
  std::uint32_t pause_us = 0;        // one does nothing for so long
  std::uint32_t crashes = 0;         // one is gone
  std::uint32_t restarts = 0;        // and comes back
  std::uint32_t jump_us = 0;         // everybody's clock leaps
  std::uint32_t receiver_storm = 0;  // receives are posted late
  std::uint32_t bad_requests = 0;
  std::uint32_t revokes = 0;               // a region is deregistered under traffic
  std::uint32_t completions = 8192;        // room of the last node's completion queues
  std::uint32_t scarce_memory = 0;         // an engine that asks for memory may get none
  std::uint32_t connection_room = 65'536;  // of a connection manager
  std::uint32_t stops = 0;                 // a program moves its queue pair to ERR
};

constexpr std::uint16_t pkey_of(const Plan& plan) {
  return static_cast<std::uint16_t>(0x8000 | plan.partition_key);
}

// The plain value is the one that makes the least trouble.
struct Knob {
  std::string_view name;
  std::uint32_t Plan::* member;
  std::uint32_t plain;
  bool is_amount = true;  // half of it is less trouble
};
std::span<const Knob> knobs();

Plan plan_of(std::uint64_t seed);
// Whether there can be such a run.
bool is_valid(const Plan& plan);
// "loss=1200 nodes=4": what is not plain.
std::string describe(const Plan& plan);
// The same words; false for one that means nothing.
bool change(std::string_view words, Plan& plan);

}  // namespace verbena::fabric
