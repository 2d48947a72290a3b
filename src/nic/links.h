// SPDX-License-Identifier: MIT
// The links to other processes of this host, and what they are used for: connecting queue pairs,
// and the way of datagrams. Runs on the control thread but for what says otherwise.
//
// Connecting two queue pairs (each sends to the other's number):
//  * On RTR a queue pair offers a conduit of its own to the peer's process: "requests for me go
//    here".
//  * Whoever gets an offer takes it if the queue pair it is for sends to the offering one, is in
//    RTR or later, and has not taken one yet; else it answers "not ready".
//  * So of two queue pairs the later one's offer is taken at once. That offer also tells the
//    earlier one, if it was refused before, that it may offer again, with a new conduit.
//  * Whoever leaves says so in both conduits. A queue pair whose conduit was taken, and whose peer
//    left before it offered its own, hears silence from then on. When the peer comes back it gets
//    a new conduit, unless it had used the first.
//  * Who cannot make or map a conduit leaves, too: nobody waits for an offer that will not come.
//  A queue pair takes one offer in the time between two RESETs: a peer that starts over alone is
//  not connected again, as its packet sequence numbers would not fit on a wire.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/time.h"
#include "base/types.h"
#include "host/control.h"
#include "host/doorbell.h"
#include "local/datagram.h"
#include "local/peer_memory.h"
#include "nic/xrc_domains.h"

namespace verbena::nic {

class Engine;
class Links;
class Nic;
class Qp;
class WireNic;
struct Xrcd;

// A process that we are linked to, or this one itself. Lives as long as a queue pair may ring its
// bell or look into its memory.
class Link final : local::MappingRequests {
 public:
  Link(Links& links, memory::AccessSections& sections, std::unique_ptr<host::Peer> peer);
  // This process.
  Link(Links& links, memory::AccessSections& sections, host::PeerId id,
       host::ProcessPage& own_page);

  host::PeerId id() const { return id_; }
  bool is_self() const { return peer_ == nullptr; }
  host::Doorbell& doorbell() { return doorbell_; }
  local::PeerMemory& memory() { return memory_; }

 private:
  friend class LinkRef;
  void want_mapping(MemoryKey key) override;
  void want_room() override;

  Links& links_;
  host::PeerId id_;
  std::unique_ptr<host::Peer> peer_;
  host::Doorbell doorbell_;
  local::PeerMemory memory_;
  std::atomic<bool> is_mapping_wanted_{false};
  std::atomic<std::uint32_t> references_{0};
};

// A counted reference: the page of a peer stays mapped while anybody may ring its bell, on any
// thread.
class LinkRef {
 public:
  LinkRef() = default;
  explicit LinkRef(Link* link) : link_(link) {
    if (link_) link_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  LinkRef(const LinkRef& other) : LinkRef(other.link_) {}
  LinkRef(LinkRef&& other) noexcept : link_(std::exchange(other.link_, nullptr)) {}
  LinkRef& operator=(LinkRef other) noexcept {
    std::swap(link_, other.link_);
    return *this;
  }
  ~LinkRef() {
    if (link_ && link_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete link_;
  }
  Link* operator->() const { return link_; }
  Link* get() const { return link_; }
  explicit operator bool() const { return link_ != nullptr; }

 private:
  Link* link_ = nullptr;
};

class Links final : public host::ControlEvents, public local::DatagramPaths {
 public:
  Links(Nic& nic, Engine& engine);
  // -- any thread --------------------------------------------------------------------------------
  // Looks for the peer of a queue pair that just went to RTR.
  void connect(QpNum qp);
  // A datagram to a queue pair of this process should not wait for a way: opens the one to a slot
  // of ours, and waits for it, though not long.
  void open_own_datagrams(SlotNumber slot);
  // Within a reading section of the table of queue pairs.
  Path path_of(const qp::Operation& op) override;
  // Hands arrived datagrams to their queue pairs. Within a reading section.
  enum class Received : std::uint8_t { kNone, kSome, kMore };
  Received receive_datagrams();
  bool has_receivers() const { return receiver_count_.load(std::memory_order_relaxed) != 0; }
  // Waits for whoever is taking some.
  bool has_datagrams();
  // A receiver may have made room: those who wait for it try again. Within a reading section.
  void resume_datagram_senders();
  // From now on what concerns the wire goes there. False: not accepted.
  bool use_wire(WireNic& wire);
  // Looks for the process that has this shared receive queue, of another one's domain: the target
  // hears by its relay (target_relay.h). False: not accepted.
  bool find_relay(QpNum target, QpNum queue);
  // A hidden target is not needed any more.
  void end_hidden_target(QpNum target);
  // A handle has left this domain: its hidden targets go on by another's context, or end with the
  // last one. Waits. False: not done yet.
  bool leave_hidden_targets(XrcDomain& domain);
  // Maps a region of a peer soon. False: not accepted.
  bool map_soon(host::PeerId peer, MemoryKey key, std::atomic<bool>& is_wanted);
  // Its thread does what waits for it.
  void wake_engine();

  // -- the control thread: what peers need to reach our memory -----------------------------------
  std::vector<host::PeerId> peers() const;  // this process included
  void pass_tables(host::PeerId to, const host::PrivateFd& tables);
  void pass_file(host::PeerId to, local::FileId id, const host::PrivateFd& file);

  // -- the control thread: after anything that may have changed when somebody wants a tick
  void plan_tick();

 private:
  // What processes say to each other about queue pairs. Sent as it lies in memory: both ends are
  // one machine.
  enum class MessageKind : std::uint32_t {
    kOffer = 1,
    kNotReady = 2,
    kWantDatagrams = 3,
    kOfferDatagrams = 4,
    kTables = 5,
    kFile = 6,
    kWantRelay = 7,  // from a target, to a shared receive queue
    kNoRelay = 8,
  };
  struct Message {
    MessageKind kind;
    std::uint32_t from_qp = 0;
    std::uint32_t to_qp = 0;
    std::uint32_t qp_type = 0;
    std::uint64_t conduit_id = 0;  // or the id of a file
    // Of an offer: where the conduit lies, in the file that came last. It comes with its first one.
    std::uint32_t index = 0;
    std::uint32_t conduits = 0;
    FileIdentity domain{};  // of a relay
  };
  struct Offer {
    QpNum qp;
    SlotNumber slot;  // that was looked for: the queue pair may send to another one by now
    bool again = false;
  };
  // Memory whose conduits are offered, or taken, one after the other.
  struct Conduits {
    local::ConduitFile file;
    std::uint32_t conduits = 0;  // that it has, or had
    std::uint32_t next = 0;
    host::PrivateFd unsent;  // the peer does not have it yet
  };
  struct Process {
    LinkRef link;
    Conduits ours;
    Conduits theirs;
    std::deque<Offer> offers;  // wait until it has read those before
    bool asked_for_datagrams = false;
    std::set<SlotNumber> slots;  // those whose datagrams take this way
    std::unique_ptr<local::DatagramSender> sender;
    std::unique_ptr<local::DatagramReceiver> receiver;
    local::PeerFiles files;
  };
  // What arrived before a peer died is delivered yet. Not by the control thread: completions have
  // events, and their descriptors are the program's. So is that of the peer's memory, which is
  // closed with the last reference to the link.
  struct Departed {
    LinkRef link;                                       // whose bell the receiver has
    std::unique_ptr<local::DatagramReceiver> receiver;  // none: it is over
    unsigned left = local::kRequestUnits;               // as many as can have come
  };
  struct WantedRelay {
    QpNum target;
    QpNum queue;
    FileIdentity domain;
  };
  struct Waiting {
    std::set<QpNum> connects;
    std::vector<WantedRelay> relays;
    bool datagrams = false;
  };

  void started(host::Control& control) override;
  void peer_up(std::unique_ptr<host::Peer> peer) override;
  void peer_down(host::PeerId id) override;
  void slot_reached(SlotNumber slot, host::PeerId id) override;
  void slot_unreachable(SlotNumber slot, host::Refusal why) override;
  void message(host::PeerId from, std::span<const std::byte> bytes,
               host::PrivateFd attachment) override;
  void tick(Instant now) override;
  void nudged() override;
  void interfaces_changed() override;
  bool spare_descriptors() override;

  void try_offers(Instant now);
  // links_wire.cc
  void wire_slot_answered(SlotNumber slot, host::PeerId holder);
  void wire_slot_refused(SlotNumber slot, host::Refusal why);
  void wire_peer_down(host::PeerId id);
  bool is_for_wire(host::PeerId from, std::span<const std::byte> bytes,
                   host::PrivateFd& attachment);
  void look_for_peers();
  void look_for(SlotNumber slot);
  void reached(SlotNumber slot, Process& process);
  void offer(const Offer& offer, Process& process);
  bool is_wanted(Qp& qp, const Offer& offer) const;
  void hold_back(const Offer& offer, Process& process);
  void make_offer(const Offer& offer, Process& process);
  bool has_conduit(Conduits& ours);
  static local::Conduit take_conduit(Conduits& theirs, const Message& offered,
                                     const host::PrivateFd& attachment);
  // None: whichever it looks for.
  void absent(QpNum number, std::optional<SlotNumber> slot);
  void give_up(QpNum number);
  void send(Process& process, const Message& message, const host::PrivateFd* attachment);
  void hear_self();
  void take_offer(Process& from, const Message& offer, host::PrivateFd attachment);
  enum class Taken : std::uint8_t { kNo, kYes, kOfferOurs };
  Taken attach(Qp& qp, Process& from, const Message& offered, local::Conduit conduit);
  void take_not_ready(Process& from, const Message& refusal);
  // links_relay.cc
  void look_for_relay(QpNum target, QpNum queue);
  void ask_for_relay(const WantedRelay& wanted, Process& process);
  void no_relay(QpNum target, SlotNumber slot);
  void take_want_relay(Process& from, const Message& wanted);
  void take_no_relay(Process& from, const Message& refusal);
  Taken attach_relay(Qp& target, Process& from, const Message& offered, local::Conduit conduit);
  void refuse_relay(QpNum target, QpNum queue, Process& process);
  void give_up_hidden(QpNum number, Process& process);
  void end_hidden_targets_of(const Link& link);
  void end_hidden_now(QpNum target);
  void end_hidden_that_are_over();
  bool may_have_relay(const Process& process) const;
  template <class Is>
  void end_hidden_if(Is&& is);
  void offer_datagrams(Process& to);
  void take_datagrams(Process& from, const Message& offer, host::PrivateFd attachment);
  void open_datagrams(SlotNumber slot, Process& process);
  void take_tables(Process& from, const host::PrivateFd& attachment);
  void take_file(Process& from, const Message& passed, host::PrivateFd attachment);
  void wake_datagram_senders();
  // Within a reading section.
  void let_datagrams_try();
  // With receivers_lock_; the first also within a reading section.
  bool deliver_from(local::DatagramReceiver& receiver, unsigned most);
  Received receive_last_datagrams();
  void let_go_elsewhere(LinkRef link);
  void count_receivers();
  bool may_speak_for(const Process& process, QpNum number) const;

  Nic& nic_;
  Engine& engine_;
  host::Control* control_ = nullptr;
  std::map<host::PeerId, Process> processes_;  // the control thread's
  std::map<SlotNumber, Waiting> waiting_;      // the control thread's
  struct OwnMessage {
    Message message;
    host::PrivateFd attachment;
  };
  std::deque<OwnMessage> to_self_;  // the control thread's
  bool is_hearing_self_ = false;
  struct Hidden {
    QpNum relayed_by;
    QpNum queue;  // that was asked for first
    host::PeerId peer;
  };
  std::map<QpNum, Hidden> hidden_targets_;  // the control thread's
  bool keeps_files_ = true;                 // the control thread's: until descriptors run out
  Duration offer_pause_;                    // the control thread's
  Instant offers_at_ = Instant::never();    // the control thread's: when held back ones are tried
  WireNic* wire_ = nullptr;                 // the control thread's

  Mutex looking_lock_;
  std::vector<QpNum> looking_;  // those that went to RTR since the control thread looked
  Mutex over_lock_;
  std::set<QpNum> over_;  // hidden targets that are not needed any more

  // The way of datagrams to each slot, for senders.
  struct Way {
    std::atomic<local::DatagramSender*> sender{nullptr};
    std::atomic<std::int64_t> closed_until{
        0};  // nanoseconds: nobody was there, do not ask again before
    std::atomic<std::int64_t> opening_since{0};  // nanoseconds; 0: nobody asked for it
  };
  std::array<Way, kSlotCount> ways_;
  std::atomic<std::uint32_t> ways_opened_{0};
  std::atomic<bool> room_wanted_{false};  // by a datagram

  Mutex receivers_lock_;  // held while datagrams are taken
  std::vector<local::DatagramReceiver*> receivers_;
  std::vector<Departed> departed_;
  std::atomic<std::size_t> receiver_count_{0};
};

}  // namespace verbena::nic
