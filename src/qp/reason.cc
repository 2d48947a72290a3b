// SPDX-License-Identifier: MIT
#include "qp/reason.h"

namespace verbena::qp {

namespace {

struct Text {
  Reason reason;
  std::string_view text;
};

constexpr Text kTexts[] = {
    {Reason::kNone, "nothing went wrong"},
    {Reason::kUnknownOpcode, "the work request has an opcode that does not exist"},
    {Reason::kOpcodeNotForType, "this type of queue pair does not have this operation"},
    {Reason::kTooManySges, "the work request has more SGEs than its queue was created for"},
    {Reason::kInlineTooLong,
     "the work request has more inline data than its queue was created for"},
    {Reason::kMessageTooLong, "the message is longer than 1 GiB"},
    {Reason::kDatagramTooLong, "the datagram is longer than the path MTU"},
    {Reason::kAtomicNotEightBytes, "an atomic needs SGEs of 8 bytes together"},
    {Reason::kNoReadsAllowed, "READ or atomic, but max_rd_atomic of the queue pair is 0"},
    {Reason::kInvalidateRefused, "local invalidate of a key that is not a memory window"},
    {Reason::kLocalKey, "an SGE's lkey names no memory region, or one that was deregistered"},
    {Reason::kLocalDomain, "an SGE's lkey belongs to another protection domain"},
    {Reason::kLocalRange, "an SGE reaches outside its memory region"},
    {Reason::kLocalPermission, "an SGE's memory region does not allow local write"},
    {Reason::kLocalFault, "the memory behind an SGE is not there (unmapped or protected)"},
    {Reason::kPeerNotReady, "the peer had no receive posted, until rnr_retry was used up"},
    {Reason::kPeerInvalidRequest,
     "the peer refused: its receive is too short, or its queue pair does not allow the operation"},
    {Reason::kPeerAccess, "the peer refused: rkey, range, protection domain or access rights"},
    {Reason::kPeerOperation, "the peer could not do it: its own receive or memory was bad"},
    {Reason::kPeerSilent, "no answer from the peer, until retry_cnt was used up"},
    {Reason::kPeerLost, "the peer is gone: its process ended or its queue pair was destroyed"},
    {Reason::kAnswerTooLong, "the peer answered a READ or an atomic with too many bytes"},
    {Reason::kFlushedAfterFailure, "flushed, because an earlier work request failed"},
    {Reason::kFlushedByModify, "flushed, because the queue pair is in its error state"},
    {Reason::kFlushedReceive, "a receive flushed, because the queue pair is in its error state"},
    {Reason::kNotReceiving, "a message came in a state that does not receive"},
    {Reason::kNoReceivePosted, "a message came and no receive was posted"},
    {Reason::kReceiveTooShort, "a message came that is longer than the receive posted for it"},
    {Reason::kOperationNotEnabled,
     "the queue pair's access flags do not allow the peer's operation"},
    {Reason::kOperationNotForType, "the peer asked for an operation that this type does not have"},
    {Reason::kRequestTooLong, "the peer's WRITE or READ is longer than 1 GiB"},
    {Reason::kMisalignedAtomic, "the peer's atomic is not on an address divisible by 8"},
    {Reason::kNoReadResources, "READ or atomic of the peer, but max_dest_rd_atomic is 0"},
    {Reason::kRemoteInvalidateRefused, "SEND with invalidate of a key that is not a memory window"},
    {Reason::kNoMessageInProgress, "bytes of a message came that had not begun"},
    {Reason::kWrongQkey, "a datagram came with another QKey"},
    {Reason::kRemoteKey, "the peer's rkey names no memory region, or one that was deregistered"},
    {Reason::kRemoteDomain, "the peer's rkey belongs to another protection domain"},
    {Reason::kRemoteRange, "the peer's request reaches outside the memory region"},
    {Reason::kRemotePermission, "the memory region does not allow the peer's kind of access"},
    {Reason::kRemoteFault, "the memory that the peer asked for is not there any more"},
    {Reason::kCompletionQueueFull, "the completion queue was full and a completion is lost"},
};

}  // namespace

std::string_view reason_text(Reason reason) {
  for (const Text& entry : kTexts)
    if (entry.reason == reason) return entry.text;
  return "unknown reason";
}

}  // namespace verbena::qp
