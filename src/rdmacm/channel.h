// SPDX-License-Identifier: MIT
// Event channels: what waits for the program, and a descriptor that is readable while something
// does. All but taking is under the manager's lock.
//
// Programs have a thread that asks for events over and over, and end by destroying its channel from
// another, without waiting for that thread. So the memory of a channel is never given back, only
// used for another channel; and who asks a channel that is gone sleeps for good, as one does that
// asked just before: which of the two came first is not the program's to see.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "rdmacm/border.h"

namespace verbena::rdmacm {

class Manager;
struct Id;

// An event as the program gets it, with what its pointers show. `counted`: whose destruction waits
// until it is acknowledged.
struct Event : rdma_cm_event {
  Event(Id& owner, rdma_cm_event_type type, int status);
  void set_private_data(std::span<const std::byte> bytes, bool is_datagram);

  Id* counted;
  // The peer answered, and the connection is completed by whoever fetches this.
  bool completes = false;
  std::array<std::byte, 256> data{};
};

struct Channel : rdma_event_channel {
  struct Retire {
    void operator()(Channel* channel) const { channel->retire(); }
  };
  using Owned = std::unique_ptr<Channel, Retire>;

  // Null: there is no descriptor.
  static Owned create(Manager& manager);
  explicit Channel(Manager& owner) : rdma_event_channel{-1}, manager(owner) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() = default;
  // The program has destroyed it. Without the manager's lock.
  void retire();

  void push(std::unique_ptr<Event> event);
  // Sleeps as the descriptor does; EAGAIN, EINTR. EBADF: it is gone, and did not sleep. Without the
  // manager's lock.
  int take(std::unique_ptr<Event>& event);
  bool has_waiting();
  // Gives those that `which` wants, and are not fetched yet.
  std::deque<std::unique_ptr<Event>> withdraw(const std::function<bool(const Event&)>& which);

  Manager& manager;

 private:
  void begin(int descriptor);
  bool enter();
  void leave();
  void leave_cancelled();
  void end();
  int take_nothing();
  int next(std::unique_ptr<Event>& event);

  Mutex lock_;
  std::deque<std::unique_ptr<Event>> waiting_;
  unsigned takers_ = 0;  // threads in take(); the descriptor is theirs too
  bool is_gone_ = false;
  bool does_sleep_ = true;
};

}  // namespace verbena::rdmacm
