// SPDX-License-Identifier: MIT
// All connections, found by our id, by the peer's id and by the peer's queue pair.
//
// Their memory comes in blocks that are kept, so that pointers stay good and a process that has had
// its peak never grows again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"
#include "cm/connection.h"
#include "cm/index.h"

namespace verbena::cm {

class Connections {
 public:
  Connections(SlotNumber slot, std::uint32_t max, std::uint32_t time_wait_max,
              RandomSource& random);

  // With an id that nobody has; null when there are too many (those in time wait do not count).
  Connection* make();
  void free(Connection& connection);

  Connection* by_id(CommId id);
  // A passive connection by who asked for it. SIDR has ids of its own.
  Connection* by_remote(const Gid& remote, std::uint32_t remote_id, Role role);
  Connection* by_qp(const Gid& remote, QpNum qp);
  void list_by_remote(Connection& connection);
  void unlist_by_remote(Connection& connection);
  void list_by_qp(Connection& connection);
  void unlist_by_qp(Connection& connection);

  // The oldest one in time wait when there are more of them than may be.
  Connection* too_many();
  void enter_time_wait(Connection& connection);
  void leave_time_wait(Connection& connection);

  Connection& at(std::uint32_t number) { return blocks_[number / kBlock][number % kBlock]; }
  std::size_t size() const { return count_; }
  std::size_t memory_bytes() const;

 private:
  static constexpr std::uint32_t kBlock = 128;

  std::uint32_t hash(const Gid& gid, std::uint64_t number) const;
  std::uint32_t hash_of_id(CommId id) const;
  CommId draw_id();

  SlotNumber slot_;
  std::uint32_t max_;
  std::uint32_t time_wait_max_;
  RandomSource& random_;
  std::uint64_t secret_;  // nobody outside can make ids that collide

  std::vector<std::unique_ptr<Connection[]>> blocks_;
  std::vector<std::uint32_t> free_;
  std::size_t count_ = 0;
  std::size_t time_waits_ = 0;
  std::uint32_t oldest_ = Connection::kNowhere;
  std::uint32_t newest_ = Connection::kNowhere;
  Index by_id_;
  Index by_remote_;
  Index by_qp_;
};

}  // namespace verbena::cm
