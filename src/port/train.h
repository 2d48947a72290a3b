// SPDX-License-Identifier: MIT
// Builds trains: the place where an engine writes its packets, so that payload is copied once, into
// the port's buffer, and the ICRC is folded over that copy.
//
// A packet's IPv4 id is known before it is written, since the ICRC covers it. Packets share a train
// where the route is the same and the size is; a shorter one ends its train (UDP_SEGMENT).
//
//   if (auto place = builder.place(route, size)) { write(place->room, place->ip_id);
//   builder.commit(); } else { builder.flush(port, now); ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "port/port.h"

namespace verbena::port {

// For one thread at a time.
class TrainBuilder {
 public:
  // `bytes_max`: of all trains between two flushes.
  TrainBuilder(const Limits& limits, std::size_t bytes_max, std::size_t trains_max);
  TrainBuilder(const TrainBuilder&) = delete;
  TrainBuilder& operator=(const TrainBuilder&) = delete;

  struct Place {
    std::span<std::byte> room;  // exactly `size` bytes for each, which must all be written
    std::uint16_t ip_id = 0;    // of the first one's IPv4 header, then counted; IPv6 has none
    std::uint32_t packets = 1;
  };
  // Of one packet, or of up to `most` that follow each other in a train. None: flush first, or the
  // packet is longer than a train can be. A place that is not committed is forgotten by the next
  // call.
  std::optional<Place> place(const Route& route, std::uint32_t size, std::uint32_t most = 1);
  // Whether such a packet begins a train.
  bool begins_train(const Route& route, std::uint32_t size) const {
    return !continues(route, size);
  }
  // Of packets that begin one, which is built in `berth`, memory of the caller that stays as
  // Lane says, and leaves by this lane.
  std::optional<Place> place_kept(const Route& route, std::uint32_t size, std::uint32_t most,
                                  std::span<std::byte> berth, Lane& lane);
  void commit();
  // The last train was begun so.
  bool is_last_kept() const { return !trains_.empty() && trains_.back().lane; }
  // What follows begins another.
  void end_train() { closed_ = true; }

  bool empty() const { return trains_.empty(); }
  // What is ready, for a port's send(). Good until the next place() or flush().
  std::span<const Train> trains() const { return trains_; }
  // Sends all of it. Trains that the port does not take stay at the front for the next flush;
  // place() goes on behind them. True: nothing is left.
  bool flush(Port& port, Instant now);
  // Forgets everything.
  void clear();

 private:
  bool continues(const Route& route, std::uint32_t size) const;
  std::uint32_t fitting(std::uint32_t size, std::uint32_t most) const;
  std::optional<Place> place_in(std::span<std::byte> room, std::uint32_t size, std::uint32_t most);
  std::uint16_t id_of_next() const;
  bool is_own(const std::byte* at) const {
    return at >= buffer_.get() && at < buffer_.get() + bytes_max_;
  }
  void keep_from(std::size_t first);

  Limits limits_;  // segments_max falls with the port's
  const std::size_t trains_max_;
  const std::size_t bytes_max_;
  const std::unique_ptr<std::byte[]> buffer_;
  std::size_t used_ = 0;  // of the buffer
  std::vector<Train> trains_;
  std::span<std::byte> behind_last_;  // where the last train may go on
  // The place that was given last.
  Route route_;
  std::span<std::byte> room_;  // of it and what may follow
  std::uint32_t placed_ = 0;   // bytes of each of its packets
  std::uint32_t packets_ = 1;
  std::uint32_t in_last_ = 0;  // packets of the last train
  bool starts_train_ = false;
  Lane* lane_ = nullptr;
  std::uint16_t first_id_ = 0;
  bool closed_ = false;  // the last train has its short packet
};

}  // namespace verbena::port
