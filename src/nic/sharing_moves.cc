// SPDX-License-Identifier: MIT
// Pages on their way between the program's private memory and a file: who would touch them
// meanwhile is kept out. Without the heap: see make_private().
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/fence.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/sharing.h"

namespace verbena::nic {
Sharing::Places::iterator Sharing::place_of(const Record& record) {
  const auto [begin, end] = places_.equal_range(record.address);
  return std::find_if(begin, end, [&](const auto& each) { return each.second == &record; });
}

template <class Each>
void Sharing::each_with(const Bytes& bytes, const Each& each) {
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.begin);
  const auto from = reinterpret_cast<const std::byte*>(first - std::min(first, longest_));
  for (auto at = places_.lower_bound(from); at != places_.end() && at->first < bytes.end; ++at) {
    Record& record = *at->second;
    if (bytes.begin < record.address + record.length) each(record);
  }
}

bool Sharing::moving(const std::byte* begin, std::size_t length, bool is_held) {
  bool are_some_used = false;
  bool were_some_shown = false;
  {
    const std::lock_guard guard(lock_);
    moving_ = {.begin = begin, .end = begin + length};
    are_some_used = whole_memories_ + changing_ != 0;
    each_with(moving_, [&](Record& record) {
      // Nobody knows the key of the one that is being registered.
      if (record.placing == Record::Placing::kNo) are_some_used = true;
      if (!record.is_shown) return;
      published_.hide(record.key);
      record.is_shown = false;
      record.is_moving = were_some_shown = true;
    });
  }
  const bool is_known =
      !were_some_shown || wait_for_everybody(Locking::kSoonOrNot) != Left::kUnknown;
  if (is_known && (is_held || !are_some_used || hold_own_sections())) return true;
  moved(begin, length);
  return false;
}

void Sharing::moved(const std::byte* begin, std::size_t length) {
  let_own_sections_go();
  const std::lock_guard guard(lock_);
  const Bytes bytes = std::exchange(moving_, {});
  each_with(bytes, [&](Record& record) {
    const auto& adopted = record.adopted;
    if (adopted && adopted->begin < begin + length && begin < adopted->begin + adopted->length) {
      record.is_mapped = false;
    }
    if (std::exchange(record.is_moving, false)) show(record);
  });
}

// Our own threads touch memory with a queue pair's lock held. False: some do not let go of theirs.
bool Sharing::hold_own_sections() {
  const Instant begin = clock_now();
  frozen_.emplace(nic_.queue_pairs());
  while (!try_own_sections()) {
    let_own_sections_go();
    if (clock_now() - begin > kThreadPatience) return false;
    sched_yield();
    frozen_.emplace(nic_.queue_pairs());
  }
  return true;
}

// Whoever has one of them and waits for another one, which is ours by now, gets it when we try no
// longer.
bool Sharing::try_own_sections() {
  constexpr int kSpins = 1000;
  bool all = true;
  nic_.queue_pairs().each([&](Qp& qp) {
    bool is_ours = false;
    for (int i = 0; all && !is_ours && i < kSpins; ++i) {
      is_ours = qp.pair.lock().try_lock();
      if (!is_ours) spin_pause();
    }
    if (is_ours) qp.next_held = std::exchange(held_, &qp);
    all = is_ours;
  });
  return all;
}

void Sharing::let_own_sections_go() {
  while (Qp* const qp = held_) {
    held_ = std::exchange(qp->next_held, nullptr);
    qp->pair.lock().unlock();
  }
  frozen_.reset();
}

}  // namespace verbena::nic
