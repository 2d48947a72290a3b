// SPDX-License-Identifier: MIT
// The receives of one queue, of a queue pair or shared: each completes once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

namespace verbena::workload {

struct ReceiveSlot {
  std::uint32_t place = 0;
  std::uint32_t room = 0;
};

class Receives {
 public:
  void posted(std::uint64_t id, ReceiveSlot slot) { waiting_.emplace(id, slot); }
  std::size_t size() const { return waiting_.size(); }
  bool is_waiting(std::uint64_t id) const { return waiting_.contains(id); }
  bool is_oldest(std::uint64_t id) const {
    return !waiting_.empty() && waiting_.begin()->first == id;
  }
  // Nothing: it was not posted, or has completed already.
  std::optional<ReceiveSlot> completed(std::uint64_t id) {
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return std::nullopt;
    const ReceiveSlot slot = found->second;
    waiting_.erase(found);
    return slot;
  }
  const std::map<std::uint64_t, ReceiveSlot>& waiting() const { return waiting_; }

  std::deque<ReceiveSlot> rooms;  // of those that are to be posted

 private:
  std::map<std::uint64_t, ReceiveSlot> waiting_;
};

}  // namespace verbena::workload
