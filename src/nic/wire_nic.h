// SPDX-License-Identifier: MIT
// The wire: what the queue pairs of this process share to speak RoCEv2 over UDP port 4791. Made
// when the first of them needs it, and never taken down.
//
// Who receives. A program that polls drives: poll() reads the sockets, hands each packet to its
// queue pair, and lets that answer. One thread at a time reads; the others leave it to that one.
// When nobody polls, a thread of ours waits in poll(2) on the sockets (watch()). While somebody
// polls all the time it does not even wait there, for each packet would wake it, and naps.
//
// Whoever has received lets each queue pair that got something answer once: so one acknowledgement
// for a whole batch. A poller that got little leaves even that: the program will often post an
// answer of its own, and both leave as one train; if not, its next poll sends the acknowledgement.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/time.h"
#include "base/types.h"
#include "nic/error.h"
#include "nic/kept_trains.h"
#include "nic/multicast.h"
#include "nic/nap.h"
#include "nic/train_pool.h"
#include "nic/wake_pipe.h"
#include "nic/watch_pace.h"
#include "nic/wire_flows.h"
#include "nic/wire_gauges.h"
#include "nic/wire_group.h"
#include "nic/wire_line.h"
#include "nic/wire_peers.h"
#include "port/handover.h"
#include "port/udp_port.h"
#include "roce/reorder_buffer.h"
#include "roce/wire.h"
#include "wire/malformed.h"
#include "wire/packet.h"

namespace verbena::nic {

class Engine;
class Nic;
class Qp;
class WireQp;

class WireNic final : port::HandOver {
 public:
  WireNic(Nic& nic, Engine& engine);
  WireNic(const WireNic&) = delete;
  WireNic& operator=(const WireNic&) = delete;

  // Once, before anything else. False: there is no thread for it.
  bool start();
  // From now on packets for queue pairs of this slot of ours come here. Waits for the control
  // thread, with no lock held. False: there is no socket; the log says why.
  bool receive_for(SlotNumber slot);

  // From ibv_poll_cq and the NIC thread: takes what has come, if nobody else does just now. True:
  // there was something.
  bool poll();

  // The watcher's, while others poll.
  Nap& watcher_nap() { return nap_; }

  // From exit(): acknowledgements that wait for something to go along with leave now. The watcher
  // sends them, for the caller may hold any lock; waits for that, but not long.
  void leave();

  // -- for queue pairs, with their locks held
  port::Port& port() { return port_; }
  bool wants_time() const { return line_.wants_time(); }
  // For a queue pair in a conversation with another one of this host. Null: it does without.
  std::unique_ptr<port::UdpChannel> open_channel(const port::Route& route);
  // The same for long trains.
  std::unique_ptr<port::PageSender> open_pages(const port::Route& route) {
    return udp_.open_pages(route);
  }
  void closed_channel() { channels_.fetch_sub(1, std::memory_order_relaxed); }
  TrainPool& trains() { return trains_; }
  KeptTrains::Budget& kept_trains() { return kept_trains_; }
  WirePeers& peers() { return peers_; }
  roce::ReorderBudget& reorder_budget() { return reorder_budget_; }
  // Whether the process of this host that holds the slot takes more.
  bool has_room_at(SlotNumber slot) {
    if (gauges_.want(slot)) look_again();
    return gauges_.has_room(slot);
  }
  bool knows_room_at(SlotNumber slot) const { return gauges_.is_found(slot); }
  // A queue pair holds something back until it hears from its peer. Its program may poll no more.
  void expect_answers() {
    are_expected_.store(true, std::memory_order_relaxed);
    if (naps_long_.load(std::memory_order_relaxed)) nap_.end_if_napping();
  }
  // Somebody does the wire's work just now.
  void note_driver() { driven_at_.store(stamp(), std::memory_order_relaxed); }
  // For how long something takes: ticks, or nanoseconds where there are none.
  static std::uint64_t stamp();
  // A connection begins, or ends: while there is one, pollers look at the sockets, and the watcher
  // looks after descriptors, so that the first one wakes it.
  void connected() {
    if (connections_.fetch_add(1, std::memory_order_relaxed) == 0) look_again();
  }
  void disconnected() {
    connections_.fetch_sub(1, std::memory_order_relaxed);
    if (is_talking_.load(std::memory_order_relaxed)) end_talk();
  }

  // What has to be known of packets that come, for as long as there is somebody who wants it.
  void want(const port::Details& details) { count_wanted(details, 1); }
  void want_no_more(const port::Details& details) { count_wanted(details, -1); }

  // -- any thread, without a queue pair's lock (wire_multicast.cc)
  // What comes for the group goes to this queue pair as well.
  Result<void, Error> attach(const MulticastGroup& group, QpNum qp);
  Result<void, Error> detach(const MulticastGroup& group, QpNum qp);
  bool is_attached(QpNum qp) const { return multicast_.has(qp); }

  // A datagram of queue pair 1, whose head and route are given. Lossy.
  void send_management(const wire::Head& head, const port::Route& route,
                       std::span<const std::byte> mad);

  // -- the control thread
  WireGroup& group() { return group_; }
  // A packet that came to another process of this host. Empty: it is too long.
  static std::vector<std::byte> wrap(const port::Received& packet);
  static bool is_handed_over(std::span<const std::byte> message);
  void take_handed_over(std::span<const std::byte> message);

  struct Counters {
    std::atomic<std::uint64_t> corrupt{0};     // the ICRC is wrong
    std::atomic<std::uint64_t> malformed{0};   // and it is right
    std::atomic<std::uint64_t> nobody{0};      // no such queue pair, or it is not on the wire
    std::atomic<std::uint64_t> management{0};  // for queue pair 1
  };
  const Counters& counters() const { return counters_; }

 private:
  // The queue pair that gets packets just now, locked.
  class Recipient;

  static void* run_thread(void* wire);
  void watch();
  void wait_for_packets();
  std::size_t receive_patiently();
  std::size_t receive_what_lies();
  std::size_t receive_after_nap();
  void receive_while_they_come(std::size_t found);
  void tend_recording();
  bool wait_to_leave(const std::atomic<std::uint32_t>& undone, Instant limit);
  void look_again();
  void mend_sockets();
  struct Rest {
    bool is_ended = false;  // by somebody
    bool is_late = false;   // nobody has polled for a while
  };
  Rest nap();

  bool add_receiver(SlotNumber slot, UniqueFd socket);
  bool is_warm() const;
  // kSoon: a small answer may leave together with what the program posts on account of what came.
  enum class Answer : std::uint8_t { kNow, kSoon };
  // How many packets, at least: what other processes hand over counts for one.
  std::size_t receive(Answer when);
  void note_owing(QpNum number);
  void answer_owed();
  [[gnu::cold]] bool take_inbox();
  // How many of them, one at least.
  std::size_t take(std::span<port::Received> packets, Recipient& recipient, const Now& now);
  Qp* recipient_of(port::Received& packet, Recipient& recipient);
  void take_one(port::Received& packet, bool is_by_group, Qp& qp, const Now& now);
  [[gnu::cold]] void take_management(port::Received& packet);
  [[gnu::cold]] void take_malformed(const port::Received& packet, wire::Malformed why,
                                    const roce::Arrival& arrival, Qp& qp);
  std::size_t receive_run(std::span<const port::Received> packets, Qp& qp);
  void note_talk(const port::Received& packet, const WireQp& qp);
  [[gnu::cold]] void begin_talk(const port::Received& packet);
  [[gnu::cold]] void end_talk();
  void tend_talk();
  bool find_destination(port::Received& packet);
  [[gnu::cold]] bool guess_destination(port::Received& packet);
  void count_wanted(const port::Details& details, int by);
  [[gnu::cold]] void want_for_good();
  void take_multicast(const port::Received& packet);
  bool hand_over(SlotNumber owner, const port::Received& packet) override;

  Nic& nic_;
  Engine& engine_;
  port::UdpPort udp_;
  WireLine line_;
  port::Port& port_;
  WireGroup group_;
  TrainPool trains_;
  KeptTrains::Budget kept_trains_;
  WirePeers peers_;
  // What waits behind gaps, of all queue pairs. Where it does not suffice, packets come once more.
  static constexpr std::size_t kReorderBytes = 64 << 20;
  roce::ReorderBudget reorder_budget_{kReorderBytes};
  WireGauges gauges_;
  Counters counters_;
  MulticastGroups multicast_;

  Mutex wanted_lock_;  // after queue pairs' locks
  int wanted_destinations_ = 0;
  int wanted_marks_ = 0;
  std::atomic<bool> is_wanted_for_good_{false};

  Mutex joining_lock_;  // before everything else
  std::vector<SlotNumber> slots_;

  static constexpr std::uint32_t kChannelsMost = 64;  // each is a descriptor
  std::atomic<std::uint32_t> channels_{0};
  std::atomic<std::uint32_t> connections_{0};
  std::atomic<std::uint32_t> cold_polls_{0};  // since something came, up to a limit
  std::atomic<std::uint64_t> driven_at_{0};   // the last time, by stamp()
  std::atomic<std::uint64_t> busy_{0};        // in polls that received something, by stamp()

  Mutex receive_lock_;  // before queue pairs' locks
  static constexpr std::size_t kBatch = 64;
  std::array<port::Received, kBatch> batch_;
  WireFlows flows_;
  // Who has sent the last packets, short ones that came alone, from a process of this host.
  struct Talk {
    Gid from;
    std::uint16_t source_port = 0;
    unsigned packets = 0;
    unsigned enough = kTalk;
  };
  // So many in a row are a conversation.
  static constexpr unsigned kTalk = 512;
  Talk talk_;
  std::vector<QpNum> members_;              // of the group that a packet came for
  std::vector<QpNum> owing_;                // may have answers that wait
  std::atomic<std::uint32_t> is_owing_{0};  // there are such; a futex for whoever leaves
  std::atomic<bool> is_leaving_{false};
  std::atomic<std::uint32_t> is_unwritten_{0};  // the recording, when we leave; a futex as well
  // The watcher comes by soon, and sends answers that a program has left that polls no more.
  Nap nap_;
  std::atomic<bool> naps_long_{false};
  std::atomic<bool> are_expected_{false};  // answers, since the last nap
  std::atomic<bool> is_talking_{false};    // there is a socket for a conversation
  std::atomic<bool> ends_talk_{false};     // there is to be none

  Mutex inbox_lock_;
  std::vector<std::vector<std::byte>> inbox_;
  std::atomic<bool> has_inbox_{false};

  // The watcher's.
  WakePipe wake_;  // the sockets have changed
  WatchPace pace_;
  Instant lingers_again_;
  std::vector<pollfd> watched_;
};

}  // namespace verbena::nic
