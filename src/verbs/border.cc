// SPDX-License-Identifier: MIT
#include "verbs/border.h"

namespace verbena::verbs {

int errno_of(nic::Error error) noexcept {
  switch (error) {
    case nic::Error::kInvalid: return EINVAL;
    case nic::Error::kNoRoom: return ENOMEM;
    case nic::Error::kBusy: return EBUSY;
    case nic::Error::kFault: return EFAULT;
    case nic::Error::kNotSupported: return EOPNOTSUPP;
    case nic::Error::kGone: return EIO;
    case nic::Error::kAgain: return EAGAIN;
    case nic::Error::kInterrupted: return EINTR;
    case nic::Error::kPermission: return EACCES;
    case nic::Error::kPrivilege: return EPERM;
    case nic::Error::kNoDescriptors: return EMFILE;
    case nic::Error::kNoSlot: return ENOSPC;
  }
  return EIO;
}

int errno_of(qp::PostError error) noexcept {
  switch (error) {
    case qp::PostError::kFull: return ENOMEM;
    case qp::PostError::kWrongState:
    case qp::PostError::kTooManySges:
    case qp::PostError::kInlineTooLong:
    case qp::PostError::kBadOpcode:
    case qp::PostError::kTooLong: return EINVAL;
  }
  return EINVAL;
}

int errno_of(queues::ReceiveQueue::PostError error) noexcept {
  return error == queues::ReceiveQueue::PostError::kFull ? ENOMEM : EINVAL;
}

}  // namespace verbena::verbs
