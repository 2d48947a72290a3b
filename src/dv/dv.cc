// SPDX-License-Identifier: MIT
// The functions of verbena/dv.h: each finds ours in the libibverbs that is loaded.
#include "verbena/dv.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>

#include "base/contracts.h"

namespace verbena::dv {
namespace {

// Whoever has an object of verbs has a libibverbs.so.1, loaded in whatever way. It is never
// unloaded when it is ours, so what was found stays; and while it is not there, we look again.
const DvTable* look_up() {
  void* const library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) {
    dlerror();
    return nullptr;
  }
  const void* const found = dlvsym(library, "verbena_dv_table", "VERBENA_PRIVATE_1");
  if (!found) dlerror();  // not for the program to find
  dlclose(library);
  const auto* table = static_cast<const DvTable*>(found);
  const bool fits = table && table->version == DvTable::kVersion && table->size >= sizeof(DvTable);
  return fits ? table : nullptr;
}

const DvTable* table() {
  static constinit std::atomic<const DvTable*> known{nullptr};
  const DvTable* found = known.load(std::memory_order_acquire);
  if (!found) {
    found = look_up();
    known.store(found, std::memory_order_release);
  }
  return found;
}

}  // namespace
}  // namespace verbena::dv

using verbena::DvTable;
using verbena::dv::table;

#define VERBENA_PUBLIC [[gnu::visibility("default")]]

extern "C" {

VERBENA_PUBLIC bool verbena_dv_is_supported(ibv_device* device) { return device && table(); }

VERBENA_PUBLIC void* verbena_dv_alloc(ibv_context* context, size_t length) {
  const DvTable* const ours = table();
  if (ours && context) return ours->alloc(context, length);
  errno = ours ? EINVAL : EOPNOTSUPP;
  return nullptr;
}

VERBENA_PUBLIC int verbena_dv_free(ibv_context* context, void* memory) {
  const DvTable* const ours = table();
  if (!ours) return EOPNOTSUPP;
  return context ? ours->free(context, memory) : EINVAL;
}

VERBENA_PUBLIC int verbena_dv_query_mr(ibv_mr* mr, verbena_dv_mr* out) {
  const DvTable* const ours = table();
  if (!ours) return EOPNOTSUPP;
  return mr && out ? ours->query_mr(mr, out) : EINVAL;
}

VERBENA_PUBLIC int verbena_dv_query_qp(ibv_qp* qp, verbena_dv_qp* out) {
  const DvTable* const ours = table();
  if (!ours) return EOPNOTSUPP;
  return qp && out ? ours->query_qp(qp, out) : EINVAL;
}

}  // extern "C"
