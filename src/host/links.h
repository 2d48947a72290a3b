// SPDX-License-Identifier: MIT
// All links of this process, and the greeting that brings them up (greeting.h shows it).
//
//            connect()                accept()
//                │                        │
//            kHelloSent             kAwaitingHello
//      Welcome   │ send Ready     Hello   │ send Welcome
//                │                    kWelcomed
//                │                Ready   │
//                └────────► kUp ◄─────────┘          anything unexpected, end, time: ─► kOver
//
// Two processes that ask each other at the same time make two links; one must go, and the same one
// on both sides. Whoever gets a Hello while a link with that process is kUp or kWelcomed refuses
// it as a duplicate. Where both have already sent Welcome, each sees it when the other's Welcome
// comes, and both keep the link that was asked for by the process of smaller id. A side brings a
// link up only after the other has sent Welcome on it, that is, decided for it, so the two never
// decide differently.
//
// Used on the control thread only. Callbacks to ControlEvents happen in tend() and ready(), never
// in connect() or send(); what they call here changes no container that is being walked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "base/types.h"
#include "host/control.h"
#include "host/descriptor_table.h"
#include "host/greeting.h"
#include "host/link.h"
#include "host/peer.h"
#include "host/poller.h"
#include "host/shared_memory.h"
#include "host/slots.h"

namespace verbena::host {

// What we show in greetings.
struct Identity {
  ProcessId id;
  const std::uint64_t* nonce = nullptr;
  int page_fd = -1;
  int pidfd = -1;  // only where forked children may keep our links open
};

class Links {
 public:
  Links(ControlEvents& events, const ControlOptions& options, DescriptorTable& table,
        Poller& poller)
      : events_(events), options_(options), table_(table), poller_(poller) {}
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  void introduce(const Identity& identity) { identity_ = identity; }
  // A slot that we listen on. Linked peers are told.
  void add_own_slot(SlotNumber slot);
  const SlotSet& own_slots() const { return own_slots_; }

  // The time for everything that follows.
  void begin(Instant now) { now_ = now; }

  void connect(SlotNumber slot);
  bool send(PeerId to, std::span<const std::byte> bytes, const PrivateFd* attachment);
  bool has_queued(PeerId to) const;
  std::optional<PeerId> holder(SlotNumber slot) const;

  // A connection to one of our slots. Only while can_greet().
  void accept(PrivateFd socket);
  // What we ask of others does not count: they would all wait for each other to accept.
  bool can_greet() const { return accepted_ < kGreetingMax; }
  // The link can be read, or its end be seen, or be written.
  void ready(std::uint32_t number, bool writable);
  void process_ended(std::uint32_t number);
  // What is due: retries, deadlines, ended links, answers.
  void tend();
  Instant next_deadline() const;
  // All links are lost.
  void drop_all();
  // There will be no turn any more: who is wanted is not reached.
  void end();

 private:
  static constexpr unsigned kGreetingMax = 64;
  static constexpr unsigned kFramesPerTurn = 16;
  // Of a process that ended: more than a socket holds. Its children may still write to it.
  static constexpr unsigned kLastFramesMax = 4096;

  enum class Stage : std::uint8_t { kHelloSent, kAwaitingHello, kWelcomed, kUp, kOver };
  struct Entry {
    Link link;
    Stage stage;
    std::uint32_t number;
    pid_t pid;
    Instant give_up;                   // of the greeting
    std::optional<SlotNumber> wanted;  // what we asked for, if we asked
    SlotSet told;                      // which of our slots the peer knows
    Greeting greeting;                 // the peer's
    SharedMemory page;                 // the peer's, until a Peer has it
    PrivateFd process;                 // the peer's pidfd, if it sent one
    bool was_up = false;
    bool watches_writable = false;
  };
  // A connect() that has no answer yet.
  struct Wanted {
    Instant give_up;
    Instant next_try;
    Duration pause = Duration::milliseconds(1);
    std::uint32_t attempt = 0;  // the link that is being made for it
  };
  struct Answer {
    SlotNumber slot;
    std::optional<PeerId> reached;
    Refusal why{};
  };

  Entry* find(std::uint32_t number);
  Entry* find(PeerId id, const Entry& but);
  Entry& add(PrivateFd socket, Stage stage, pid_t pid);
  void drop(Entry& entry);
  void greeted(const Entry& entry);
  void refuse_and_drop(Entry& entry, RefuseReason reason);
  bool send_frame(Entry& entry, FrameType type, std::span<const std::byte> body,
                  std::span<const int> fds, std::uint32_t detail = 0);
  bool send_greeting(Entry& entry, FrameType type);
  void tell_slots(Entry& entry);
  void update_interest(Entry& entry);

  void receive(Entry& entry, unsigned frames_max);
  void handle(Entry& entry);
  void reject(Entry& entry, Malformed why);
  void on_greeting_frame(Entry& entry, const Frame& frame);
  void on_hello(Entry& entry, const Frame& frame);
  void on_welcome(Entry& entry, const Frame& frame);
  void on_refuse(Entry& entry, std::uint32_t reason);
  void on_frame_of_peer(Entry& entry, const Frame& frame);
  bool take_greeting(Entry& entry, const Frame& frame);
  void come_up(Entry& entry);

  void try_connect(SlotNumber slot, Wanted& wanted);
  void retry_later(Wanted& wanted);
  void answer(SlotNumber slot, std::optional<PeerId> reached, Refusal why);
  void tend_entries();
  void sweep();
  void tell_answers();
  void tend_wanted();

  ControlEvents& events_;
  const ControlOptions& options_;
  DescriptorTable& table_;
  Poller& poller_;
  Identity identity_;
  SlotSet own_slots_;
  Instant now_;

  std::unordered_map<std::uint32_t, Entry> entries_;
  std::map<PeerId, std::uint32_t> up_;
  std::map<SlotNumber, Wanted> wanted_;
  std::vector<std::uint32_t> over_;
  std::vector<Answer> answers_;
  std::uint32_t last_number_ = 0;
  unsigned greeting_ = 0;    // entries that are neither up nor over
  unsigned accepted_ = 0;    // those of them that others asked for
  bool is_starved_ = false;  // some link is
  Received received_;
};

}  // namespace verbena::host
