// SPDX-License-Identifier: MIT
// The NIC of this process: one for all open devices, made when the first is opened, never taken
// down (programs call verbs from destructors at exit). A forked child gets a new one with its next
// open; what it inherited is dead.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "base/types.h"
#include "host/fork_guard.h"
#include "memory/region_table.h"
#include "nic/address_handles.h"
#include "nic/device.h"
#include "nic/error.h"
#include "nic/open_contexts.h"
#include "nic/qp_table.h"
#include "nic/xrc_domains.h"

namespace verbena::nic {

class Engine;
class Sharing;

// A random source for many threads.
class SharedRandom final : public RandomSource {
 public:
  std::uint64_t next() override {
    const std::lock_guard guard(lock_);
    return source_.next();
  }

 private:
  Mutex lock_;
  KernelRandom source_;
};

// The access sections of this process: whoever touches registered memory holds a queue pair's lock.
class QpSections final : public memory::AccessSections {
 public:
  explicit QpSections(QpTable& table) : table_(table) {}
  void wait_until_left() override;

 private:
  QpTable& table_;
};

class Nic {
 public:
  // The one of this process.
  static Nic& current();
  // exit() is under way, and takes our threads along: what peers wait for leaves first. Takes
  // nothing down, and no lock: whoever called exit() may hold any.
  static void leave();

  bool in_owner() const { return guard_.in_owner(); }
  const host::ForkGuard& guard() const { return guard_; }
  const Limits& limits() const { return limits_; }
  SharedRandom& random() { return random_; }
  memory::RegionTable& regions() { return regions_; }
  memory::AccessSections& sections() { return sections_; }
  Sharing& sharing() { return *sharing_; }
  AddressHandles& address_handles() { return address_handles_; }
  QpTable& queue_pairs() { return queue_pairs_; }
  XrcDomains& xrc_domains() { return xrc_domains_; }
  OpenContexts& contexts() { return contexts_; }
  PdId new_domain() { return {next_domain_.fetch_add(1, std::memory_order_relaxed)}; }

  // Null before the first queue pair.
  Engine* engine() const { return engine_.load(std::memory_order_acquire); }
  Result<Engine*, Error> start_engine();

  // Counts of objects that have a limit.
  struct Counts {
    std::atomic<std::uint32_t> domains{0};
    std::atomic<std::uint32_t> completion_queues{0};
    std::atomic<std::uint32_t> shared_receive_queues{0};
    std::atomic<std::uint32_t> queue_pairs{0};
    std::atomic<std::uint32_t> device_memory{0};  // bytes
    std::atomic<std::uint32_t> work_queue_tables{0};
    std::atomic<std::uint32_t> counters{0};
  };
  Counts& counts() { return counts_; }
  // The program has an address of a group on the loopback interface.
  std::atomic<bool>& sends_to_groups() { return sends_to_groups_; }

 private:
  Nic();
  ~Nic();
  host::ForkGuard guard_;
  Limits limits_;
  SharedRandom random_;
  QpTable queue_pairs_;
  QpSections sections_{queue_pairs_};
  memory::RegionTable regions_;
  AddressHandles address_handles_;
  XrcDomains xrc_domains_{queue_pairs_};
  OpenContexts contexts_{*this};
  std::unique_ptr<Sharing> sharing_;
  Counts counts_;
  std::atomic<bool> sends_to_groups_{false};
  std::atomic<std::uint32_t> next_domain_{1};
  Mutex start_lock_;
  std::atomic<Engine*> engine_{nullptr};
};

// One of what is limited; false when all are taken. Given back unless kept: there may be no memory
// for the rest.
class Share {
 public:
  Share(std::atomic<std::uint32_t>& count, std::uint32_t limit) : count_(&count) {
    is_mine_ = count.fetch_add(1, std::memory_order_relaxed) < limit;
    if (!is_mine_) count.fetch_sub(1, std::memory_order_relaxed);
  }
  ~Share() {
    if (is_mine_) count_->fetch_sub(1, std::memory_order_relaxed);
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  explicit operator bool() const { return is_mine_; }
  void keep() { is_mine_ = false; }

 private:
  std::atomic<std::uint32_t>* count_;
  bool is_mine_;
};

}  // namespace verbena::nic
