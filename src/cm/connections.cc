// SPDX-License-Identifier: MIT
#include "cm/connections.h"

#include <cstring>

#include "base/assert.h"

namespace verbena::cm {
namespace {

constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
  value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
  return value ^ value >> 32;
}

}  // namespace

Connections::Connections(SlotNumber slot, std::uint32_t max, std::uint32_t time_wait_max,
                         RandomSource& random)
    : slot_(slot),
      max_(max),
      time_wait_max_(time_wait_max),
      random_(random),
      secret_(random.next()) {}

std::uint32_t Connections::hash(const Gid& gid, std::uint64_t number) const {
  std::uint64_t halves[2];
  std::memcpy(halves, gid.bytes, sizeof halves);
  return static_cast<std::uint32_t>(mix(mix(mix(secret_ ^ halves[0]) ^ halves[1]) ^ number));
}

std::uint32_t Connections::hash_of_id(CommId id) const {
  return static_cast<std::uint32_t>(mix(secret_ ^ id.value));
}

// At most one id in 32 is in use (types.h): a few draws are enough.
CommId Connections::draw_id() {
  for (;;) {
    const CommId id = CommId::of(slot_, random_.next() >> 32);
    if (id.value != 0 && by_id(id) == nullptr) return id;
  }
}

Connection* Connections::make() {
  if (count_ - time_waits_ >= max_) return nullptr;
  if (free_.empty()) {
    const auto first = static_cast<std::uint32_t>(blocks_.size()) * kBlock;
    blocks_.push_back(std::make_unique<Connection[]>(kBlock));
    free_.reserve(blocks_.size() * kBlock);
    for (std::uint32_t i = kBlock; i > 0; --i)
      free_.push_back(first + i - 1);
  }
  const std::uint32_t number = free_.back();
  free_.pop_back();
  Connection& connection = at(number);
  const std::uint32_t generation = connection.generation;
  connection = Connection{};
  connection.number = number;
  connection.generation = generation;
  connection.id = draw_id();
  by_id_.insert(hash_of_id(connection.id), number);
  ++count_;
  return &connection;
}

void Connections::free(Connection& connection) {
  VERBENA_ASSERT(connection.state == State::kClosed && !connection.is_waiting);
  VERBENA_ASSERT(connection.heap_place == Connection::kNowhere);
  unlist_by_remote(connection);
  unlist_by_qp(connection);
  by_id_.erase(hash_of_id(connection.id), connection.number);
  ++connection.generation;
  connection.state = State::kNone;
  free_.push_back(connection.number);
  --count_;
}

Connection* Connections::by_id(CommId id) {
  const auto found = by_id_.find(hash_of_id(id), [&](auto number) { return at(number).id == id; });
  return found < 0 ? nullptr : &at(static_cast<std::uint32_t>(found));
}

Connection* Connections::by_remote(const Gid& remote, std::uint32_t remote_id, Role role) {
  const auto is_it = [&](std::uint32_t number) {
    const Connection& c = at(number);
    return c.remote_id == remote_id && c.role == role && c.route.remote == remote;
  };
  const auto found = by_remote_.find(hash(remote, remote_id), is_it);
  return found < 0 ? nullptr : &at(static_cast<std::uint32_t>(found));
}

Connection* Connections::by_qp(const Gid& remote, QpNum qp) {
  const auto is_it = [&](std::uint32_t number) {
    return at(number).remote_qp == qp && at(number).route.remote == remote;
  };
  const auto found = by_qp_.find(hash(remote, qp.value), is_it);
  return found < 0 ? nullptr : &at(static_cast<std::uint32_t>(found));
}

void Connections::list_by_remote(Connection& c) {
  by_remote_.insert(hash(c.route.remote, c.remote_id), c.number);
  c.is_by_remote = true;
}

void Connections::unlist_by_remote(Connection& c) {
  if (!c.is_by_remote) return;
  by_remote_.erase(hash(c.route.remote, c.remote_id), c.number);
  c.is_by_remote = false;
}

void Connections::list_by_qp(Connection& c) {
  by_qp_.insert(hash(c.route.remote, c.remote_qp.value), c.number);
  c.is_by_qp = true;
}

void Connections::unlist_by_qp(Connection& c) {
  if (!c.is_by_qp) return;
  by_qp_.erase(hash(c.route.remote, c.remote_qp.value), c.number);
  c.is_by_qp = false;
}

Connection* Connections::too_many() {
  return time_waits_ > time_wait_max_ ? &at(oldest_) : nullptr;
}

void Connections::enter_time_wait(Connection& c) {
  VERBENA_ASSERT(c.state == State::kTimeWait && !c.is_waiting);
  c.is_waiting = true;
  c.older = newest_;
  c.newer = Connection::kNowhere;
  (newest_ == Connection::kNowhere ? oldest_ : at(newest_).newer) = c.number;
  newest_ = c.number;
  ++time_waits_;
}

void Connections::leave_time_wait(Connection& c) {
  VERBENA_ASSERT(c.is_waiting);
  c.is_waiting = false;
  (c.older == Connection::kNowhere ? oldest_ : at(c.older).newer) = c.newer;
  (c.newer == Connection::kNowhere ? newest_ : at(c.newer).older) = c.older;
  --time_waits_;
}

std::size_t Connections::memory_bytes() const {
  return blocks_.size() * kBlock * sizeof(Connection) +
         12 * (by_id_.room() + by_remote_.room() + by_qp_.room());
}

}  // namespace verbena::cm
