// SPDX-License-Identifier: MIT
// This process among those that share UDP port 4791 (port/socket_group.h): it joins for a slot when
// the slot's socket is first wanted, one process of the host at a time.
//
//   fetch(slot) ──► control thread: JoinLock, links to all members, SocketGroup::join
//        ▲                                                            │
//        └────────── the socket, by a message to our own ◄────────────┘
//
// Members are told by names that they bind, `@verbena/wire/<slot>`, which the kernel takes back
// when they die.
//
// The group's sockets are in the control thread's descriptor table, where the program cannot close
// them. Whoever polls reads them, so the program's table needs a descriptor as well: it comes by a
// unix datagram to a name that only this process knows.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "base/time.h"
#include "base/types.h"
#include "base/unique_fd.h"
#include "host/control.h"
#include "nic/join_wait.h"
#include "port/socket_group.h"
#include "port/udp_port.h"

namespace verbena::nic {

class Links;

enum class WireError : std::uint8_t {
  kNone,
  kInUse,      // the UDP port is another user's, program's, or version's
  kNoSockets,  // the system gives none, or refuses
  kBusy,       // another process joins and does not come to an end
  kSilent,     // processes share the port, and none answers
  kNoAnswer,   // the control thread has ended, or takes too long
};
const char* to_string(WireError error);

class WireGroup final : port::GroupEvents {
 public:
  // `port` hears who holds which slot.
  WireGroup(host::Control& control, Links& links, port::UdpPort& port);
  WireGroup(const WireGroup&) = delete;
  WireGroup& operator=(const WireGroup&) = delete;

  // The socket of a slot of ours, in the caller's descriptor table. Joins the group if need be: a
  // few milliseconds, and as long as others are before us, up to a minute. Not on the control
  // thread, and without any lock that it takes.
  Result<UniqueFd, WireError> fetch(SlotNumber slot, RandomSource& random);
  // The socket of any slot of this host, to look at its receive buffer.
  Result<UniqueFd, WireError> fetch_peers(SlotNumber slot, RandomSource& random);

  // -- the control thread ------------------------------------------------------------------------
  static bool is_message(std::span<const std::byte> bytes);
  void message(host::PeerId from, std::span<const std::byte> bytes, host::PrivateFd attachment);
  void peer_down(host::PeerId id);
  void slot_answered(SlotNumber slot, host::PeerId holder);
  void slot_refused(SlotNumber slot, host::Refusal why);
  void tick(Instant now);
  Instant next_deadline() const;

 private:
  // Who waits for a socket, and under which name.
  struct Asker {
    sockaddr_un name{};
    socklen_t name_size = 0;
    std::uint64_t nonce = 0;
  };
  struct Answer {
    std::uint64_t nonce;
    std::uint32_t slot;
    std::uint32_t error;  // WireError
  };
  enum class Stage : std::uint8_t {
    kIdle,
    kLocking,   // somebody else joins
    kReaching,  // links to members are being made
    kJoining,
  };

  // Whose socket is asked for.
  enum class Whose : std::uint8_t { kOurs, kAnybodys };

  Result<UniqueFd, WireError> ask(SlotNumber slot, Whose whose, RandomSource& random);
  static UniqueFd make_mailbox(Asker& asker);
  static Result<UniqueFd, WireError> receive(int mailbox, std::uint64_t nonce, SlotNumber slot);
  static void tell(const Asker& asker, const Answer& answer, int socket);

  // The control thread.
  void want(SlotNumber slot, const Asker& asker);
  void show(SlotNumber slot, const Asker& asker);
  void begin(Instant now);
  void try_lock(Instant now);
  static std::vector<SlotNumber> marked_slots();
  void reach_members(Instant now);
  void join(Instant now);
  void finish(SlotNumber slot, WireError error, int socket);
  bool is_ours(SlotNumber slot) const { return markers_.contains(slot); }

  bool send(host::PeerId to, std::span<const std::byte> bytes,
            const host::PrivateFd* attachment) override;
  bool is_held(SlotNumber slot) override;
  void joined(SlotNumber slot, const host::PrivateFd& socket) override;
  void not_joined(SlotNumber slot, port::GroupError why) override;
  void steering_changed(const port::Steering& steering) override { port_.set_steering(steering); }

  host::Control& control_;
  Links& links_;  // has the control thread's time
  port::UdpPort& port_;
  std::optional<port::SocketGroup> group_;  // made on the control thread
  std::map<SlotNumber, host::PrivateFd> markers_;

  std::map<SlotNumber, std::vector<Asker>> askers_;
  Stage stage_ = Stage::kIdle;
  SlotNumber joining_;
  std::optional<port::JoinLock> lock_;
  std::optional<JoinWait> lock_wait_;
  Instant lonely_until_;
  Instant next_ = Instant::never();
  std::set<SlotNumber> reaching_;
  bool has_silent_ = false;  // somebody could not be reached
  std::set<host::PeerId> members_;
};

}  // namespace verbena::nic
