// SPDX-License-Identifier: MIT
// What an engine has to know about its connection.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "base/types.h"
#include "qp/operation.h"
#include "roce/psn_set.h"
#include "roce/reorder_buffer.h"
#include "roce/wire.h"
#include "wire/packet.h"

namespace verbena::roce {

using wire::Psn;

// How much of one queue pair may be on its way: the share of the peer's receive buffer, and of
// ours for the answers of READs. Whoever knows all queue pairs decides.
struct InFlight {
  std::uint32_t packets = 64;
  std::uint32_t bytes = 192 * 1024;
  // So many packets cost little more than one, where they leave together: a long message waits
  // until there is room for as many, if answers are to come that make it.
  std::uint32_t train = 1;
};
inline constexpr std::uint32_t kInFlightPacketsMax = PsnSet::kSpan / 2;

struct Settings {
  qp::QpType type = qp::QpType::kRc;
  bool is_xrc = false;  // of kRc
  QpNum self{};
  QpNum peer{};  // not for datagrams
  std::uint16_t pkey = wire::kDefaultPkey;
  std::uint32_t path_mtu = 1024;
  Path path{};  // not for datagrams
  std::uint32_t operations_max = 128;
  InFlight in_flight{};
  std::uint8_t reads_in_max = 0;  // READs and atomics of the peer at a time
  std::uint32_t receive_psn = 0;

  // A gap among packets that come counts as a loss after so long, or when `reorder_packets` came
  // behind it and wait. 0 packets: nothing waits, as hardware does.
  std::uint32_t reorder_packets = 0;  // rounded up to a power of two
  Duration reorder_patience{};
  ReorderBudget* reorder_budget = nullptr;  // of the memory in which they wait; null: no limit
  // RC: find out in band whether the peer is one of ours, and then repeat only what is lost, and
  // control congestion by delay (agreement.h). Needs reorder_packets of kAgreedSpan or more.
  // Nothing waits before they agree.
  bool asks_for_agreement = false;
  // Both ends agreed by other means: the same, from the beginning.
  bool selective = false;
  // A CNP no more often than this (A17.9.3).
  Duration cnp_interval = Duration::microseconds(50);
};

constexpr wire::Service service_of(const Settings& settings) {
  return settings.is_xrc ? wire::Service::kXrc : wire::Service::kRc;
}

}  // namespace verbena::roce
