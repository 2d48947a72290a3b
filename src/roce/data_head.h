// SPDX-License-Identifier: MIT
// Which opcode and which extension headers the packets of a SEND or a WRITE have (IBTA vol 1, 9.4.1
// and 9.4.3; table 38).
#pragma once

#include "qp/operation.h"
#include "wire/packet.h"

namespace verbena::roce {

// For the packet that begins and/or ends the message of `op`, on the service of head.opcode.
void describe_data(const qp::Operation& op, bool is_first, bool is_last, wire::Head& head);

}  // namespace verbena::roce
