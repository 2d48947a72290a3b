// SPDX-License-Identifier: MIT
#include "nic/counters.h"

#include <algorithm>
#include <mutex>

#include "nic/nic.h"

namespace verbena::nic {

Result<Counters*, Error> create_counters(Context& context) {
  if (!context.is_usable()) return refuse(Error::kGone);
  Share share(context.nic().counts().counters, context.nic().limits().counters);
  if (!share) return refuse(Error::kNoRoom);
  auto* const counters = new Counters(context);
  share.keep();
  context.count_objects(1);
  return counters;
}

Result<void, Error> destroy_counters(Counters* counters) {
  Context& context = *counters->context;
  if (counters->dependents.load() != 0) return refuse(Error::kBusy);
  if (context.is_usable()) context.nic().counts().counters.fetch_sub(1);
  context.count_objects(-1);
  delete counters;
  return {};
}

Result<void, Error> attach(Counters& counters, const CounterPoint& point) {
  if (!counters.context->is_usable()) return refuse(Error::kGone);
  if (point.index >= Counters::kPlaces) return refuse(Error::kInvalid);
  const std::lock_guard guard(counters.lock);
  if (counters.dependents.load() != 0) return refuse(Error::kBusy);
  if (counters.points.size() == Counters::kPointsMax) return refuse(Error::kNoRoom);
  counters.points.push_back(point);
  return {};
}

Result<void, Error> read(const Counters& counters, std::span<std::uint64_t> values) {
  if (!counters.context->is_usable()) return refuse(Error::kGone);
  if (values.size() > Counters::kPlaces) return refuse(Error::kInvalid);
  std::ranges::transform(std::span(counters.values).first(values.size()), values.begin(),
                         [](const auto& value) { return value.load(std::memory_order_relaxed); });
  return {};
}

}  // namespace verbena::nic
