// SPDX-License-Identifier: MIT
#include "nic/raw_nic.h"

#include <poll.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/log.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/service_thread.h"
#include "nic/watch_pace.h"

namespace verbena::nic {
namespace {

constexpr Duration kNapMin = Duration::microseconds(200);
constexpr Duration kNapMax = Duration::milliseconds(2);

}  // namespace

RawNic::RawNic(Nic& nic, Engine& engine) : nic_(nic), engine_(engine) {}

// Sockets that are there already give no right to who has lost it.
Result<RawPort*, Error> RawNic::port_for(const Device& device) {
  if (!port::may_use_packet_sockets()) return refuse(Error::kPrivilege);
  const std::lock_guard guard(lock_);
  const auto known = std::ranges::find(ports_, device.interface_index,
                                       [](const auto& port) { return port->interface(); });
  if (known != ports_.end()) return known->get();
  auto port = RawPort::open(device);
  if (!port) return refuse(port.error());
  ports_.push_back(std::move(*port));
  return ports_.back().get();
}

Result<raw::FlowId, Error> RawNic::add(RawPort& port, const raw::Flow& flow) {
  if (!port::may_use_packet_sockets()) return refuse(Error::kPrivilege);
  const std::lock_guard guard(lock_);
  if (!has_thread_) {
    if (!wake_.is_open() && !wake_.open()) return refuse(Error::kNoDescriptors);
    if (!start_service_thread("verbena-raw", run_thread, this)) return refuse(Error::kNoRoom);
    has_thread_ = true;
  }
  const auto id = port.add(flow);
  if (!id) return id;
  flows_.fetch_add(1, std::memory_order_relaxed);
  cold_polls_.store(0, std::memory_order_relaxed);
  look_again();
  return id;
}

void RawNic::remove(RawPort& port, raw::FlowId id) {
  const std::lock_guard guard(lock_);
  port.remove(id);
  flows_.fetch_sub(1, std::memory_order_relaxed);
}

void RawNic::count(RawPort& port, raw::FlowId id, const raw::CountingPoint& point) {
  const std::lock_guard guard(lock_);
  port.count(id, point);
}

// -- receiving ----------------------------------------------------------------------------------

bool RawNic::is_warm() const {
  return has_flows() && cold_polls_.load(std::memory_order_relaxed) < WatchPace::kWarmPolls;
}

bool RawNic::poll() {
  if (!is_warm()) return false;
  const std::unique_lock guard(lock_, std::try_to_lock);
  if (!guard.owns_lock()) return false;
  if (receive() != 0) {
    received_polled_.store(received_polled_.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
    return true;
  }
  const std::uint32_t cold = cold_polls_.load(std::memory_order_relaxed) + 1;
  cold_polls_.store(cold, std::memory_order_relaxed);
  // The watcher may nap on our account.
  if (cold == WatchPace::kWarmPolls) nap_.end_if_napping();
  return false;
}

// With lock_.
std::size_t RawNic::receive() {
  std::size_t count = 0;
  const QpTable::Reading reading(nic_.queue_pairs());
  for (const auto& port : ports_) {
    if (!port->has_flows()) continue;
    count += port->receive(
        [this](std::span<const std::byte> frame, const raw::Key& key, std::span<const QpNum> to) {
          for (const QpNum number : to)
            deliver(frame, key, number);
        });
  }
  if (count != 0) cold_polls_.store(0, std::memory_order_relaxed);
  return count;
}

// Inside a reading section.
void RawNic::deliver(std::span<const std::byte> frame, const raw::Key& key, QpNum to) {
  Qp* qp = nic_.queue_pairs().find(to);
  if (qp && qp->scaling()) qp = nic_.queue_pairs().find(qp->scaling()->queue_for(key));
  if (!qp) return;
  const std::lock_guard guard(qp->pair.lock());
  // What it refuses it has settled; without a receive the frame is lost, as on any NIC.
  static_cast<void>(qp->pair.responder().receive_whole(frame, {}));
}

// -- when nobody polls --------------------------------------------------------------------------

void* RawNic::run_thread(void* raw) {
  static_cast<RawNic*>(raw)->watch();
  return nullptr;
}

void RawNic::watch() {
  Duration nap = kNapMin;
  DescriptorChecks checks;
  for (;;) {
    if (checks.is_due(clock_now())) mend();
    nap_.begin();
    if (is_polled()) {
      const bool is_ended = nap_.sleep(nap);
      nap = std::min(nap * 2, kNapMax);
      if (const std::unique_lock guard(lock_, std::try_to_lock); guard.owns_lock()) receive();
      if (!is_ended) continue;
    }
    nap_.stay_awake();
    nap = kNapMin;
    wait_for_frames();
    const std::lock_guard guard(lock_);
    receive();
  }
}

// Where polls find much they are few. Who asks for events meanwhile is going to sleep.
bool RawNic::is_polled() {
  const std::uint32_t polls = engine_.polls();
  const std::uint32_t moved = polls - std::exchange(polls_seen_, polls);
  const std::uint32_t received = received_polled_.load(std::memory_order_relaxed);
  const bool is_busy = std::exchange(received_seen_, received) != received;
  const std::uint32_t waits = engine_.waits();
  const bool expects_events = std::exchange(waits_seen_, waits) != waits;
  return !expects_events && is_warm() && (is_busy || moved >= WatchPace::kPollsForLease);
}

void RawNic::wait_for_frames() {
  std::vector<pollfd> watched{{wake_.descriptor(), POLLIN, 0}};
  {
    const std::lock_guard guard(lock_);
    for (const auto& port : ports_)
      if (port->has_flows()) watched.push_back({port->receiver(), POLLIN, 0});
  }
  timespec limit{};
  limit.tv_nsec = WatchPace::kSleepUnwoken.count_nanoseconds();
  const bool is_woken = watched[0].fd >= 0;
  if (ppoll(watched.data(), watched.size(), is_woken ? nullptr : &limit, nullptr) <= 0) return;
  if (watched[0].revents != 0) wake_.drain();
  const bool is_closed = std::ranges::any_of(
      watched, [](const pollfd& each) { return (each.revents & POLLNVAL) != 0; });
  if (is_closed) mend();
}

void RawNic::mend() {
  const std::lock_guard guard(lock_);
  for (const auto& port : ports_)
    port->mend();
}

void RawNic::look_again() {
  wake_.wake();
  nap_.end();
}

}  // namespace verbena::nic
