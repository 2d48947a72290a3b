// SPDX-License-Identifier: MIT
// Datagrams between processes of one host: one conduit for each direction of a pair of processes,
// shared by all their UD queue pairs. The payload is copied into the ring, so the sender's memory
// is free at once.
//
// A full ring holds the sender back as a lossless link would, but not for long: a receiver that
// does not take anything for kPatience loses what comes then, as UD may (IBTA vol 1, 9.8.3), until
// it takes something again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "base/time.h"
#include "local/conduit.h"
#include "local/ring_carrier.h"
#include "qp/carrier.h"

namespace verbena::local {

inline constexpr std::size_t kGrhSize = 40;

// The 40 bytes before a datagram's payload as a RoCEv2 NIC leaves them: the IP header it came with;
// for IPv4 in the last 20 bytes (RoCEv2 annex A17.4.5.2). `length` is the payload's.
void build_grh(const DatagramRecord& record, std::span<std::byte, kGrhSize> out);

// Many queue pairs of the process write; each takes the lock for one datagram.
class DatagramSender {
 public:
  // A receiver on a busy machine may not run for a while; one that takes longer is stopped.
  static constexpr Duration kPatience = Duration::seconds(2);

  // `room_wanted` is set when somebody found no room: whoever hears of room lets everybody try.
  DatagramSender(Conduit conduit, PeerBell bell, std::atomic<bool>& room_wanted);
  // A record of `length` bytes of payload is written by fill(record, payload), which may refuse.
  // kFull: later. kLost: it was full for too long, or the receiver broke the rules of the ring.
  enum class Outcome : std::uint8_t { kSent, kFull, kRefused, kLost };
  template <class Fill>
  Outcome send(std::uint32_t length, const Now& now, Fill&& fill) {
    const std::lock_guard guard(lock_);
    const std::uint32_t units = units_for(length);
    std::byte* memory = room(units, now);
    if (!memory) {
      const bool is_lost = writer_.is_broken() || now >= full_since_ + kPatience;
      return is_lost ? Outcome::kLost : Outcome::kFull;
    }
    auto& record = *reinterpret_cast<DatagramRecord*>(memory);
    record.length = length;
    if (!fill(record, std::span(memory + kUnit, length))) return Outcome::kRefused;
    writer_.publish(units, kDatagram, record.head.flags);
    return Outcome::kSent;
  }
  void notify() { bell_.doorbell->notify(bell_.index); }

 private:
  std::byte* room(std::uint32_t units, const Now& now);

  Mutex lock_;
  Conduit conduit_;
  RingWriter writer_;
  PeerBell bell_;
  std::atomic<bool>& room_wanted_;
  bool is_full_ = false;
  Instant full_since_;
};

// One thread at a time takes; the owner sees to that.
class DatagramReceiver {
 public:
  DatagramReceiver(Conduit conduit, PeerBell bell);
  // each(record, payload) for up to `most` datagrams. True when there are more.
  template <class Each>
  bool take(unsigned most, Each&& each) {
    Unit unit;
    const std::byte* payload = nullptr;
    std::uint32_t units = 0;
    while (most-- != 0 && reader_.peek(unit, payload, units)) {
      DatagramRecord record;
      std::memcpy(static_cast<void*>(&record), &unit, sizeof record);
      if (record.length <= kDatagramMax && record.length <= (units - 1) * kUnit) {
        each(record, std::span(payload, record.length));
      }
      reader_.consume(units);
    }
    if (reader_.give_back()) bell_.doorbell->ring_and_wake(bell_.index);
    return has_datagram();
  }
  bool has_datagram() const { return !reader_.is_broken() && reader_.has_record(); }
  std::uint64_t conduit_id() const { return conduit_.id(); }

 private:
  Conduit conduit_;
  RingReader reader_;
  PeerBell bell_;
};

// Finds the way of a datagram. Implemented by nic.
class DatagramPaths {
 public:
  struct Path {
    enum class State : std::uint8_t { kOpen, kOpening, kNone } state = State::kNone;
    DatagramSender* sender = nullptr;  // when open; good while the caller runs
    Instant opening_since;             // when opening
    Gid source;
    Gid destination;
    std::uint8_t traffic_class = 0;
    std::uint8_t hop_limit = 64;
  };
  virtual Path path_of(const qp::Operation& op) = 0;

 protected:
  ~DatagramPaths() = default;
};

// The sending half of a UD queue pair. What it receives comes to its responder from
// DatagramReceiver.
class DatagramCarrier final : public qp::Carrier {
 public:
  DatagramCarrier(QpNum self, DatagramPaths& paths) : self_(self), paths_(paths) {}

  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  void collect(qp::SendWindow&, qp::Budget&, const Now&) override {}
  bool serve(qp::Responder&, qp::Budget&, const Now&) override { return false; }
  std::optional<Instant> next_deadline() const override { return deadline_; }
  bool quiesced() override { return true; }

 private:
  // Being connected to another process may take its NIC a while.
  static constexpr Duration kOpeningPatience = Duration::seconds(2);
  enum class Outcome : std::uint8_t { kGone, kLater, kEnded };
  Outcome send(qp::SendWindow& window, const qp::Operation& op, const Now& now);

  QpNum self_;
  DatagramPaths& paths_;
  std::optional<Instant> deadline_;  // when the oldest datagram, which waits, is tried again
};

// Hands an arrived datagram to the queue pair it is for; the caller found it and holds its lock.
void deliver_datagram(const DatagramRecord& record, std::span<const std::byte> payload,
                      qp::Responder& responder);

}  // namespace verbena::local
