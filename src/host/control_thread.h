// SPDX-License-Identifier: MIT
// What the control thread does: waits for its mailbox, its slots and its links, and serves them.
// All of it lives on that thread's stack, with the descriptors: nothing of it is left when the
// thread ends.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/types.h"
#include "host/control.h"
#include "host/descriptor_table.h"
#include "host/interface_watch.h"
#include "host/links.h"
#include "host/mailbox.h"
#include "host/poller.h"
#include "host/private_fd.h"
#include "host/shared_memory.h"

namespace verbena::host {

class ControlThread {
 public:
  ControlThread(ControlEvents& events, const ControlOptions& options, Mailbox& mailbox);
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  struct Self {
    ProcessId id;
    const std::uint64_t* nonce = nullptr;
    std::uint64_t slot_seed = 0;  // where to begin to look for free slots
  };
  struct Opened {
    SlotNumber slot;
    SharedMemory page;
  };
  // Everything that can fail.
  Result<Opened, ControlError> open(const Self& self);
  // Until quit().
  void run();
  void quit() { is_quitting_ = true; }

  Links& links() { return links_; }
  Result<SlotNumber, ControlError> take_slot();
  Result<SharedMemory::Created, MemoryError> make_memory(std::size_t size, Backing backing,
                                                         Writers writers) {
    return table_.borrow([&] { return SharedMemory::create(size, backing, writers); });
  }
  DescriptorTable& descriptors() { return table_; }
  void call_at(Instant when) { tick_at_ = when; }

 private:
  struct Listener {
    SlotNumber slot;
    PrivateFd socket;
  };

  Result<void, ControlError> open_mailbox();
  Result<SharedMemory, ControlError> make_page(const Self& self);
  Result<void, ControlError> listen_on(SlotNumber slot);
  void turn();
  void read_signals();
  void accept_from(Listener& listener);
  void update_listeners();
  void follow_user();
  void run_tasks(std::vector<Mailbox::Task> tasks);

  ControlEvents& events_;
  const ControlOptions& options_;
  Mailbox& mailbox_;
  DescriptorTable table_;
  Poller poller_;
  Links links_;
  InterfaceWatch interfaces_;
  PrivateFd signals_;
  PrivateFd page_fd_;
  PrivateFd pidfd_;
  std::vector<Listener> listeners_;
  std::uint64_t slot_seed_ = 0;
  uid_t user_ = 0;  // whom our listeners show
  Instant now_;
  Instant tick_at_ = Instant::never();
  Instant no_accept_before_;
  bool is_listening_ = true;
  bool is_quitting_ = false;
  bool has_failed_ = false;
};

}  // namespace verbena::host
