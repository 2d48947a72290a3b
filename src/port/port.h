// SPDX-License-Identifier: MIT
// A port moves packets: datagrams on UDP port 4791 whose payload is a packet of RoCEv2 from its BTH
// to its ICRC (IBTA vol 1, annex A17). It knows nothing of the protocol but whose queue pair a
// packet is for, where several processes share one address.
//
// What the ICRC covers of the heads below is agreed on here, because no UDP socket shows it:
// * the IPv4 id of packet i of a train is the train's first and i, and a train is never taken apart
// (train.h builds them);
// * the source port is what source_port() says;
// * of a received packet the id is not known: `segment` is the second guess after 0.
//
// Sending is lossy: what is taken may be dropped by anything on the way, also by the port (then it
// is counted). What is not taken found no room just now, and is the caller's to keep or forget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/time.h"
#include "base/types.h"
#include "port/counters.h"
#include "wire/ip.h"

namespace verbena::port {

using wire::kRocePort;

// The ECN field of the IP header (RFC 3168, 5): a sender that reacts says kCapable, and the network
// turns it into kCongested.
enum class Ecn : std::uint8_t { kNotCapable = 0, kCapable1 = 1, kCapable = 2, kCongested = 3 };

// Where packets go and how. IPv4 addresses are mapped ones.
struct Route {
  Gid from{};                      // ours; the ICRC covers it
  Gid to{};                        //
  std::uint32_t interface = 0;     // needed for link-local addresses only
  SlotNumber slot{};               // of the queue pair that it goes to
  Ecn ecn = Ecn::kNotCapable;      //
  std::uint8_t traffic_class = 0;  // DSCP in the upper six bits; the ECN field comes from `ecn`
  std::uint8_t hop_limit = 0;      // 0: what the system takes
  friend bool operator==(const Route&, const Route&) = default;
};

class Lane;

// Packets of one route in a row: `segment_size` bytes each, the last may be shorter.
struct Train {
  Route route{};
  std::span<const std::byte> bytes{};
  std::uint32_t segment_size = 0;
  std::uint16_t first_id = 0;  // not 0 only where a lane says so
  Lane* lane = nullptr;        // the way that it takes; null: that of all

  std::size_t packets() const {
    return bytes.empty() ? 0 : (bytes.size() + segment_size - 1) / segment_size;
  }
  std::span<const std::byte> packet(std::size_t i) const {
    const auto rest = bytes.subspan(i * segment_size);
    return rest.first(rest.size() < segment_size ? rest.size() : segment_size);
  }
};

// A way for the trains of one queue pair, which the port sends by it in the order in which they
// were built. The bytes stay as they are until the peer has acknowledged them, and nobody but it
// may see what comes there after: they may leave without a copy.
class Lane {
 public:
  struct Sent {
    std::size_t trains = 0;  // from the first on. The others are lost, and whatever is given later
    std::size_t uncopied = 0;  // of them, those whose pages the kernel has taken
  };
  // In this order. All of this lane.
  virtual Sent send(std::span<const Train> trains) = 0;
  // What the first packet of the next train has to have as IPv4 id. They count by trains.
  virtual std::uint16_t next_id() const = 0;

 protected:
  ~Lane() = default;
};

// A packet that came. Everything in it is hostile.
struct Received {
  std::span<const std::byte> payload{};  // borrowed until the port's next receive()
  Gid from{};
  Gid to{};  // may be a multicast address; zeros: the port was not asked (UdpPort::tell)
  std::uint32_t interface = 0;
  std::uint16_t source_port = 0;
  std::uint16_t segment = 0;  // its place in the batch that it came in
  Ecn ecn = Ecn::kNotCapable;
};

// Fixed when the port opens, but for `segments_max`: it becomes 1 when a way out turns out to be
// unable to split trains.
struct Limits {
  std::uint32_t segments_max = 1;     // packets in a train
  std::uint32_t train_bytes_max = 0;  // payload of a whole train
  // What the receiver's buffer holds, for all peers together: payload of full trains, and packets
  // where they are small. More than this in flight towards the port is lost.
  std::uint32_t receive_bytes = 0;
  std::uint32_t receive_packets = 0;
  bool sends_uncopied = false;  // there are lanes to be had, which do
};

enum class RouteError : std::uint8_t {
  kNoRoute,    // the address cannot be reached from here
  kNotOurs,    // `from` is not an address of ours
  kNoSockets,  // the system gives us none
};
const char* to_string(RouteError error);

// send() and source_port() may be called by several threads at once, each with its own trains;
// receive() by one at a time. Where an implementation is for one thread only it says so.
class Port {
 public:
  virtual ~Port() = default;

  // Takes trains from the front, and says how many.
  virtual std::size_t send(std::span<const Train> trains, Instant now) = 0;
  // A train of one packet. False: not now.
  bool send_alone(const Route& route, std::span<const std::byte> packet, Instant now) {
    const Train train{route, packet, static_cast<std::uint32_t>(packet.size())};
    return send({&train, 1}, now) == 1;
  }
  // Gives what is there, or its beginning: at most `into.size()` packets, and says how many. 0:
  // there is nothing, as far as it has looked (UdpPort::converse). Never waits.
  virtual std::size_t receive(std::span<Received> into, Instant now) = 0;

  // Readable when receive() would give something; may be none (then see next_deadline). Borrowed:
  // good until the port is told of a change of sockets. No wait queue entry of ours is on them.
  virtual std::span<const int> descriptors() const = 0;
  // When send() or receive() has something to do that no descriptor shows; never() if nothing.
  virtual Instant next_deadline() const = 0;

  virtual Limits limits() const = 0;
  // The largest payload that the route's first hop takes in one piece, from BTH to ICRC. Some
  // system calls: for connecting, not for sending.
  virtual Result<std::uint32_t, RouteError> payload_max(const Route& route) = 0;
  // What packets of this route carry as source port: that depends on `from`, `to` and `slot`. 0:
  // there is no socket for them.
  virtual std::uint16_t source_port(const Route& route) = 0;

  virtual const Counters& counters() = 0;
};

}  // namespace verbena::port
