// SPDX-License-Identifier: MIT
// Domains that are used from a second open device (ibv_import_pd(3)).
#pragma once

#include "nic/objects.h"

namespace verbena::nic {

// Another handle on a domain, for the objects of this context; the domain stays busy meanwhile.
Result<Pd*, Error> import_pd(Context& context, Pd& pd);

}  // namespace verbena::nic
