// SPDX-License-Identifier: MIT
#include "qp/reason.h"

namespace verbena::qp {
namespace {

std::string_view window_text(memory::WindowRefusal refusal) {
  using memory::WindowRefusal;
  switch (refusal) {
    case WindowRefusal::kBusy: break;
    case WindowRefusal::kNoSuchWindow:
      return "the key is not that of a memory window as it is bound now";
    case WindowRefusal::kOtherDomain:
      return "memory window, region and queue pair are not of one protection domain";
    case WindowRefusal::kOtherQueuePair: return "the memory window is bound to another queue pair";
    case WindowRefusal::kStillBound:
      return "a type 2 window was bound again without being invalidated before";
    case WindowRefusal::kWrongType:
      return "this type of memory window does not have this operation";
    case WindowRefusal::kBadRights: return "a memory window cannot give these access rights";
    case WindowRefusal::kRegion:
      return "the region does not exist, does not hold the range, or its access flags do not allow "
             "this window";
  }
  return "the memory window is in use";
}

}  // namespace

// A switch, so that the compiler misses no reason.
std::string_view reason_text(Reason reason) {
  if (const auto refusal = window_refusal(reason)) return window_text(*refusal);
  switch (reason) {
    case Reason::kNone: return "nothing went wrong";
    case Reason::kUnknownOpcode: return "the work request has an opcode that does not exist";
    case Reason::kOpcodeNotForType: return "this type of queue pair does not have this operation";
    case Reason::kTooManySges: return "more SGEs than the work request's queue was created for";
    case Reason::kInlineTooLong:
      return "the work request has more inline data than its queue was created for";
    case Reason::kMessageTooLong: return "the message is longer than 1 GiB";
    case Reason::kDatagramTooLong: return "the datagram is longer than the path MTU";
    case Reason::kAtomicNotEightBytes: return "an atomic needs SGEs of 8 bytes together";
    case Reason::kNoReadsAllowed: return "READ or atomic, but max_rd_atomic of the queue pair is 0";
    case Reason::kInvalidateRefused: return "local invalidate of a key that is not a memory window";
    case Reason::kFlushToNowhere: return "FLUSH: asks for neither visibility nor persistence";
    case Reason::kFrameTooShort: return "a raw packet is shorter than an Ethernet header";
    case Reason::kAddressHandleDomain: return "the address handle is of another domain";
    case Reason::kLocalKey:
      return "an SGE's lkey names no memory region, or one that was deregistered";
    case Reason::kLocalDomain: return "an SGE's lkey belongs to another protection domain";
    case Reason::kLocalRange: return "an SGE reaches outside its memory region";
    case Reason::kLocalPermission: return "an SGE's memory region does not allow local write";
    case Reason::kLocalFault: return "an SGE's memory is not there (unmapped or protected)";
    case Reason::kPeerNotReady:
      return "the peer had no receive posted, until rnr_retry was used up";
    case Reason::kPeerInvalidRequest:
      return "the peer refused: its receive is too short, or its queue pair does not allow the "
             "operation";
    case Reason::kPeerAccess:
      return "the peer refused: rkey, range, protection domain or access rights";
    case Reason::kPeerOperation: return "the peer could not do it: its own memory was bad";
    case Reason::kPeerSilent: return "no answer from the peer, until retry_cnt was used up";
    case Reason::kPeerLost:
      return "the peer is gone: its process ended or its queue pair was destroyed";
    case Reason::kAnswerLength: return "the peer answered a READ with too many or too few bytes";
    case Reason::kAnswerKind: return "the peer's answer is not one to this operation";
    case Reason::kFlushedAfterFailure: return "flushed, because an earlier work request failed";
    case Reason::kFlushedByModify: return "flushed, because the queue pair is in its error state";
    case Reason::kFlushedReceive:
      return "a receive flushed, because the queue pair is in its error state";
    case Reason::kNotReceiving: return "a message came in a state that does not receive";
    case Reason::kNoReceivePosted: return "a message came and no receive was posted";
    case Reason::kReceiveTooShort: return "a message came that is longer than its receive";
    case Reason::kOperationNotEnabled: return "the access flags do not allow the peer's operation";
    case Reason::kOperationNotForType: return "the peer's operation is not one of this type";
    case Reason::kRequestTooLong: return "the peer's WRITE or READ is longer than 1 GiB";
    case Reason::kMisalignedAtomic: return "the peer's atomic is not on an address divisible by 8";
    case Reason::kNoReadResources: return "READ or atomic of the peer, but max_dest_rd_atomic is 0";
    case Reason::kRemoteInvalidateRefused: return "SEND with invalidate of a key of no window";
    case Reason::kNoMessageInProgress: return "bytes of a message came that had not begun";
    case Reason::kWrongQkey: return "a datagram came with another QKey";
    case Reason::kBrokenRequest:
      return "the peer's packets do not make a request: opcodes out of order, or wrong lengths";
    case Reason::kNoSharedQueue: return "the peer named a queue that this XRC domain does not have";
    case Reason::kSharedQueueElsewhere: return "refused by the process of the XRC queue named";
    case Reason::kNoSuchTag: return "the tag list has no such entry any more";
    case Reason::kRendezvousTooLong: return "the program has to fetch the message itself";
    case Reason::kRemoteKey:
      return "the peer's rkey names no memory region, or one that was deregistered";
    case Reason::kRemoteDomain: return "the peer's rkey belongs to another protection domain";
    case Reason::kRemoteRange: return "the peer's request reaches outside the memory region";
    case Reason::kRemotePermission:
      return "the memory region does not allow the peer's kind of access";
    case Reason::kRemoteFault: return "the memory that the peer asked for is not there any more";
    case Reason::kCompletionQueueFull:
      return "the completion queue was full and a completion is lost";
    case Reason::kWindow: break;
  }
  return "unknown reason";
}

}  // namespace verbena::qp
