// SPDX-License-Identifier: MIT
// What this NIC can do beyond verbs, for include/verbena/dv.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "nic/error.h"
#include "nic/objects.h"

namespace verbena::nic {

// Memory that peers of this host may map from the start.
Result<void*, Error> allocate_shared(Context& context, std::size_t length);
Result<void, Error> free_shared(Context& context, void* memory);

// How peers of this host reach a region; besides the ring.
struct Reach {
  bool by_process = false;          // process_vm_writev and process_vm_readv
  std::uint64_t mapped_offset = 0;  // of the part that they map
  std::uint64_t mapped_length = 0;  // 0: none
};
Result<Reach, Error> reach_of(const Mr& mr);

// Who executes what a queue pair posts, and has.
struct Service {
  enum class By : std::uint8_t { kNobody, kRing, kOurselves, kWire };
  By by = By::kNobody;
  std::uint64_t mapped_operations = 0;
  std::uint64_t process_operations = 0;
  std::uint64_t ring_operations = 0;
  std::uint64_t wire_packets = 0;
  std::uint64_t wire_repeated = 0;
  bool has_agreed = false;
};
Result<Service, Error> service_of(Qp& qp);

}  // namespace verbena::nic
