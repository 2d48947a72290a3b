// SPDX-License-Identifier: MIT
// The states of a connection, and what each does with each message, time-out and command (IBTA vol
// 1, 12.9): one table, which the engine follows and the tests print.
//
//   active    connect ─► REQUEST SENT ─► REPLY WAIT ─► REPLY RECEIVED ─► ESTABLISHED
//                          REP ╰────────────────────────────▲    confirm
//   passive   REQ ─► REQUEST RECEIVED ─► REPLY SENT ─► READY WAIT ─► ESTABLISHED
//                                accept          RTU ╰─────────────────▲
//   both      ESTABLISHED ─► DISCONNECT SENT ─► TIME WAIT ─► CLOSED
//                       DREQ ╰───────────────────────▲
//   datagrams resolve ─► RESOLVING ─► CLOSED;   SIDR_REQ ─► RESOLVE RECEIVED ─► TIME WAIT
//
// REJ, or silence after all retries, leads from everything before ESTABLISHED to TIME WAIT. An MRA
// leads to the states that wait longer. In TIME WAIT a connection still answers what was on its
// way; CLOSED is only kept until its owner releases it.
//
// Where this differs from chapter 12: an RTU for a connection that we do not have is answered by a
// REJ, so that the peer learns of it; a DREQ is answered without asking the consumer; a DREQ that
// overtakes its RTU is both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::cm {

enum class State : std::uint8_t {
  kNone,             // no connection of ours is meant
  kRequestSent,      // REQ Sent
  kReplyWait,        // MRA for it came
  kReplyReceived,    // REP Rcvd, MRA(REP) Sent: the consumer decides
  kRequestReceived,  // REQ Rcvd, MRA(REQ) Sent: the consumer decides
  kReplySent,        // REP Sent
  kReadyWait,        // MRA for it came
  kEstablished,
  kDisconnectSent,   // DREQ Sent
  kTimeWait,         // also of what was rejected, or answered for a datagram service
  kClosed,           // nothing but the consumer's id
  kResolving,        // SIDR_REQ sent
  kResolveReceived,  // SIDR_REQ received: the consumer decides
};
inline constexpr std::size_t kStates = 13;

enum class Input : std::uint8_t {
  kReq,
  kMra,
  kRej,
  kRep,
  kRtu,
  kDreq,
  kDrep,
  kLap,
  kApr,
  kSidrReq,
  kSidrRep,
  kTimer,
  kStale,  // the peer asks for a connection with the queue pair, or the id, of this one
  kConfirm,
  kAccept,
  kTraffic,
  kAnswer,
  kReject,
  kAskForTime,
  kDisconnect,
  kRelease,
};
inline constexpr std::size_t kInputs = 21;

enum class Action : std::uint8_t {
  kIgnore,  // a message that comes late, twice, or out of place
  kRefuse,  // a command that does not fit
  kAllow,   // one that does
  // Messages.
  kTakeRequest,
  kTakeReply,
  kTakeRejection,
  kTakeResolveRequest,
  kTakeResolution,
  kWaitLonger,
  kAskForTime,
  kEstablish,
  kTakeDisconnect,
  kTakeLateDisconnect,  // it says that our REP arrived, too
  kTakeDisconnectAnswer,
  kTakeUnknown,      // the peer has no such connection
  kRepeat,           // what was said last
  kRepeatRejection,  // if that was a REJ
  kDeny,             // by the REJ that was said last, or one for an unknown id
  kAnswerDisconnect,
  kRefusePath,
  // Time.
  kRetry,
  kEndTimeWait,
  // The peer has forgotten it.
  kDropHalfOpen,
  kDropEstablished,
  kDropDisconnecting,  // which is as good as an answer to our DREQ
  // Release.
  kWithdraw,         // REJ for want of time: the peer may not know our id yet
  kTurnDown,         // REJ, or SIDR_REP that rejects
  kWindDown,         // the peer may be established already: DREQ when it says so
  kStartDisconnect,  // DREQ
  kLetGo,            // it ends by itself
  kForget,           // at once
};

// A row of the table.
struct Rule {
  State state;
  Input input;
  Action action;
};

Action action_for(State state, Input input);

constexpr bool is_command(Input input) { return input >= Input::kConfirm; }

const char* name_of(State state);
const char* name_of(Input input);
const char* name_of(Action action);

// How often each cell of the table was used.
class Coverage {
 public:
  void count(State state, Input input) { ++cell(state, input); }
  std::uint64_t operator()(State state, Input input) const {
    return cells_[static_cast<std::size_t>(state)][static_cast<std::size_t>(input)];
  }
  void add(const Coverage& other);

 private:
  std::uint64_t& cell(State state, Input input) {
    return cells_[static_cast<std::size_t>(state)][static_cast<std::size_t>(input)];
  }
  std::array<std::array<std::uint64_t, kInputs>, kStates> cells_{};
};

}  // namespace verbena::cm
