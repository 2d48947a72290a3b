// SPDX-License-Identifier: MIT
// Event channels: what waits for the program, and a descriptor that is readable while something
// does. All but taking is under the manager's lock.
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
  // Null: there is no descriptor.
  static std::unique_ptr<Channel> create(Manager& manager);
  explicit Channel(Manager& owner, int descriptor)
      : rdma_event_channel{descriptor}, manager(owner) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  void push(std::unique_ptr<Event> event);
  // Sleeps as the descriptor does; EAGAIN, EINTR. Without the manager's lock.
  int take(std::unique_ptr<Event>& event);
  bool has_waiting();
  // Gives those that `which` wants, and are not fetched yet.
  std::deque<std::unique_ptr<Event>> withdraw(const std::function<bool(const Event&)>& which);

  Manager& manager;

 private:
  void drop_count();

  Mutex lock_;
  std::deque<std::unique_ptr<Event>> waiting_;
};

}  // namespace verbena::rdmacm
