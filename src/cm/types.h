// SPDX-License-Identifier: MIT
// What goes in and out of the connection manager (cm/engine.h): who is meant, what happened, what
// is refused.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/time.h"
#include "base/types.h"
#include "wire/cm.h"

namespace verbena::cm {

// A connection of ours, or one resolution of a service (SIDR): its local communication id. The
// upper ten bits are our slot, so that answers find our process (port/steering.h); the others are
// random.
struct CommId {
  std::uint32_t value = 0;
  static constexpr unsigned kSlotShift = 22;
  static constexpr CommId of(SlotNumber slot, std::uint64_t random) {
    return {std::uint32_t{slot.value} << kSlotShift |
            (static_cast<std::uint32_t>(random) & ((1u << kSlotShift) - 1))};
  }
  friend constexpr auto operator<=>(CommId, CommId) = default;
};

struct ListenerId {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(ListenerId, ListenerId) = default;
};

// Between whose queue pairs 1 a MAD goes.
struct Route {
  std::uint32_t port = 0;  // which of its ports the caller means; it is only handed back
  Gid local{};
  Gid remote{};
  std::uint8_t traffic_class = 0;
  friend constexpr bool operator==(const Route&, const Route&) = default;
};

// A MAD to be sent. It may be lost: what matters is sent again.
struct Mad {
  Route route;
  std::array<std::byte, wire::kMadBytes> bytes{};
  // Whose REQ or SIDR_REQ this is, sent once more because nothing came. Else 0.
  CommId asks{};
};

// Which requests a listener takes. Where several want one, the longest prefix has it, then the one
// that names a port, then the longest mask.
struct Listening {
  static constexpr std::uint32_t kAnyPort = ~0u;

  std::uint64_t service_id = 0;
  std::uint64_t service_mask = ~std::uint64_t{0};  // which bits of the service id count
  Gid local{};                                     // an address of ours ...
  std::uint8_t local_prefix = 0;                   // ... of which that many bits count; 0: any
  std::uint32_t port = kAnyPort;
  bool connections = true;      // takes REQ
  bool datagrams = true;        // takes SIDR_REQ
  std::uint32_t backlog = 128;  // requests that nobody has taken or answered yet; at least 1
  std::uint64_t tag = 0;        // handed back in events
  friend constexpr bool operator==(const Listening&, const Listening&) = default;
};

enum class EventKind : std::uint8_t {
  kRequest,         // passive: REQ came (message: Req). accept(), reject() or release()
  kReply,           // active: REP came (Rep). confirm(), reject() or release()
  kEstablished,     // passive: RTU came (Rtu), or traffic, or a DREQ that says as much (no message)
  kRejected,        // REJ came (Rej), or the peer's queue pair is another's (no message)
  kUnreachable,     // no answer to all our REQs, REPs or SIDR_REQs
  kDisconnected,    // `ending` says how. Message Dreq, Drep or Rej when one came
  kTimeWaitOver,    // the queue pair may be used again (12.9.8.4)
  kResolveRequest,  // passive: SIDR_REQ came (SidrReq). answer() or release()
  kResolved,        // active: SIDR_REP came (SidrRep), of whatever status
};
inline constexpr std::size_t kEventKinds = 9;

enum class Ending : std::uint8_t {
  kNone,      // nothing has ended
  kPeer,      // the peer disconnected; it has been answered
  kAnswered,  // we disconnected, and the peer has answered
  kSilence,   // we disconnected, and the peer never answered
  kUnknown,   // the peer knows nothing of the connection (any more)
  kStale,     // the peer uses its queue pair for another connection: it has forgotten this one
  kNobody,    // of kUnreachable: the caller said that nobody is there
};

// Each connection gives at most one event of a kind; kEstablished (or kReply) goes before
// kDisconnected; of kRejected, kUnreachable and kDisconnected there is at most one, and after it
// only kTimeWaitOver.
struct Event {
  EventKind kind = EventKind::kRequest;
  Ending ending = Ending::kNone;
  bool has_message = false;
  CommId id;
  ListenerId listener;    // of kRequest and kResolveRequest
  std::uint64_t tag = 0;  // the connection's; of kRequest and kResolveRequest the listener's
  Route route;            // the connection's
  wire::CmMessage message;
};

// Why a command is refused. Nothing has happened then.
enum class Refusal : std::uint8_t {
  kNoSuchId,    // not ours, or released
  kWrongState,  // too early, or too late: an event says or will say why
  kNoRoom,      // a limit is reached
  kInUse,       // another listener takes the same requests
  kTooLong,     // more private data or additional information than fits
  kInvalid,     // a field has a value that cannot be sent
};
const char* name_of(Refusal refusal);
const char* name_of(EventKind kind);
const char* name_of(Ending ending);

// For reject().
struct Rejection {
  wire::RejReason reason = wire::RejReason::kConsumer;
  std::span<const std::byte> info{};          // at most 72 bytes
  std::span<const std::byte> private_data{};  // at most 148 bytes
};

// How often and how long a SIDR_REQ is sent.
struct Patience {
  std::uint8_t response_timeout = 20;  // 4.096 us * 2^n
  std::uint8_t retries_max = 15;
};

// Limits and habits, fixed when the engine opens.
struct Settings {
  SlotNumber slot{};                       // in our communication ids
  std::uint32_t connections_max = 65'536;  // that the caller has not released, or that still talk
  std::uint32_t time_wait_max = 65'536;    // beyond these, the oldest one ends early
  std::uint32_t listeners_max = 1'024;
  std::uint32_t outgoing_max = 4'096;  // MADs that wait for next_mad(); more are lost
  std::uint8_t service_timeout = 24;   // asked for by MRA when the caller takes long: 69 s
  // The first resend comes after so long where the peer may take longer: a lost MAD costs that,
  // and not the 4 s of the usual timeouts. It does not count as a retry.
  Duration early_resend = Duration::milliseconds(250);
  Duration wait_max = Duration::seconds(300);  // for one answer, whatever the peer asks for
  // From the first REQ or SIDR_REQ to its answer, however often the peer asks for time.
  Duration asking_max = Duration::seconds(300);
  Duration time_wait_longest = Duration::seconds(20);
};

// How often something happened. For traces and tests.
struct Counters {
  std::uint64_t received = 0;
  std::uint64_t sent = 0;        // resends included
  std::uint64_t resent = 0;      // by a timer
  std::uint64_t malformed = 0;   // no MAD of ours, or of no version or attribute that we know
  std::uint64_t unmatched = 0;   // about a connection that we do not have
  std::uint64_t duplicates = 0;  // requests that came again
  std::uint64_t stale = 0;       // connections that their peer had forgotten
  std::uint64_t refused = 0;     // requests without a listener, or beyond a backlog or limit
  std::uint64_t too_late = 0;    // requests whose listener had just gone: not answered
  std::uint64_t outgoing_lost = 0;
  std::uint64_t time_wait_cut = 0;  // ended early for want of room
};

// 4.096 us * 2^n, as timeouts are encoded (12.7.3).
constexpr Duration time_of(std::uint8_t exponent) {
  return Duration::nanoseconds(std::int64_t{4096} << (exponent & 31u));
}

}  // namespace verbena::cm
