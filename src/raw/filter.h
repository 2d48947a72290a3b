// SPDX-License-Identifier: MIT
// What of an interface's traffic somebody's flows may want, as a classic BPF program of a packet
// socket: the rest does not wake anybody, and costs no copy. It lets through too much rather than
// too little, and the flow table judges again.
#pragma once

#include <linux/filter.h>

#include <span>
#include <vector>

#include "raw/flow_table.h"

namespace verbena::raw {

// Never empty; without flows it drops everything.
std::vector<sock_filter> filter_for(std::span<const Flow> flows);

}  // namespace verbena::raw
