// SPDX-License-Identifier: MIT
// A process on this host that we are linked to: what both sides showed each other in the greeting.
// Immutable, so any thread may use it.
//
// Who owns it: ControlEvents::peer_up gives it away. Threads ring the peer's doorbell at any time,
// also after the peer died, so only their owner knows when the mapping may go. Destroying it needs
// no descriptor and is right on any thread, before or after peer_down.
#pragma once

#include <sys/types.h>

#include <utility>

#include "host/doorbell.h"
#include "host/memory_file.h"
#include "host/process_page.h"
#include "host/shared_memory.h"

namespace verbena::host {

using PeerId = ProcessId;

class Peer {
 public:
  Peer(PeerId id, const MemoryOwner& owner, bool memory_readable, SharedMemory page)
      : id_(id), owner_(owner), memory_readable_(memory_readable), page_(std::move(page)) {}
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  PeerId id() const { return id_; }
  // As we see it; 0 where the peer is in a pid namespace that we cannot see into.
  pid_t pid() const { return owner_.pid; }
  const MemoryOwner& memory_owner() const { return owner_; }
  // process_vm_readv and process_vm_writev on pid() reach this very process (tried in the
  // greeting).
  bool memory_readable() const { return memory_readable_; }
  // Shared with the peer and everybody linked to it.
  ProcessPage& page() const { return page_.at<ProcessPage>(0); }
  Doorbell doorbell() const { return Doorbell(page()); }

 private:
  const PeerId id_;
  const MemoryOwner owner_;
  const bool memory_readable_;
  const SharedMemory page_;
};

}  // namespace verbena::host
