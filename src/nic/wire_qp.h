// SPDX-License-Identifier: MIT
// One queue pair on the wire: its engine (roce/engine.h), and the trains in which its packets
// leave. Everything with the queue pair's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/time.h"
#include "local/datagram.h"
#include "nic/address_handles.h"
#include "nic/kept_trains.h"
#include "nic/wire_nic.h"
#include "qp/carrier.h"
#include "roce/congestion.h"
#include "roce/engine.h"
#include "wire/icrc.h"

namespace verbena::nic {

class WireQp final : roce::Wire, roce::Paths {
 public:
  struct Options {
    roce::Settings settings{};
    std::uint32_t interface = 0;
    bool is_on_this_host = false;  // the peer
    bool all_by_wire = false;      // also datagrams to this host
  };
  WireQp(WireNic& nic, AddressHandles& handles, const Options& options);
  ~WireQp();

  roce::Engine& engine() { return *engine_; }
  // Of a connection: what its peer sends goes there.
  const Gid& source() const { return options_.settings.path.source; }
  bool is_peer_near() const { return options_.is_on_this_host; }
  // Sends what the window offers; datagrams to this host by `local`, if there is one.
  void issue(qp::SendWindow& window, qp::Budget& budget, local::DatagramCarrier* local,
             const Now& now);
  // Before each turn: what could not leave may do so now.
  void begin(const Now& now);
  // What was written leaves. After each turn.
  void flush(const Now& now);
  // Something written has not left: the system takes no more just now.
  bool is_stuck() const { return retry_at_ != Instant::never(); }
  // When it wants a turn, or never; timers of the engine may be late by a grain.
  Instant next_deadline(const Now& now);
  // The engine has one that is sooner than it was when that was asked for.
  bool has_sooner_deadline() const;

  // Answers to the peer that wait for something to go along with.
  bool owes() const { return owed_ != 0; }
  bool may_owe() const { return owed_ < kOwedMax; }
  void owe() { ++owed_; }
  void answered() { owed_ = 0; }

 private:
  static constexpr unsigned kOwedMax = 16;

  Sent transmit(const roce::Outgoing& packet, const roce::Path& path,
                roce::PayloadSource payload) override;
  Sent transmit_alone(const roce::OutgoingSend& packet, const roce::Path& path,
                      roce::PayloadSource payload, bool& is_apart) override;
  std::uint32_t transmit_run(const roce::Outgoing& packet, std::uint32_t most,
                             const roce::Path& path, roce::RunSource payload) override;
  const roce::Path* path_of(const qp::Operation& op) override;
  bool goes_by_wire(const qp::Operation& op);
  bool may_send(SlotNumber to, std::size_t bytes);
  std::optional<port::TrainBuilder::Place> place(const port::Route& route, std::uint32_t size,
                                                 std::uint32_t most = 1);
  std::optional<port::TrainBuilder::Place> place_run(const port::Route& route, std::uint32_t size,
                                                     std::uint32_t most);
  void note_kept(const port::TrainBuilder::Place& place, wire::Psn end);
  bool open_kept(const port::Route& route);
  bool end_kept_before(const wire::Head& head, std::uint16_t source_port);
  bool flush_builder(const Now& now);
  bool make_room();
  wire::FlowIcrc& icrc_of(const roce::Path& path, std::uint16_t source_port);
  void share_in_flight();
  roce::InFlight in_flight() const;
  bool has_channel(const roce::Path& path);
  port::Route route_alone(const roce::Path& path) const;
  void close_channel();
  port::Details wanted_details() const;

  WireNic& nic_;
  AddressHandles& handles_;
  const Options options_;
  std::optional<WirePeers::Key> peer_;
  const WirePeers::Count* sharers_ = nullptr;
  std::uint32_t shared_by_ = 0;
  unsigned owed_ = 0;
  std::unique_ptr<roce::Congestion>
      congestion_;  // towards other hosts: their networks mark packets
  std::unique_ptr<roce::Congestion> when_agreed_;  // in its place, with a peer that is ours
  std::unique_ptr<roce::Engine> engine_;
  std::unique_ptr<port::TrainBuilder> builder_;
  std::unique_ptr<KeptTrains> kept_;         // memory for those that are sent without a copy
  std::unique_ptr<port::PageSender> pages_;  // what sends them; with `kept_`
  bool may_keep_ = false;
  std::uint64_t repeated_ = 0;  // packets, when the last trains left
  std::unique_ptr<port::UdpChannel> channel_;
  std::optional<wire::FlowIcrc> channel_icrc_;
  unsigned alone_ = 0;                        // packets that left so
  Instant retry_at_ = Instant::never();       // until then nothing is sent
  Instant told_deadline_ = Instant::never();  // the engine's, without its grain
  std::optional<Instant> full_since_;         // the receiver's buffer, of a process of this host
  std::size_t unseen_ = 0;                    // bytes since we looked there
  std::size_t blind_ = 0;  // bytes sent while the receive buffer was being looked for
  roce::Path datagram_path_;
  bool is_near_;  // what is sent now is unreliable and stays on this host
  wire::Flow flow_;
  std::optional<wire::FlowIcrc> icrc_;
};

}  // namespace verbena::nic
