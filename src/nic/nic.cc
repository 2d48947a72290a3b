// SPDX-License-Identifier: MIT
#include "nic/nic.h"

#include "base/fence.h"
#include "nic/engine.h"
#include "nic/nic_qp.h"
#include "nic/sharing.h"
#include "nic/wire_nic.h"

namespace verbena::nic {
namespace {

constinit std::atomic<Nic*> nic_of_process{nullptr};

}  // namespace

// Queue pairs that come later find the mark; those that are removed meanwhile stay until the
// reading section ends.
void QpSections::wait_until_left() {
  full_fence();
  const QpTable::Reading reading(table_);
  table_.each([](Qp& qp) { memory::wait_until_over(SectionLock::Watch(qp.pair.lock())); });
}

Nic::Nic()
    : regions_(limits_.regions, random_, sections_),
      address_handles_(limits_.address_handles),
      sharing_(std::make_unique<Sharing>(*this)) {}

Nic::~Nic() = default;

Nic& Nic::current() {
  Nic* nic = nic_of_process.load(std::memory_order_acquire);
  while (!nic || !nic->in_owner()) {
    // No lock: in a forked child it might be held by a thread that is not there.
    auto* fresh = new Nic;
    if (nic_of_process.compare_exchange_strong(nic, fresh, std::memory_order_acq_rel)) {
      return *fresh;
    }
    delete fresh;
  }
  return *nic;
}

void Nic::leave() {
  Nic* const nic = nic_of_process.load(std::memory_order_acquire);
  if (!nic || !nic->in_owner()) return;
  Engine* const engine = nic->engine();
  WireNic* const wire = engine ? engine->wire() : nullptr;
  if (wire) wire->leave();
}

Result<Engine*, Error> Nic::start_engine() {
  const std::lock_guard guard(start_lock_);
  if (Engine* engine = engine_.load(std::memory_order_relaxed)) return engine;
  auto started = Engine::start(*this);
  if (!started) return refuse(started.error());
  engine_.store(*started, std::memory_order_release);
  return *started;
}

}  // namespace verbena::nic
