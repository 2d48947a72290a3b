// SPDX-License-Identifier: MIT
#include "cm/state.h"

namespace verbena::cm {
namespace {

using enum Action;
using S = State;
using I = Input;

// What is not here is ignored (messages, time) or refused (commands).
constexpr Rule kRules[] = {
    {S::kNone, I::kReq, kTakeRequest},
    {S::kNone, I::kRep, kDeny},
    {S::kNone, I::kRtu, kDeny},
    {S::kNone, I::kDreq, kAnswerDisconnect},
    {S::kNone, I::kLap, kRefusePath},
    {S::kNone, I::kSidrReq, kTakeResolveRequest},

    {S::kRequestSent, I::kMra, kWaitLonger},
    {S::kRequestSent, I::kRej, kTakeRejection},
    {S::kRequestSent, I::kRep, kTakeReply},
    {S::kRequestSent, I::kTimer, kRetry},
    {S::kRequestSent, I::kRelease, kWithdraw},

    {S::kReplyWait, I::kMra, kWaitLonger},
    {S::kReplyWait, I::kRej, kTakeRejection},
    {S::kReplyWait, I::kRep, kTakeReply},
    {S::kReplyWait, I::kTimer, kRetry},
    {S::kReplyWait, I::kRelease, kWithdraw},

    {S::kReplyReceived, I::kRej, kTakeRejection},
    {S::kReplyReceived, I::kRep, kAskForTime},
    {S::kReplyReceived, I::kDreq, kTakeDisconnect},
    {S::kReplyReceived, I::kStale, kDropHalfOpen},
    {S::kReplyReceived, I::kConfirm, kAllow},
    {S::kReplyReceived, I::kReject, kAllow},
    {S::kReplyReceived, I::kAskForTime, kAllow},
    {S::kReplyReceived, I::kRelease, kTurnDown},

    {S::kRequestReceived, I::kReq, kAskForTime},
    {S::kRequestReceived, I::kRej, kTakeRejection},
    {S::kRequestReceived, I::kStale, kDropHalfOpen},
    {S::kRequestReceived, I::kAccept, kAllow},
    {S::kRequestReceived, I::kReject, kAllow},
    {S::kRequestReceived, I::kAskForTime, kAllow},
    {S::kRequestReceived, I::kRelease, kTurnDown},

    {S::kReplySent, I::kReq, kRepeat},
    {S::kReplySent, I::kMra, kWaitLonger},
    {S::kReplySent, I::kRej, kTakeRejection},
    {S::kReplySent, I::kRtu, kEstablish},
    {S::kReplySent, I::kDreq, kTakeLateDisconnect},
    {S::kReplySent, I::kTimer, kRetry},
    {S::kReplySent, I::kStale, kDropHalfOpen},
    {S::kReplySent, I::kTraffic, kAllow},
    {S::kReplySent, I::kRelease, kWindDown},

    {S::kReadyWait, I::kReq, kRepeat},
    {S::kReadyWait, I::kMra, kWaitLonger},
    {S::kReadyWait, I::kRej, kTakeRejection},
    {S::kReadyWait, I::kRtu, kEstablish},
    {S::kReadyWait, I::kDreq, kTakeLateDisconnect},
    {S::kReadyWait, I::kTimer, kRetry},
    {S::kReadyWait, I::kStale, kDropHalfOpen},
    {S::kReadyWait, I::kTraffic, kAllow},
    {S::kReadyWait, I::kRelease, kWindDown},

    {S::kEstablished, I::kRej, kTakeUnknown},
    {S::kEstablished, I::kRep, kRepeat},  // the RTU
    {S::kEstablished, I::kDreq, kTakeDisconnect},
    {S::kEstablished, I::kLap, kRefusePath},
    {S::kEstablished, I::kStale, kDropEstablished},
    {S::kEstablished, I::kDisconnect, kAllow},
    {S::kEstablished, I::kRelease, kStartDisconnect},

    {S::kDisconnectSent, I::kRej, kTakeUnknown},
    {S::kDisconnectSent, I::kRep, kRepeat},  // the DREQ, which stands for the RTU
    {S::kDisconnectSent, I::kDreq, kTakeDisconnect},
    {S::kDisconnectSent, I::kDrep, kTakeDisconnectAnswer},
    {S::kDisconnectSent, I::kLap, kRefusePath},
    {S::kDisconnectSent, I::kTimer, kRetry},
    {S::kDisconnectSent, I::kStale, kDropDisconnecting},
    {S::kDisconnectSent, I::kRelease, kLetGo},

    {S::kTimeWait, I::kReq, kRepeatRejection},
    {S::kTimeWait, I::kRep, kDeny},
    {S::kTimeWait, I::kRtu, kRepeatRejection},
    {S::kTimeWait, I::kDreq, kAnswerDisconnect},
    {S::kTimeWait, I::kLap, kRefusePath},
    {S::kTimeWait, I::kSidrReq, kRepeat},
    {S::kTimeWait, I::kTimer, kEndTimeWait},
    {S::kTimeWait, I::kRelease, kLetGo},

    {S::kClosed, I::kRep, kDeny},
    {S::kClosed, I::kRtu, kDeny},
    {S::kClosed, I::kDreq, kAnswerDisconnect},
    {S::kClosed, I::kLap, kRefusePath},
    {S::kClosed, I::kRelease, kForget},

    {S::kResolving, I::kSidrRep, kTakeResolution},
    {S::kResolving, I::kTimer, kRetry},
    {S::kResolving, I::kRelease, kForget},

    {S::kResolveReceived, I::kAnswer, kAllow},
    {S::kResolveReceived, I::kRelease, kTurnDown},
};

using Table = std::array<std::array<Action, kInputs>, kStates>;

constexpr std::size_t at(State state) { return static_cast<std::size_t>(state); }
constexpr std::size_t at(Input input) { return static_cast<std::size_t>(input); }

constexpr Table kTable = [] {
  Table table{};
  for (auto& row : table) {
    for (std::size_t i = 0; i < kInputs; ++i)
      row[i] = is_command(static_cast<Input>(i)) ? kRefuse : kIgnore;
  }
  for (const Rule& rule : kRules)
    table[at(rule.state)][at(rule.input)] = rule.action;
  return table;
}();

// Every rule is there once.
constexpr bool rules_differ() {
  for (const Rule& a : kRules) {
    int same = 0;
    for (const Rule& b : kRules)
      same += a.state == b.state && a.input == b.input ? 1 : 0;
    if (same != 1) return false;
  }
  return true;
}
static_assert(rules_differ());

}  // namespace

Action action_for(State state, Input input) { return kTable[at(state)][at(input)]; }

const char* name_of(State state) {
  constexpr const char* kNames[kStates] = {
      "none",       "request sent", "reply wait",       "reply received",  "request received",
      "reply sent", "ready wait",   "established",      "disconnect sent", "time wait",
      "closed",     "resolving",    "resolve received",
  };
  return kNames[at(state)];
}

const char* name_of(Input input) {
  constexpr const char* kNames[kInputs] = {
      "REQ",    "MRA",     "REJ",      "REP",      "RTU",          "DREQ",       "DREP",
      "LAP",    "APR",     "SIDR_REQ", "SIDR_REP", "timer",        "stale",      "confirm",
      "accept", "traffic", "answer",   "reject",   "ask for time", "disconnect", "release",
  };
  return kNames[at(input)];
}

const char* name_of(Action action) {
  switch (action) {
    case kIgnore: return "ignore";
    case kRefuse: return "refuse";
    case kAllow: return "allow";
    case kTakeRequest: return "take request";
    case kTakeReply: return "take reply";
    case kTakeRejection: return "take rejection";
    case kTakeResolveRequest: return "take resolve request";
    case kTakeResolution: return "take resolution";
    case kWaitLonger: return "wait longer";
    case kAskForTime: return "ask for time";
    case kEstablish: return "establish";
    case kTakeDisconnect: return "take disconnect";
    case kTakeLateDisconnect: return "take late disconnect";
    case kTakeDisconnectAnswer: return "take disconnect answer";
    case kTakeUnknown: return "take unknown";
    case kRepeat: return "repeat";
    case kRepeatRejection: return "repeat rejection";
    case kDeny: return "deny";
    case kAnswerDisconnect: return "answer disconnect";
    case kRefusePath: return "refuse path";
    case kRetry: return "retry";
    case kEndTimeWait: return "end time wait";
    case kDropHalfOpen: return "drop half open";
    case kDropEstablished: return "drop established";
    case kDropDisconnecting: return "drop disconnecting";
    case kWithdraw: return "withdraw";
    case kTurnDown: return "turn down";
    case kWindDown: return "wind down";
    case kStartDisconnect: return "start disconnect";
    case kLetGo: return "let go";
    case kForget: return "forget";
  }
  return "unknown";
}

void Coverage::add(const Coverage& other) {
  for (std::size_t s = 0; s < kStates; ++s) {
    for (std::size_t i = 0; i < kInputs; ++i)
      cells_[s][i] += other.cells_[s][i];
  }
}

}  // namespace verbena::cm
