// SPDX-License-Identifier: MIT
// UDP port 4791 of an unprivileged process, shared with all other processes of its address.
//
// Sending: one socket for each destination slot, made when needed (udp_senders.h). GRO merges
// packets of one size and source port whoever they are for; with a source port a slot a merged
// batch is one process's.
// Receiving: one socket for each of our slots, from the group (socket_group.h). Every packet of a
// batch is judged again: what is another slot's is handed over, and counted. One conversation may
// have a socket of its own beside them (converse()).
//
// The sockets lie in the program's descriptor table, at high numbers. Programs close what they do
// not know: check_sockets() finds out, and a number that means another file now is left alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "host/slots.h"
#include "port/alternation.h"
#include "port/connected_receiver.h"
#include "port/handover.h"
#include "port/page_sender.h"
#include "port/port.h"
#include "port/steering.h"
#include "port/udp_channel.h"
#include "port/udp_receiver.h"
#include "port/udp_senders.h"
#include "port/udp_socket.h"

namespace verbena::port {

struct UdpOptions {
  std::uint16_t port = kRocePort;
  HandOver* hand_over = nullptr;  // none: packets for others are dropped; must outlive the port
  Instant (*now)() = nullptr;     // the clock, where there is a hand_over
  bool offload = true;            // GSO; GRO is chosen when the socket is made
  std::uint32_t send_buffer = 4 << 20;
  std::uint32_t senders_max = 256;   // beyond it destination slots share sockets; at most 1024
  std::uint32_t receivers_max = 64;  // slots of this process
  void (*made)(int fd) = nullptr;    // hears of sockets of conversations (ConnectedReceiver)
};

class UdpPort final : public Port {
 public:
  explicit UdpPort(UdpOptions options);
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  // Takes the socket that receives for a slot of ours, in place of the slot's former one if there
  // is one. Not beside receive(). False: we have `receivers_max` slots.
  bool add_receiver(SlotNumber slot, UniqueFd socket);
  // What comes like `with` does, from the same source port, comes to a socket of its own from now
  // on, the first of descriptors(). receive() looks there, and at the group's sockets one time of a
  // few: 0 may mean that it did not. False: another conversation has one, or none is to be had just
  // now. Not beside receive(), but for what it gave.
  [[gnu::cold]] bool converse(const Received& with);
  // Nothing has come there for long, or something that is not of a conversation.
  bool is_conversation_over() const { return is_over_; }
  // If there is one. Not beside receive(), nor while somebody sleeps on descriptors(): what comes
  // until they wake up would be lost.
  [[gnu::cold]] void end_conversation();
  // The next receive() looks at all sockets.
  void look_everywhere() { alternation_.look_at_both(); }
  // Of packets that are received from now on. Any thread.
  void tell(const Details& details);
  // Null: there is none for it, and send() has to do (udp_channel.h). Any thread.
  std::unique_ptr<UdpChannel> open_channel(const Route& route) {
    return UdpChannel::open(route, options_.port, counters_);
  }
  // The same for long trains (page_sender.h), where limits() says that there are such. Any thread.
  std::unique_ptr<PageSender> open_pages(const Route& route);
  // Who holds the other slots. Any thread.
  void set_steering(Steering steering);

  // Packets to a multicast group reach every process that has joined it, and `receive` of each of
  // its ports; the queue pair number in them is kMulticastQp. Not beside receive().
  Result<void, RouteError> join_multicast(const Gid& group, std::uint32_t interface);
  void leave_multicast(const Gid& group, std::uint32_t interface);

  // The slot whose socket somebody closed, if one was: it wants add_receiver() again. Sending
  // sockets that are gone are made again by themselves. Not beside receive(); before sleeping on
  // descriptors() is a good time.
  std::optional<SlotNumber> check_sockets();

  std::size_t send(std::span<const Train> trains, Instant now) override;
  std::size_t receive(std::span<Received> into, Instant now) override;
  std::span<const int> descriptors() const override { return descriptors_; }
  Instant next_deadline() const override { return Instant::never(); }
  Limits limits() const override;
  Result<std::uint32_t, RouteError> payload_max(const Route& route) override;
  std::uint16_t source_port(const Route& route) override;
  const Counters& counters() override;

 private:
  std::size_t send_first(std::span<const Train> trains);
  std::size_t send_by_lane(std::span<const Train> trains);
  void count_sent(std::span<const Train> trains);
  std::size_t send_run(std::span<const Train> run, const Sender& by);
  static constexpr std::size_t kTrainsPerCall = 16;
  std::size_t send_together(std::span<const Train> run, const Sender& by);
  bool give_up(const Train& train, const Sender& by, int error);
  void send_singly(const Train& train, const Sender& by);
  std::size_t receive_from_group(std::span<Received> into);
  std::size_t receive_by_turns(std::span<Received> into);
  std::size_t keep_ours(std::span<Received> packets);
  bool is_ours(const Received& packet);
  bool is_steered_to_us(const Received& packet);
  [[gnu::cold]] void pass_on(const Received& packet, const Steering::Owner& owner);
  [[gnu::cold]] void pass_to_all(const Received& packet);
  void refresh_receivers();
  void tell_all();

  const UdpOptions options_;
  std::atomic<bool> offload_;
  Counters counters_;
  UdpSenders senders_;
  Mutex opening_lock_;  // while a sender shares its port with one that is being made

  std::vector<std::unique_ptr<UdpReceiver>> receivers_;
  std::vector<int> descriptors_;
  std::size_t next_receiver_ = 0;
  std::unique_ptr<ConnectedReceiver> connected_;  // of a conversation
  unsigned fresh_ = 0;  // so many looks only at the group's: what came before may lie there
  bool is_over_ = false;
  Alternation alternation_;  // connected_, and the group's
  host::SlotSet slots_;
  std::atomic<std::uint32_t> receive_bytes_{0};
  std::atomic<std::uint32_t> receive_packets_{0};

  Mutex details_lock_;
  Details details_;
  struct Told {
    int fd;
    ino_t file;
    UdpReceiver* receiver;
  };
  std::vector<Told> told_;

  // Long enough for a copy of a table: seldom taken, for packets that are not ours.
  Mutex steering_lock_;
  Steering steering_;
  Instant passed_to_all_;  // when what was would have been, at the allowed rate
};

}  // namespace verbena::port
