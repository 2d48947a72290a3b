// SPDX-License-Identifier: MIT
// Raw packets: what the queue pairs of this process share to send and receive Ethernet frames.
// Made when the first of them is created, and never taken down.
//
// Who receives. As with the wire (nic/wire_nic.h): a program that polls drives, and reads the
// sockets itself; a thread of ours waits for frames when nobody polls, and naps while somebody
// polls all the time. Without a flow there is no thread, and nobody looks.
//
// A frame for a queue pair with work queues goes on to one of these by its hash.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/time.h"
#include "base/types.h"
#include "nic/error.h"
#include "nic/nap.h"
#include "nic/raw_port.h"
#include "nic/wake_pipe.h"

namespace verbena::nic {

class Engine;
class Nic;

class RawNic {
 public:
  RawNic(Nic& nic, Engine& engine);
  RawNic(const RawNic&) = delete;
  RawNic& operator=(const RawNic&) = delete;

  // Without a queue pair's lock. The first call for an interface opens its sockets. Errors as those
  // of RawPort::open.
  Result<RawPort*, Error> port_for(const Device& device);

  // Without a queue pair's lock. kNoRoom: there are too many. kPrivilege, as above.
  Result<raw::FlowId, Error> add(RawPort& port, const raw::Flow& flow);
  // When it returns nothing comes by this flow any more.
  void remove(RawPort& port, raw::FlowId id);
  // The flow counts there as well from now on.
  void count(RawPort& port, raw::FlowId id, const raw::CountingPoint& point);

  // From ibv_poll_cq and the NIC thread: takes what has come, if nobody else does just now. True:
  // there was something.
  bool poll();
  // The watcher's, while others poll.
  Nap& watcher_nap() { return nap_; }

 private:
  static void* run_thread(void* raw);
  void watch();
  bool is_polled();
  bool is_warm() const;
  bool has_flows() const { return flows_.load(std::memory_order_relaxed) != 0; }
  void wait_for_frames();
  void mend();
  void look_again();
  std::size_t receive();
  void deliver(std::span<const std::byte> frame, const raw::Key& key, QpNum to);

  Nic& nic_;
  Engine& engine_;
  WakePipe wake_;  // the sockets have changed
  Mutex lock_;     // before queue pairs' locks
  std::vector<std::unique_ptr<RawPort>> ports_;
  bool has_thread_ = false;
  std::atomic<std::uint32_t> flows_{0};
  std::atomic<std::uint32_t> cold_polls_{0};       // since something came, up to a limit
  std::atomic<std::uint32_t> received_polled_{0};  // by who polls; several threads may lose counts
  Nap nap_;
  // The watcher's.
  std::uint32_t polls_seen_ = 0;
  std::uint32_t received_seen_ = 0;
  std::uint32_t waits_seen_ = 0;
};

}  // namespace verbena::nic
