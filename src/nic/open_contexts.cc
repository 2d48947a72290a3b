// SPDX-License-Identifier: MIT
#include "nic/open_contexts.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "base/log.h"
#include "host/interfaces.h"
#include "nic/device.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/objects.h"

namespace verbena::nic {
namespace {

Context::Seen seen_of(const std::string& interface, const std::vector<host::Interface>& all,
                      const std::vector<Device>& devices) {
  Context::Seen seen;
  seen.is_there = std::ranges::find(all, interface, &host::Interface::name) != all.end();
  const auto found = std::ranges::find(devices, interface, &Device::interface);
  if (found == devices.end()) return seen;
  seen.is_up = found->is_up;
  if (seen.is_up) seen.gids = found->gids;
  return seen;
}

}  // namespace

void OpenContexts::add(Context& context) {
  {
    const std::lock_guard guard(lock_);
    open_.push_back(&context);
  }
  // Without an engine nobody looks yet.
  if (Engine* const engine = nic_.engine()) engine->interfaces_changed();
}

void OpenContexts::remove(Context& context) {
  const std::lock_guard guard(lock_);
  std::erase(open_, &context);
}

// What changed is told with the next change, where there is no memory or no descriptor now.
void OpenContexts::look() {
  try {
    look_at_all();
  } catch (const std::bad_alloc&) {
    LOG_WARN("no memory to look at network interfaces");
  }
}

void OpenContexts::look_at_all() {
  {
    const std::lock_guard guard(lock_);
    if (open_.empty()) return;
  }
  const auto all = host::find_interfaces();
  if (!all) {
    LOG_WARN("the system does not tell of network interfaces");
    return;
  }
  const std::vector<Device> present = devices_among(*all);
  const std::lock_guard guard(lock_);
  for (Context* const each : open_)
    each->tell_changes(seen_of(each->device().interface, *all, present));
}

// Of each kind the last one that the program has not fetched is enough.
void Context::tell_changes(Seen now) {
  const Seen before = std::exchange(told_, std::move(now));
  const auto tell = [&](AsyncKind kind) {
    async_->withdraw([kind](const AsyncEvent& event) { return event.kind == kind; });
    async_->push({.kind = kind});
  };
  if (before.is_there && !told_.is_there) return tell(AsyncKind::kDeviceFatal);
  if (before.is_up && !told_.is_up) tell(AsyncKind::kPortError);
  if (!before.is_up && told_.is_up) tell(AsyncKind::kPortActive);
  if (before.is_up && told_.is_up && before.gids != told_.gids) tell(AsyncKind::kGidChange);
}

}  // namespace verbena::nic
