// SPDX-License-Identifier: MIT
// The processes of one host that share UDP port 4791, and the sockets by which they do.
//
// The kernel steers by the position of a socket in its reuseport group, and when a socket is closed
// for good the last one moves into its place. So every member holds every socket: a death closes
// none, the order stays, and the group only grows. A position whose slot nobody holds any more is
// taken over by the next newcomer together with its socket, so it grows to the number of processes
// that were there at the same time.
//
//   newcomer                                   each member
//     kAsk          ─────────────────────────►
//                   ◄─────────────────────────   kHolding  (digest)
//     kFetch        ─── to one with each digest ►
//                   ◄─────────────────────────   kSocket... kService... kAll
//     (its position: that of its slot, one of a slot nobody holds, or a new one at the end)
//     kHold         ─────────────────────────►   from now on it holds the socket
//                   ◄─────────────────────────   kHeld
//     bind, if the socket is new; attach the program
//
// The socket of a new position is bound only after everybody holds it: a newcomer that dies on the
// way leaves nothing in the kernel's group, and members forget a socket that never was bound. A
// member that does not answer in time is gone on without; what was sent to it is held by its queue.
// Whoever knows nothing of the group waits longer, in each of the first two steps, and then gives
// up: as its first it would take a position that is another's, and be deaf for good.
//
// A member that could not even be reached goes on with what it knew. Each position has a turn, one
// more for each newcomer that takes it, so that whoever asks such a member and others knows who is
// right: else it would take the socket of a living one for one that nobody has.
//
// Joining, and changing services, is done by one process at a time: under JoinLock, which the
// caller takes and gives back. The transport is the caller's, too. Everything here runs on the
// control thread, in whose descriptor table the sockets are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/types.h"
#include "host/descriptor_table.h"
#include "host/peer.h"
#include "host/private_fd.h"
#include "port/group_message.h"
#include "port/steering.h"
#include "port/udp_socket.h"

namespace verbena::port {

enum class GroupError : std::uint8_t {
  kInUse,      // the port is another user's or another program's
  kNoSockets,  // the system gives us none
  kFull,       // a socket for every slot there can be
  kDenied,     // a filter refuses
  kBusy,       // one join at a time
  kSilent,     // there are members, and none tells what the group holds
};
const char* to_string(GroupError error);

// What the group needs from its surroundings, and tells them.
class GroupEvents {
 public:
  // A message for a process on this host, with a copy of the descriptor. False: it is gone.
  virtual bool send(host::PeerId to, std::span<const std::byte> bytes,
                    const host::PrivateFd* attachment) = 0;
  // Whether a process holds this slot now. True when in doubt.
  virtual bool is_held(SlotNumber slot) = 0;

  // The end of join(), one of the two. The socket receives what is for the slot; it may hold
  // packets for its former owner.
  virtual void joined(SlotNumber slot, const host::PrivateFd& socket) = 0;
  virtual void not_joined(SlotNumber slot, GroupError why) = 0;
  // Who holds what, or a service, changed.
  virtual void steering_changed(const Steering& steering) = 0;

 protected:
  ~GroupEvents() = default;
};

struct GroupOptions {
  std::uint16_t port = kRocePort;
  ReceiverOptions receiver{};
  Duration patience = Duration::milliseconds(500);  // for members to answer, at each step
  // Of the control thread; none: descriptors are the calling thread's as they are.
  host::DescriptorTable* table = nullptr;
};

class SocketGroup {
 public:
  SocketGroup(GroupEvents& events, GroupOptions options);
  SocketGroup(const SocketGroup&) = delete;
  SocketGroup& operator=(const SocketGroup&) = delete;
  ~SocketGroup();

  // Under JoinLock until joined() or not_joined(), which may come at once. `members`: every process
  // on this host that is in the group, as far as is known. A process may join for several slots,
  // one after the other.
  void join(SlotNumber slot, std::span<const host::PeerId> members, Instant now);
  bool is_joining() const { return join_ != nullptr; }

  // Under JoinLock. A service of a slot of ours; the members are told. False: there is no room, or
  // the service is another living slot's.
  bool serve(Service service, std::span<const host::PeerId> members);
  void stop_serving(Service service, std::span<const host::PeerId> members);

  // A message of another process's group, hostile.
  void message(host::PeerId from, std::span<const std::byte> bytes, host::PrivateFd attachment,
               Instant now);
  void peer_down(host::PeerId peer, Instant now);
  // At next_deadline() or later.
  void tick(Instant now);
  Instant next_deadline() const;

  const Steering& steering() const { return steering_; }
  // Positions whose socket we hold.
  std::size_t size() const;
  // The socket of a slot that we joined for; none if we did not.
  const host::PrivateFd* socket_of(SlotNumber slot) const;
  // The same of any member's slot, so that its receive buffer can be looked at.
  const host::PrivateFd* socket_for(SlotNumber slot) const;

  struct Stats {
    std::uint64_t malformed = 0;    // messages
    std::uint64_t unexpected = 0;   // messages that make no sense now
    std::uint64_t bad_sockets = 0;  // attachments that are no socket of the group
    std::uint64_t conflicts = 0;    // two sockets for one position
    std::uint64_t silent_members = 0;
    std::uint64_t unsteered = 0;  // times that the kernel refused the program
  };
  const Stats& stats() const { return stats_; }

 private:
  struct Held {
    host::PrivateFd socket;
    std::uint64_t cookie = 0;
    SlotNumber slot;
    bool is_ours = false;
    bool is_bound = false;   // as last seen
    std::uint64_t turn = 0;  // of its holder
  };
  struct Join;

  host::PrivateFd own(int fd) const;
  bool belongs(const SocketFacts& facts) const;
  bool is_bound(const Held& held) const;

  // As a member (group_member.cc).
  void answer_ask(host::PeerId to, const GroupMessage& ask);
  void answer_fetch(host::PeerId to, const GroupMessage& fetch);
  void answer_hold(host::PeerId to, const GroupMessage& hold, host::PrivateFd socket);
  bool hold(const GroupMessage& says, host::PrivateFd socket);
  void change_service(const GroupMessage& says);
  void forget_unbound();
  std::uint64_t digest() const;

  // As a newcomer.
  void take_answer(host::PeerId from, const GroupMessage& says, host::PrivateFd socket,
                   Instant now);
  void keep(const GroupMessage& says, host::PrivateFd socket);
  bool is_news(const Held& held, const GroupMessage& says);
  bool is_worth_waiting(Instant now) const;
  bool is_member() const;
  bool is_ignorant() const;
  void fetch(Instant now);
  bool ask_for_sockets(Instant now);
  void proceed(Instant now);
  Result<std::uint16_t, GroupError> choose_position();
  void spread(Instant now);
  void finish();
  void fail(GroupError why);

  void tell(std::span<const host::PeerId> members, const GroupMessage& message);
  void refresh_steering();
  void attach();

  GroupEvents& events_;
  const GroupOptions options_;
  std::uint64_t network_ = 0;
  std::map<std::uint16_t, Held> held_;  // by position
  Steering steering_;
  std::unique_ptr<Join> join_;
  std::uint32_t round_ = 0;
  Stats stats_;
};

// Held by who joins: an abstract unix name, which the kernel gives back however its holder ends.
class JoinLock {
 public:
  static constexpr std::string_view kName = "verbena/join";

  // Empty: somebody else has it (try again a little later, and give up in the end: the holder may
  // be stopped), or the system gives us no socket.
  static std::optional<JoinLock> try_take(std::string_view name = kName);
  int descriptor() const { return socket_.get(); }

 private:
  explicit JoinLock(host::PrivateFd socket) : socket_(std::move(socket)) {}
  host::PrivateFd socket_;
};

}  // namespace verbena::port
