// SPDX-License-Identifier: MIT
// One-sided operations executed by the initiator: straight into or out of the memory of a process
// on this host, whose CPU takes no part; it may even be stopped.
//
// Two ways, chosen for each operation:
//   mapped     the pages lie in a file of the peer that we map: the operation is a copy
//   reachable  process_vm_writev and readv: any memory of the peer, where the system allows it
// What neither can do, and everything that is to be refused, is left to the ring, where the peer's
// own responder judges it: so each error goes to the side that it belongs to.
//
// All calls are in an access section: with the queue pair's lock held (published.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "local/conduit.h"
#include "local/peer_memory.h"
#include "qp/carrier.h"
#include "qp/operation.h"
#include "qp/send_window.h"

namespace verbena::local {

class Direct {
 public:
  // `peer` lives as long as this. `reach` is of the conduit that we took, and `connection` its id.
  void attach(PeerMemory& peer, QpNum self, QpNum other, ConduitHeader::Reach* reach,
              std::uint64_t connection);
  bool is_attached() const { return peer_ != nullptr; }
  void detach() { peer_ = nullptr; }

  enum class Outcome : std::uint8_t {
    kDone,    // as a whole, and it still holds: it may be reported
    kPartly,  // the budget is spent: the same operation again
    kEnded,   // it failed here, as the window knows already
    kCannot,  // nothing of it counts: the ring shall do it
  };
  // Executes the operation that the window offers. Not before everything earlier is done.
  Outcome execute(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget);

 private:
  struct Target {
    std::uint64_t identity = 0;
    std::byte* mapped = nullptr;  // of the operation's first byte; null: reachable only
    std::uint64_t address = 0;    // of the operation's first byte in the peer
  };
  std::optional<std::uint64_t> grant_for(std::uint32_t access) const;
  std::optional<Target> find(const qp::Operation& op, std::uint32_t access) const;
  bool may_still(const qp::Operation& op, const Target& target, std::uint64_t grant) const;
  Outcome copy(qp::SendWindow& window, const qp::Operation& op, std::byte* mapped,
               std::size_t length);
  static Outcome atomic(qp::SendWindow& window, const qp::Operation& op, std::byte* mapped);
  bool reach(qp::SendWindow& window, const qp::Operation& op, std::uint64_t address,
             std::size_t length);

  PeerMemory* peer_ = nullptr;
  const PublishedQp* granted_ = nullptr;
  QpNum self_;
  QpNum other_;
  ConduitHeader::Reach* reach_ = nullptr;
  std::uint64_t connection_ = 0;
  qp::OpIndex doing_;
  std::uint64_t done_ = 0;  // bytes of it
};

}  // namespace verbena::local
