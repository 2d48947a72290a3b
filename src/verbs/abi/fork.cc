// SPDX-License-Identifier: MIT
// fork (ibv_fork_init(3), ibv_is_fork_initialized(3)). These calls exist because hardware keeps
// writing to the physical pages that it pinned, which copy-on-write may hand to the child. Verbena
// reads and writes through the page tables of the process itself, so no page has to be kept away
// from a child.
#include "verbs/abi/entry.h"

int ibv_fork_init() { return 0; }

ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

int ibv_dontfork_range(void*, std::size_t) { return 0; }

int ibv_dofork_range(void*, std::size_t) { return 0; }
