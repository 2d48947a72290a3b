// SPDX-License-Identifier: MIT
// Which queue pairs of this process are attached to which multicast groups (IBTA vol 1, 10.5). A
// group is an address on an interface: the same address elsewhere is another group.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/types.h"
#include "nic/error.h"

namespace verbena::nic {

class Nic;

struct MulticastGroup {
  Gid gid;
  std::uint32_t interface = 0;
  friend auto operator<=>(const MulticastGroup&, const MulticastGroup&) = default;
};

// The program is about to send to groups of the loopback interface: without any queue pair's lock.
void send_to_groups(Nic& nic);

class MulticastGroups {
 public:
  MulticastGroups(std::size_t groups_max, std::size_t members_max)
      : groups_max_(groups_max), members_max_(members_max) {}

  // True: nobody was in the group before. Who is attached already stays so, and once.
  Result<bool, Error> attach(const MulticastGroup& group, QpNum qp);
  // True: nobody is in it any more.
  Result<bool, Error> detach(const MulticastGroup& group, QpNum qp);
  bool has(QpNum qp) const;
  // Replaces what is in `found`.
  void find(const MulticastGroup& group, std::vector<QpNum>& found) const;

 private:
  const std::size_t groups_max_;
  const std::size_t members_max_;  // of one group
  mutable Mutex lock_;
  std::map<MulticastGroup, std::vector<QpNum>> groups_;
};

}  // namespace verbena::nic
