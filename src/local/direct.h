// SPDX-License-Identifier: MIT
// One-sided operations executed by the initiator: straight into or out of the memory of a process
// on this host, whose CPU takes no part; it may even be stopped.
//
// Two ways, chosen for each operation:
//   mapped     the pages lie in a file of the peer that we map: the operation is a copy
//   reachable  process_vm_writev and readv: any memory of the peer, where the system allows it; for
//              small WRITEs its memory as a file (small_reach.h)
// What neither can do, and everything that is to be refused, is left to the ring, where the peer's
// own responder judges it: so each error goes to the side that it belongs to.
//
// All calls are in an access section: with the queue pair's lock held (published.h).
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "local/conduit.h"
#include "local/peer_memory.h"
#include "local/small_reach.h"
#include "qp/carrier.h"
#include "qp/operation.h"
#include "qp/send_window.h"

namespace verbena::local {

class Direct {
 public:
  // `peer` and `header` live as long as this is used; that is of the conduit that we took, and
  // `connection` its id.
  void attach(PeerMemory& peer, QpNum self, QpNum other, ConduitHeader& header,
              std::uint64_t connection);
  bool is_attached() const { return peer_ != nullptr; }
  // The peer lets us execute something by ourselves.
  bool is_granted() const { return grant_for(0).has_value(); }

  enum class Outcome : std::uint8_t {
    kDone,    // as a whole, and it still holds: it may be reported
    kPartly,  // the budget is spent: the same operation again
    kEnded,   // it failed here, as the window knows already
    kCannot,  // nothing of it counts: the ring shall do it
  };
  // Executes the operation that the window offers. Not before everything earlier is done.
  Outcome execute(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget);

  // It would be a copy into or out of memory that we map.
  bool is_mapped(const qp::Operation& op) const;

  // The same for a small WRITE or READ in pieces that a caller puts together without a work request
  // in the queue: where its bytes go, or lie, or null when execute() must find out; then, after the
  // copy, whether it counts.
  std::byte* target_of_write(MemoryKey key, std::uint64_t address, std::uint64_t length) {
    return place_of(memory::kRemoteWrite, key, address, length);
  }
  const std::byte* source_of_read(MemoryKey key, std::uint64_t address, std::uint64_t length) {
    return place_of(memory::kRemoteRead, key, address, length);
  }
  bool copy_counts() {
    const bool counts = last_.still_holds();
    mapped_ += counts;
    return counts;
  }
  // The same where there is no such place, since we do not map the memory: the system copies, from
  // or to `ours`. False when execute() must find out.
  bool write_reachable(MemoryKey key, std::uint64_t address, const std::byte* ours,
                       std::uint64_t length) {
    return reach_at_once(memory::kRemoteWrite, key, address, const_cast<std::byte*>(ours), length);
  }
  bool read_reachable(MemoryKey key, std::uint64_t address, std::byte* ours, std::uint64_t length) {
    return reach_at_once(memory::kRemoteRead, key, address, ours, length);
  }

  // Operations executed so far.
  std::uint64_t mapped() const { return mapped_; }
  std::uint64_t reached() const { return reached_; }

 private:
  std::byte* place_of(std::uint32_t access, MemoryKey key, std::uint64_t address,
                      std::uint64_t length) {
    if (!is_remembered(access, key) && !remember(key, access)) [[unlikely]]
      return nullptr;
    return last_.base && last_.holds(address, length) ? last_.base + (address - last_.first)
                                                      : nullptr;
  }
  bool is_remembered(std::uint32_t access, MemoryKey key) const {
    return (last_.access & access) != 0 && last_.key == key && last_.still_holds() &&
           last_.drops == peer_->drops();
  }
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
  bool reach(qp::SendWindow& window, const qp::Operation& op, const Target& target,
             std::uint64_t grant, std::size_t length);
  bool reach_at_once(std::uint32_t access, MemoryKey key, std::uint64_t address, std::byte* ours,
                     std::uint64_t length);
  void show_reach(std::uint64_t address, std::uint64_t length);
  bool call(bool is_write, std::span<const iovec> ours, std::uint64_t address,
            std::uint64_t length);

  // What the WRITE or READ before was about; good as long as identity and grant are the same, and
  // no mapping was dropped. Without access: nothing.
  struct LastUse {
    MemoryKey key;
    std::uint32_t access = 0;  // what may be done there
    std::uint64_t identity = 0;
    std::uint64_t grant = 0;
    std::uint64_t drops = 0;
    const std::atomic<std::uint64_t>* identity_place = nullptr;
    const std::atomic<std::uint64_t>* grant_place = nullptr;
    std::uint64_t first = 0;    // the remote address of the first byte
    std::uint64_t size = 0;     // of the mapped part, or else of the region
    std::byte* base = nullptr;  // where we map it
    std::uint64_t address = 0;  // of it in the peer, where nothing of the region can be mapped
    [[gnu::always_inline]] bool still_holds() const {
      return identity_place->load(std::memory_order_acquire) == identity &&
             grant_place->load(std::memory_order_acquire) == grant;
    }
    bool holds(std::uint64_t from, std::uint64_t length) const {
      return from - first <= size && length <= size - (from - first);
    }
  };
  bool remember(MemoryKey key, std::uint32_t access);

  PeerMemory* peer_ = nullptr;
  LastUse last_;
  QpNum self_;
  QpNum other_;
  ConduitHeader::Reach* reach_ = nullptr;
  SmallReach small_;
  std::uint64_t connection_ = 0;
  qp::OpIndex doing_;
  std::uint64_t doing_in_ = 0;  // the region's identity
  std::uint64_t done_ = 0;      // bytes of it
  std::uint64_t mapped_ = 0;
  std::uint64_t reached_ = 0;
};

}  // namespace verbena::local
