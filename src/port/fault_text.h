// SPDX-License-Identifier: MIT
// A bad line in words, as people ask for it: "drop=1%,delay=2ms,in.reorder=0.5%,seed=7".
//
//   drop, duplicate, corrupt, reorder   part of the packets, each drawn by itself: 1%, 0.05%
//   reorder_by, delay, jitter           a time: 50us, 2ms, 1s
//   rate                                bits a second: 100Mbit, 2.5Gbit
//   queue                               bytes that may wait for the rate: 64KiB, 4MiB
//   full                                part of the trains that find no room in the socket: 5%
//   seed                                a number; the same one, the same faults
//
// Each but the last two is for both directions, or for one: in.drop, out.drop. Later ones win.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "port/impaired.h"

namespace verbena::port {

// Refused: what is wrong with it, for people.
Result<ImpairedOptions, std::string> parse_faults(std::string_view text);

}  // namespace verbena::port
