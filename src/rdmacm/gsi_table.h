// SPDX-License-Identifier: MIT
// Our libibverbs, if that is the one that is loaded.
#pragma once

#include "base/contracts.h"

namespace verbena::rdmacm {

// Null: libibverbs.so.1 is another's. Nothing but clear refusals is possible then.
const GsiTable* gsi_table();

}  // namespace verbena::rdmacm
