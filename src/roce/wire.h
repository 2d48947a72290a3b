// SPDX-License-Identifier: MIT
// The way out of an engine: it says what a packet holds, and whoever owns a port builds it there,
// in one pass over the payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/pieces.h"
#include "base/types.h"
#include "wire/ip.h"
#include "wire/packet.h"

namespace verbena::roce {

// Where packets go. IPv4 addresses are mapped ones.
struct Path {
  Gid source{};
  Gid destination{};
  std::uint32_t interface = 0;     // for link-local addresses only
  std::uint8_t traffic_class = 0;  // DSCP in the upper six bits
  std::uint8_t hop_limit = 64;
  friend bool operator==(const Path&, const Path&) = default;
};

// Borrows a callable that fills a place; false: what belongs there cannot be had.
template <class... Place>
class Filling {
 public:
  template <class Fill>
    requires(!std::is_same_v<std::remove_cvref_t<Fill>, Filling>)
  Filling(Fill&& fill)  // NOLINT(google-explicit-constructor): it is borrowed for one call
      : fill_(const_cast<void*>(static_cast<const void*>(std::addressof(fill)))),
        call_([](void* callable, Place... to) {
          return static_cast<bool>((*static_cast<std::remove_reference_t<Fill>*>(callable))(to...));
        }) {}
  bool operator()(Place... to) const { return call_(fill_, to...); }

 private:
  void* fill_;
  bool (*call_)(void*, Place...);
};
// The place of a packet's payload.
using PayloadSource = Filling<std::span<std::byte>>;
// Those of packets that follow each other; the number of the first one.
using RunSource = Filling<std::uint32_t, const Pieces&>;

// A packet to be sent, without its pad and its ICRC.
struct Outgoing {
  wire::Head head{};
  std::size_t payload_bytes = 0;
  bool is_ecn_capable = false;  // the network may mark it (A17.9.1): packets whose rate we control
};

// A SEND of a reliable connection in one packet.
struct OutgoingSend {
  wire::WholeSendHead head{};
  QpNum to{};
  std::size_t payload_bytes = 0;
  bool may_overtake = false;  // what is on its way, if anything

  Outgoing general() const {
    return {
        .head = wire::head_of(head, to), .payload_bytes = payload_bytes, .is_ecn_capable = true};
  }
};

inline constexpr std::uint32_t kRunMost = 16;  // packets that are handed over at once

// Implemented by whoever has the port. Called with the queue pair's lock held.
class Wire {
 public:
  enum class Sent : std::uint8_t {
    kSent,       // on its way, or lost there
    kNoRoom,     // not now; nothing was asked of the payload, or it will be asked again
    kNoPayload,  // the source said no; nothing was sent
  };
  virtual Sent transmit(const Outgoing& packet, const Path& path, PayloadSource payload) = 0;
  // One with nothing behind it: it leaves before this returns. `is_apart` becomes true where it
  // left by a way of its own, on which it may overtake what left before: never without
  // may_overtake.
  virtual Sent transmit_alone(const OutgoingSend& packet, const Path& path, PayloadSource payload,
                              bool& /*is_apart*/) {
    return transmit(packet.general(), path, payload);
  }
  // Up to `most` packets (kRunMost at most) that are all like this one, but for their PSNs, which
  // follow each other. How many were sent: where it is none, transmit() tells why. What the payload
  // refuses is not sent.
  virtual std::uint32_t transmit_run(const Outgoing& packet, std::uint32_t most, const Path& path,
                                     RunSource payload) {
    Outgoing one = packet;
    for (std::uint32_t i = 0; i < most; ++i, one.head.psn = one.head.psn.next()) {
      const Sent sent = transmit(one, path, [&](std::span<std::byte> to) {
        return payload(i, {.first = to.data(), .bytes = to.size()});
      });
      if (sent != Sent::kSent) return i;
    }
    return most;
  }

 protected:
  ~Wire() = default;
};

// What came around a packet. Hostile like the packet itself.
struct Arrival {
  wire::IpHead ip{};
  std::size_t datagram_bytes = 0;
  bool is_congested() const { return (ip.traffic_class & 3) == 3; }  // RFC 3168, 5
};

}  // namespace verbena::roce
