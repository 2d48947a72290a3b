// SPDX-License-Identifier: MIT
// The deadlines of all connections: a heap in which each knows its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cm/connection.h"

namespace verbena::cm {

class Timers {
 public:
  bool empty() const { return heap_.empty(); }
  Connection& first() { return *heap_.front(); }
  Instant next() const { return heap_.empty() ? Instant::never() : heap_.front()->deadline; }

  void set(Connection& connection, Instant deadline) {
    cancel(connection);
    connection.deadline = deadline;
    heap_.push_back(&connection);
    rise(heap_.size() - 1);
  }

  void cancel(Connection& connection) {
    if (connection.heap_place == Connection::kNowhere) return;
    const std::size_t place = connection.heap_place;
    connection.heap_place = Connection::kNowhere;
    Connection* const last = heap_.back();
    heap_.pop_back();
    if (last == &connection) return;
    put(place, last);
    rise(place);
    sink(last->heap_place);
  }

 private:
  void put(std::size_t place, Connection* connection) {
    heap_[place] = connection;
    connection->heap_place = static_cast<std::uint32_t>(place);
  }
  void rise(std::size_t place) {
    Connection* const it = heap_[place];
    while (place > 0 && it->deadline < heap_[(place - 1) / 2]->deadline) {
      put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    put(place, it);
  }
  void sink(std::size_t place) {
    Connection* const it = heap_[place];
    for (;;) {
      std::size_t child = 2 * place + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && heap_[child + 1]->deadline < heap_[child]->deadline) ++child;
      if (it->deadline <= heap_[child]->deadline) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, it);
  }

  std::vector<Connection*> heap_;
};

}  // namespace verbena::cm
