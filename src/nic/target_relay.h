// SPDX-License-Identifier: MIT
// Where an XRC target's requests go that name shared receive queues of other processes: to each
// such process a conduit, at whose other end that process has a hidden target of the same domain
// (nic/xrc.h). The links make it when the first request comes (links_relay.cc).
//
//   asked for ─► open ─► over     the other process left, or closed its domain: what it has not
//       └─► nowhere               answered is refused, and the next request asks again
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/types.h"
#include "local/ring_relay.h"
#include "nic/links.h"
#include "qp/relay.h"

namespace verbena::nic {

// With the lock of the target's queue pair.
class TargetRelay final : public qp::Relay {
 public:
  TargetRelay(Links& links, QpNum target) : links_(links), target_(target) {}

  Sent send(const qp::RelayPiece& piece) override;
  bool knows_way_to(std::uint32_t shared_queue) const override;
  std::uint32_t outstanding() const override;
  std::optional<qp::RelayReply> reply() override;
  void take_reply() override;

  // -- for the links
  // It was asked there.
  void asked(SlotNumber slot, const LinkRef& link);
  // What was offered; none, where it cannot be mapped. `bell`: the hidden target's place in that
  // process's doorbell. False: it was not asked.
  bool open(const LinkRef& link, local::Conduit conduit, std::uint32_t bell);
  void has_nobody(SlotNumber slot);
  // True: one of them.
  bool lost(const Link& link);

  // Rings the bells of those who were sent something; after every turn.
  void ring_if_needed();
  // The target takes no part any more.
  void close();

 private:
  struct Way {
    enum class State : std::uint8_t { kAskedFor, kOpen, kNowhere };
    State state = State::kAskedFor;
    std::optional<local::RingRelay> ring;
    LinkRef link;
    std::uint32_t bell = 0;
    bool is_lost = false;

    bool is_over() const { return is_lost || ring->is_over(); }
    void ring_bell();
    void leave();
  };
  Way* way_to(const qp::RelayPiece& piece);

  Links& links_;
  const QpNum target_;
  std::map<SlotNumber, Way> ways_;
  Way* busy_ = nullptr;              // it has not answered everything
  bool is_ending_ = false;           // said so of it, whatever it writes now
  std::uint32_t message_queue_ = 0;  // of the message in progress
};

}  // namespace verbena::nic
