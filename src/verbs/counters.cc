// SPDX-License-Identifier: MIT
// Counters of flows (ibv_create_counters(3), ibv_attach_counters_point_flow(3),
// ibv_read_counters(3)).
#include <cstring>
#include <span>

#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

Result<ibv_counters*, nic::Error> create(Context& context, const ibv_counters_init_attr& wanted) {
  if (wanted.comp_mask != 0) return refuse(nic::Error::kInvalid);
  auto counters = std::make_unique<Counters>();
  const auto made = nic::create_counters(*context.nic);
  if (!made) return refuse(made.error());
  counters->nic = *made;
  counters->face = {.context = &context.table.context};
  hold(context);
  return &counters.release()->face;
}

Result<nic::CounterPoint, nic::Error> point_from(const ibv_counter_attach_attr& wanted) {
  if (wanted.comp_mask != 0) return refuse(nic::Error::kInvalid);
  // The program may have put any number there.
  unsigned what = 0;
  static_assert(sizeof what == sizeof wanted.counter_desc);
  std::memcpy(&what, &wanted.counter_desc, sizeof what);
  nic::CounterPoint point{.index = wanted.index};
  switch (what) {
    case IBV_COUNTER_PACKETS: point.what = nic::Counted::kPackets; return point;
    case IBV_COUNTER_BYTES: point.what = nic::Counted::kBytes; return point;
    default: return refuse(nic::Error::kNotSupported);
  }
}

}  // namespace

ibv_counters* create_counters(ibv_context* context, ibv_counters_init_attr* wanted) noexcept {
  return pointer_at_border([&] { return create(own(context), *wanted); });
}

int destroy_counters(ibv_counters* counters) noexcept {
  Counters* const ours = &own(counters);
  Context* const context = &own(counters->context);
  const bool is_inherited = verbs::is_inherited(counters);
  return destroy_at_border(is_inherited, nic::destroy_counters(ours->nic), [&] {
    delete ours;
    release(context);
  });
}

int attach_counters(ibv_counters* counters, ibv_counter_attach_attr* wanted,
                    ibv_flow* flow) noexcept {
  return at_border([&]() -> Result<void, nic::Error> {
    const auto point = point_from(*wanted);
    if (!point) return refuse(point.error());
    if (flow) return nic::attach(*own(counters).nic, *point, *own(flow).nic);
    return nic::attach(*own(counters).nic, *point);
  });
}

// There is no cache: what is preferred from one is as good as new.
int read_counters(ibv_counters* counters, std::uint64_t* values, std::uint32_t count,
                  std::uint32_t flags) noexcept {
  return at_border([&]() -> Result<void, nic::Error> {
    if (flags & ~std::uint32_t{IBV_READ_COUNTERS_ATTR_PREFER_CACHED}) {
      return refuse(nic::Error::kInvalid);
    }
    return nic::read(*own(counters).nic, std::span(values, count));
  });
}

}  // namespace verbena::verbs
