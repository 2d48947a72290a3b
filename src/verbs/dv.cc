// SPDX-License-Identifier: MIT
// What libverbena.so and the preload find in us (base/contracts.h).
#include "verbena/dv.h"

#include <cstddef>
#include <cstring>

#include "base/contracts.h"
#include "nic/dv.h"
#include "nic/sharing.h"
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

void* alloc(ibv_context* context, std::size_t length) {
  return pointer_at_border([&] { return nic::allocate_shared(*own(context).nic, length); });
}

int free(ibv_context* context, void* memory) {
  return at_border([&] { return nic::free_shared(*own(context).nic, memory); });
}

int query_mr(ibv_mr* mr, verbena_dv_mr* out) {
  return at_border([&] {
    const auto reach = nic::reach_of(*own(mr).nic);
    if (!reach) return Result<void, nic::Error>(refuse(reach.error()));
    *out = {};
    out->reach = VERBENA_DV_REACH_RING;
    if (reach->by_process) out->reach |= VERBENA_DV_REACH_PROCESS;
    if (reach->mapped_length != 0) out->reach |= VERBENA_DV_REACH_MAPPED;
    out->mapped_offset = reach->mapped_offset;
    out->mapped_length = reach->mapped_length;
    return Result<void, nic::Error>();
  });
}

verbena_dv_carrier carrier_of(nic::Service::By by) {
  switch (by) {
    case nic::Service::By::kNobody: return VERBENA_DV_CARRIER_NONE;
    case nic::Service::By::kRing: return VERBENA_DV_CARRIER_RING;
    case nic::Service::By::kOurselves: return VERBENA_DV_CARRIER_DIRECT;
    case nic::Service::By::kWire: return VERBENA_DV_CARRIER_WIRE;
  }
  return VERBENA_DV_CARRIER_NONE;
}

int query_qp(ibv_qp* qp, verbena_dv_qp* out) {
  return at_border([&] {
    const auto service = nic::service_of(*own(qp).nic);
    if (!service) return Result<void, nic::Error>(refuse(service.error()));
    const std::uint64_t known = out->comp_mask & VERBENA_DV_QP_WIRE;
    // A caller that knows no later fields has no room for them.
    std::memset(out, 0, offsetof(verbena_dv_qp, wire_packets));
    out->comp_mask = known;
    out->carrier = carrier_of(service->by);
    out->mapped_operations = service->mapped_operations;
    out->process_operations = service->process_operations;
    out->ring_operations = service->ring_operations;
    if (known == 0) return Result<void, nic::Error>();
    out->wire_packets = service->wire_packets;
    out->wire_repeated = service->wire_repeated;
    out->wire_agreed = service->has_agreed ? 1 : 0;
    out->reserved_wire = 0;
    return Result<void, nic::Error>();
  });
}

constexpr MemoryGuard kGuard = {.overlaps = nic::Sharing::overlaps,
                                .give_back = nic::Sharing::give_back,
                                .make_private = nic::Sharing::make_private};

}  // namespace
}  // namespace verbena::verbs

extern "C" {

// Null where the preload is not there.
[[gnu::weak]] void verbena_preload_guard(const verbena::MemoryGuard* guard);

// NOLINTNEXTLINE(readability-identifier-naming): a name for C and for dlsym
[[gnu::visibility("default")]] extern const verbena::DvTable verbena_dv_table;
constinit const verbena::DvTable verbena_dv_table = {.alloc = verbena::verbs::alloc,
                                                     .free = verbena::verbs::free,
                                                     .query_mr = verbena::verbs::query_mr,
                                                     .query_qp = verbena::verbs::query_qp};

}  // extern "C"

namespace verbena::verbs {
namespace {

[[gnu::constructor]] void meet_the_preload() {
  if (verbena_preload_guard) verbena_preload_guard(&kGuard);
}

}  // namespace
}  // namespace verbena::verbs
