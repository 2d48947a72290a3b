// SPDX-License-Identifier: MIT
#include "nic/import.h"

namespace verbena::nic {

// Both contexts are of this process, so both are of one NIC, and its domains have one number space.
Result<Pd*, Error> import_pd(Context& context, Pd& pd) {
  if (&context.nic() != &pd.context->nic()) return refuse(Error::kInvalid);
  auto handle = alloc_pd(context);
  if (!handle) return handle;
  (*handle)->id = pd.id;
  (*handle)->parent = &pd;
  pd.dependents.fetch_add(1);
  return handle;
}

}  // namespace verbena::nic
