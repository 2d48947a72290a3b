// SPDX-License-Identifier: MIT
// RoCEv2 (IBTA vol 1, chapter 9 and annex A17) without input, output, clock and randomness: an
// engine is the carrier of one queue pair. It gets decoded packets and a time, and gives packets to
// a Wire and the time at which it wants to be called again.
//
//   qp::SendWindow ─► Requester ─► Wire ─► port ─► network ─► port ─► receive() ─► Responder
//          ▲              ▲                                                           │
//          └── answers ───┴────────────── receive() ◄── port ◄── network ◄── Wire ◄───┘
//
// How a NIC uses it, with the queue pair's lock held for every call:
//
// * RTR: make_engine() with the peer's number, its PSN and the path. A new connection is a new
//   engine. RTS, and each change of attributes in RTS or SQD: start().
// * For each datagram that came: wire::FlowIcrc::verify, wire::parse, find the queue pair, then
//   receive(). A datagram whose ICRC is right and that parse refused: receive_broken() with what
//   wire::parse_bth says. Nothing is sent for it yet but congestion notifications.
// * After a batch, and when next_deadline() has come: collect(), serve(), issue(), as with every
//   carrier. serve() sends what the batch asked for: so one acknowledgement for all of it. True
//   from serve(), or a Wire that answered kNoRoom: again, when there is room.
// * Wire::transmit: wire::DatagramBuilder in the port's train of this path, payload by the source,
//   finish() with the train's index as id. Outgoing::is_ecn_capable becomes the port's Ecn.
// * set_in_flight(): this connection's share of the receive buffers of both ends.
// * Settings::asks_for_agreement, a reorder buffer and a congestion control for it: two ends that
//   are ours agree on selective repeat and delay control in band, and no other peer notices
//   (docs/decisions/0012). Settings::selective only where both ends have agreed by other means.
//
// Datagrams (UD) are received by receive() with the IP head, from which the GRH is made; whom they
// go to is asked of Paths.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "qp/carrier.h"
#include "roce/congestion.h"
#include "roce/settings.h"
#include "roce/taken.h"
#include "roce/wire.h"
#include "wire/icrc.h"
#include "wire/malformed.h"
#include "wire/packet.h"

namespace verbena::roce {

// What did not become a request or an answer.
struct EngineCounters {
  std::uint64_t other_service = 0;  // an opcode of another type of queue pair
  std::uint64_t other_sender = 0;   // from an address that is not the peer's
  std::uint64_t other_pkey = 0;
  std::uint64_t notifications = 0;       // CNPs that came
  std::uint64_t notifications_sent = 0;  //
  // Unreliable: gaps, what had no receive, was refused. Reliable: a mark that says what is not so.
  std::uint64_t dropped = 0;
};

class Engine : public qp::Carrier {
 public:
  virtual void start(const qp::QpAttributes& attributes) = 0;
  virtual void set_in_flight(const InFlight&) {}
  virtual void receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow& window,
                       qp::Responder& responder, const Now& now) = 0;
  // The short way of a message of a conversation, which is most of what some programs wait for, and
  // of the packets of a stream that have nothing to say but their bytes: `datagram` came from
  // `from`, is intact, and no router marked it. False: nothing has happened, and it is to be parsed
  // and received.
  virtual bool receive_at_once(std::span<const std::byte>, const Gid&, qp::SendWindow&,
                               qp::Responder&, const Now&) {
    return false;
  }
  // The same of datagrams that follow each other in a train, and have not been verified: those that
  // would all take the short way, from the middle of a message, are looked at once, and verified
  // one by one.
  virtual Taken receive_run(wire::Unverified&, const Gid&, qp::Responder&) { return {}; }
  virtual void receive_broken(const wire::Head& bth, wire::Malformed why, const Arrival& arrival,
                              qp::Responder& responder) = 0;
  // A SEND that leaves as it is posted, in one packet, by the window's open_index(). False: nothing
  // has happened, and it takes the general way. Else the caller fills in the WQE, tells the window
  // and sent_at_once(), in this order, before anything else.
  struct AtOnce {
    qp::OpIndex index;
    std::span<const std::byte> payload;
    bool is_solicited = false;
  };
  virtual bool transmit_at_once(const AtOnce&, const qp::SendWindow&) { return false; }
  virtual void sent_at_once(const AtOnce&, const Now&) {}
  // Something that the window has issued is to be sent, again or for the first time.
  virtual bool wants_to_send() const { return false; }
  // Whether the peer waits for something of serve().
  virtual bool owes() const { return true; }
  virtual const EngineCounters& counters() const = 0;
  // The peer is one of ours, and both know it.
  virtual bool has_agreed() const { return false; }
  // Of the requests of a reliable connection.
  struct Sendings {
    std::uint64_t packets = 0;   // in all
    std::uint64_t repeated = 0;  // of these, sent before
    Psn executed{};              // everything before, as the peer says
  };
  virtual Sendings sendings() const { return {}; }
  // Something that could leave waits for the next answer, which somebody should look for.
  virtual bool is_holding() const { return false; }

  // Nothing of ours ever touches the peer's memory, nor the peer ours.
  bool quiesced() override { return true; }
};

// Where a datagram goes, by its address handle. Implemented by nic.
class Paths {
 public:
  // Null: nowhere. Good while the caller runs.
  virtual const Path* path_of(const qp::Operation& op) = 0;

 protected:
  ~Paths() = default;
};

// `wire`, `paths` (for UD), `congestion` (may be null) and `when_agreed`, which takes its place
// once the ends have agreed (null: `congestion` goes on), are borrowed.
std::unique_ptr<Engine> make_engine(const Settings& settings, Wire& wire, Paths* paths,
                                    Congestion* congestion, Congestion* when_agreed = nullptr);

}  // namespace verbena::roce
