// SPDX-License-Identifier: MIT
// A port with a bad line: drops, doubles, delays, reorders, damages and slows down what passes, by
// a seed. The same packets at the same times suffer the same, on every machine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "port/port.h"

namespace verbena::port {

// One direction. Chances are in packets of a million, each drawn by itself.
struct Impairment {
  std::uint32_t drop = 0;
  std::uint32_t duplicate = 0;
  std::uint32_t corrupt = 0;  // one bit, anywhere
  std::uint32_t reorder = 0;  // held back by `reorder_by`, so that later ones overtake it
  Duration reorder_by = Duration::microseconds(50);
  Duration delay{};                         // of every packet
  Duration jitter{};                        // on top, evenly between 0 and this; order is kept
  std::uint64_t bytes_per_second = 0;       // 0: no limit
  std::uint32_t queue_bytes_max = 1 << 20;  // packets that wait; more are dropped
  std::uint32_t full = 0;  // on the way out, of trains: this one and those behind it are not taken

  bool is_none() const;
};

// One direction at work: packets in, and out again when their time has come.
class Impairer {
 public:
  struct Packet {
    std::vector<std::byte> bytes{};
    Route route{};    // on the way out
    Received head{};  // on the way in; its payload is `bytes`
  };

  Impairer(const Impairment& what, std::uint64_t seed) : what_(what), random_(seed) {}

  // Whether the next train finds no room, as in a socket; later it may.
  bool is_full() { return what_.full != 0 && chance(what_.full); }
  // `packet` without its bytes, which are copied.
  void push(std::span<const std::byte> bytes, const Packet& packet, Instant now,
            Counters& counters);
  // The next packet that is due; good until the next call of anything here.
  const Packet* front(Instant now);
  void pop();
  // front() comes again, but not before this.
  void postpone(Instant until);
  Instant next_deadline() const;

 private:
  struct Waiting {
    Instant due;
    std::uint64_t order = 0;
    std::size_t packet = 0;
    bool operator>(const Waiting& other) const {
      return due != other.due ? due > other.due : order > other.order;
    }
  };
  bool chance(std::uint32_t of_a_million) { return random_.below(1'000'000) < of_a_million; }
  Instant due_time(std::size_t size, Instant now, Counters& counters);
  Packet& store(std::span<const std::byte> bytes, const Packet& packet, Instant due);

  const Impairment what_;
  SeededRandom random_;
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
  std::vector<std::unique_ptr<Packet>> packets_;
  std::vector<std::size_t> free_;
  std::uint64_t order_ = 0;
  std::size_t queued_bytes_ = 0;
  Instant line_free_;  // when the last byte before is through
  Instant last_due_;
  Instant not_before_;
};

struct ImpairedOptions {
  Impairment out{};
  Impairment in{};
  std::uint64_t seed = 1;
};

class ImpairedPort final : public Port {
 public:
  // Packets go out one by one where `out` does anything, so trains are of one packet then.
  ImpairedPort(Port& inner, const ImpairedOptions& options);

  std::size_t send(std::span<const Train> trains, Instant now) override;
  std::size_t receive(std::span<Received> into, Instant now) override;
  std::span<const int> descriptors() const override { return inner_.descriptors(); }
  Instant next_deadline() const override;
  Limits limits() const override;
  Result<std::uint32_t, RouteError> payload_max(const Route& route) override {
    return inner_.payload_max(route);
  }
  std::uint16_t source_port(const Route& route) override { return inner_.source_port(route); }
  // What the impairments did. What passed is in the inner port's counters.
  const Counters& counters() override { return counters_; }
  // Packets that are on the line still, on the way out. Any thread, without a lock.
  bool has_underway() const { return is_underway_.load(std::memory_order_relaxed); }

 private:
  void release_out(Instant now);

  Port& inner_;
  const bool impairs_out_;
  const bool impairs_in_;
  Counters counters_;
  mutable Mutex out_lock_;
  Impairer out_;
  std::atomic<bool> is_underway_{false};
  mutable Mutex in_lock_;
  Impairer in_;
  std::vector<std::vector<std::byte>> given_;  // bytes behind what receive() gave last
};

}  // namespace verbena::port
