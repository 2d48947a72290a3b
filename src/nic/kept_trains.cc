// SPDX-License-Identifier: MIT
#include "nic/kept_trains.h"

#include "host/raw_memory.h"

namespace verbena::nic {

std::unique_ptr<KeptTrains> KeptTrains::make(Budget& budget) {
  if (!budget.take()) return nullptr;
  void* const memory =
      host::raw_map(kBerths * kBerthBytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (memory == MAP_FAILED) {
    budget.give_back();
    return nullptr;
  }
  // A child has no use for it, and without it nothing has to be copied for one.
  host::raw_advise(memory, kBerths * kBerthBytes, MADV_DONTFORK);
  return std::unique_ptr<KeptTrains>(new KeptTrains(budget, static_cast<std::byte*>(memory)));
}

KeptTrains::~KeptTrains() {
  host::raw_unmap(memory_, kBerths * kBerthBytes);
  budget_.give_back();
}

void KeptTrains::free_first(std::uint64_t repeated) {
  if (of(first_).repeated != repeated) {
    const std::span<std::byte> berth = berth_at(first_);
    is_spent_ |= !host::raw_advise(berth.data(), berth.size(), MADV_DONTNEED);
  }
  first_ = (first_ + 1) % kBerths;
  --used_;
}

}  // namespace verbena::nic
