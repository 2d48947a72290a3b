// SPDX-License-Identifier: MIT
#include "nic/multicast.h"

#include <algorithm>
#include <mutex>

namespace verbena::nic {

Result<bool, Error> MulticastGroups::attach(const MulticastGroup& group, QpNum qp) {
  const std::lock_guard guard(lock_);
  const auto known = groups_.find(group);
  if (known == groups_.end()) {
    if (groups_.size() >= groups_max_) return refuse(Error::kNoRoom);
    groups_[group].push_back(qp);
    return true;
  }
  std::vector<QpNum>& members = known->second;
  if (std::ranges::find(members, qp) != members.end()) return false;
  if (members.size() >= members_max_) return refuse(Error::kNoRoom);
  members.push_back(qp);
  return false;
}

Result<bool, Error> MulticastGroups::detach(const MulticastGroup& group, QpNum qp) {
  const std::lock_guard guard(lock_);
  const auto known = groups_.find(group);
  if (known == groups_.end() || std::erase(known->second, qp) == 0) {
    return refuse(Error::kInvalid);
  }
  if (!known->second.empty()) return false;
  groups_.erase(known);
  return true;
}

bool MulticastGroups::has(QpNum qp) const {
  const std::lock_guard guard(lock_);
  return std::ranges::any_of(groups_, [qp](const auto& each) {
    return std::ranges::find(each.second, qp) != each.second.end();
  });
}

void MulticastGroups::find(const MulticastGroup& group, std::vector<QpNum>& found) const {
  const std::lock_guard guard(lock_);
  const auto known = groups_.find(group);
  found.clear();
  if (known != groups_.end()) found = known->second;
}

}  // namespace verbena::nic
