// SPDX-License-Identifier: MIT
#include "rdmacm/gsi_table.h"

#include <dlfcn.h>

#include <atomic>

#include "base/log.h"

namespace verbena::rdmacm {
namespace {

// We are linked with libibverbs.so.1, so there is one; ours is never unloaded.
const GsiTable* look_up() {
  void* const library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  const void* const found =
      library ? dlvsym(library, "verbena_gsi_table", "VERBENA_PRIVATE_1") : nullptr;
  if (!found) dlerror();  // not for the program to find
  if (library) dlclose(library);
  const auto* table = static_cast<const GsiTable*>(found);
  const bool fits =
      table && table->version == GsiTable::kVersion && table->size >= sizeof(GsiTable);
  if (!fits) LOG_ERROR("librdmacm.so.1 needs the libibverbs.so.1 that it came with");
  return fits ? table : nullptr;
}

}  // namespace

const GsiTable* gsi_table() {
  static constinit std::atomic<const GsiTable*> known{nullptr};
  const GsiTable* found = known.load(std::memory_order_acquire);
  if (!found) {
    found = look_up();
    known.store(found, std::memory_order_release);
  }
  return found;
}

}  // namespace verbena::rdmacm
