// SPDX-License-Identifier: MIT
#include "cm/types.h"

namespace verbena::cm {

const char* name_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNoSuchId: return "no such id";
    case Refusal::kWrongState: return "wrong state";
    case Refusal::kNoRoom: return "no room";
    case Refusal::kInUse: return "in use";
    case Refusal::kTooLong: return "too long";
    case Refusal::kInvalid: return "invalid";
  }
  return "unknown";
}

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::kRequest: return "request";
    case EventKind::kReply: return "reply";
    case EventKind::kEstablished: return "established";
    case EventKind::kRejected: return "rejected";
    case EventKind::kUnreachable: return "unreachable";
    case EventKind::kDisconnected: return "disconnected";
    case EventKind::kTimeWaitOver: return "time wait over";
    case EventKind::kResolveRequest: return "resolve request";
    case EventKind::kResolved: return "resolved";
  }
  return "unknown";
}

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::kNone: return "none";
    case Ending::kPeer: return "by the peer";
    case Ending::kAnswered: return "answered";
    case Ending::kSilence: return "silence";
    case Ending::kUnknown: return "unknown to the peer";
    case Ending::kStale: return "stale";
    case Ending::kNobody: return "nobody is there";
  }
  return "unknown";
}

}  // namespace verbena::cm
