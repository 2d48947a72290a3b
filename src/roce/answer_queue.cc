// SPDX-License-Identifier: MIT
#include "roce/answer_queue.h"

#include <algorithm>
#include <utility>

namespace verbena::roce {

AnswerQueue::AnswerQueue(std::uint32_t most) : most_(most) { owed_.reserve(most + kAgainMost); }

bool AnswerQueue::add(const OwedAnswer& answer) {
  const auto first_times = std::count_if(owed_.begin(), owed_.end(),
                                         [](const OwedAnswer& owed) { return !owed.is_again; });
  if (std::cmp_greater_equal(first_times, most_)) return false;
  owed_.push_back(answer);
  return true;
}

void AnswerQueue::add_again(const OwedAnswer& answer) {
  auto place = owed_.begin();
  while (place != owed_.end() && place->end() - answer.psn <= 0)
    ++place;
  if (place != owed_.end() && place->psn - answer.psn <= 0 && place->end() == answer.end()) {
    const bool is_again = answer.is_again && place->is_again;
    *place = answer;
    place->is_again = is_again;
    return;
  }
  if (owed_.size() < most_ + kAgainMost) owed_.insert(place, answer);
}

const std::uint64_t* AtomicReplay::find(wire::Psn psn) const {
  for (std::uint32_t back = 1; back <= results_.size(); ++back) {
    const Result& result = results_[(next_ - back) % results_.size()];
    if (result.is_used && result.psn == psn) return &result.value;
  }
  return nullptr;
}

bool ReadHistory::has(const OwedAnswer& again, std::uint32_t path_mtu) const {
  return std::any_of(reads_.begin(), reads_.end(), [&](const OwedAnswer& read) {
    const std::int32_t skipped = again.psn - read.psn;
    if (skipped < 0 || skipped + std::int64_t{again.packets} > read.packets) return false;
    const std::uint64_t offset = std::uint64_t{path_mtu} * static_cast<std::uint32_t>(skipped);
    return again.key == read.key && again.shared_queue == read.shared_queue &&
           again.address == read.address + offset && again.length <= read.length - offset;
  });
}

}  // namespace verbena::roce
