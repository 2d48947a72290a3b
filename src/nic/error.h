// SPDX-License-Identifier: MIT
// Why the NIC refuses a call. The C border turns these into errno values.
#pragma once

#include <cstdint>

namespace verbena::nic {

enum class Error : std::uint8_t {
  kInvalid,        // EINVAL
  kNoRoom,         // ENOMEM: a limit is reached
  kBusy,           // EBUSY: something still depends on it
  kFault,          // EFAULT: memory that is not there
  kNotSupported,   // EOPNOTSUPP
  kGone,           // EIO: the object belongs to the parent of this process, or its device is closed
  kAgain,          // EAGAIN
  kInterrupted,    // EINTR
  kPermission,     // EACCES
  kPrivilege,      // EPERM: it takes a capability that the process does not have
  kNoDescriptors,  // EMFILE
  kNoSlot,         // ENOSPC: no free place on this host
};

}  // namespace verbena::nic
