// SPDX-License-Identifier: MIT
// Hosts that have not answered a request for a while: those that are there, and have no RoCE, say
// so (port_probe.h). They are asked a few times, for a program may be about to start there.
//
// Whoever forges ICMP can end a request that was not answered yet, as with TCP, and nothing else:
// only requests are asked about, and what the host itself says goes before.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/contracts.h"
#include "base/time.h"
#include "cm/types.h"
#include "rdmacm/port_probe.h"

namespace verbena::rdmacm {

// Under the manager's lock.
class ClosedHosts {
 public:
  explicit ClosedHosts(std::uint16_t port = wire::kRocePort) : port_(port) {}
  ClosedHosts(const ClosedHosts&) = delete;
  ClosedHosts& operator=(const ClosedHosts&) = delete;

  // A request that was not answered so far, and is sent once more.
  void watch(const GsiMad& question, cm::CommId asker, Instant now);
  // Asks those whose turn it is. Gives requests that will not be answered.
  std::vector<cm::CommId> look(Instant now, const std::function<bool(cm::CommId)>& is_waiting);
  Instant next_deadline() const { return next_; }

 private:
  // Kernels send ICMP seldom (net.ipv4.icmp_ratelimit: six, and one a second from then on).
  static constexpr Duration kPause = Duration::milliseconds(600);
  static constexpr unsigned kAsksMax = 8;
  static constexpr unsigned kRefusalsWanted = 3;
  static constexpr std::size_t kHostsMax = 64;
  struct Host {
    std::unique_ptr<PortProbe> probe;
    std::vector<cm::CommId> askers;
    Instant next;
    unsigned asks = 0;
    unsigned refusals = 0;
  };
  static void ask(Host& host, Instant now);
  static bool goes_on(Host& host, const std::function<bool(cm::CommId)>& is_waiting,
                      std::vector<cm::CommId>& unanswerable);

  const std::uint16_t port_;
  std::map<Gid, Host> hosts_;
  Instant next_ = Instant::never();
};

}  // namespace verbena::rdmacm
