// SPDX-License-Identifier: MIT
// Contexts, protection domains, memory regions, address handles.
#include "nic/objects.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/mutex.h"
#include "host/interfaces.h"
#include "nic/engine.h"
#include "nic/multicast.h"
#include "nic/nic.h"
#include "nic/sharing.h"
#include "wire/ip.h"

namespace verbena::nic {
namespace {

// Access bits that a program may ask for without knowing whether we know them
// (IBV_ACCESS_OPTIONAL_RANGE).
constexpr std::uint32_t kOptionalAccess = 0x3ff00000;

Error error_of(memory::RegisterError error) {
  switch (error) {
    case memory::RegisterError::kBadRange: return Error::kFault;
    case memory::RegisterError::kBadAccess:
    case memory::RegisterError::kNoSuchKey: return Error::kInvalid;
    case memory::RegisterError::kTooMany: return Error::kNoRoom;
    case memory::RegisterError::kBusy: return Error::kBusy;
  }
  return Error::kInvalid;
}

// What a program may see of the past.
constexpr Duration kSeenFor = Duration::milliseconds(10);

memory::RegionConfig region_of(const Mr& mr) {
  return {.pd = mr.pd->id,
          .iova = mr.iova,
          .access = mr.access & ~kOptionalAccess,
          .extents = {{mr.address, mr.length}},
          .may_be_empty = mr.dm != nullptr,
          .is_null = mr.is_null};
}

}  // namespace

Context::Context(const Device& device, std::unique_ptr<EventQueue<AsyncEvent>> async, Nic& nic)
    : device_(device), async_(std::move(async)), nic_(&nic), guard_(&nic.guard()) {
  told_ = {.is_there = true, .is_up = device.is_up, .gids = {}};
  if (device.is_up) told_.gids = device.gids;
  nic.contexts().add(*this);
}

// In a child after fork the list is of the parent's NIC, with locks that nobody may give back.
Context::~Context() {
  if (nic().in_owner()) nic().contexts().remove(*this);
}

Result<std::unique_ptr<Context>, Error> Context::open(const Device& device) {
  auto async = EventQueue<AsyncEvent>::create();
  if (!async) return refuse(async.error());
  return std::unique_ptr<Context>(new Context(device, std::move(*async), Nic::current()));
}

bool Context::move_to_child() {
  static constinit Mutex moving;
  const std::lock_guard guard(moving);
  if (nic().in_owner()) return true;
  if (objects_.load(std::memory_order_relaxed) != 0 || !async_->leave_parent()) return false;
  nic_.store(&Nic::current(), std::memory_order_relaxed);
  guard_.store(&nic().guard(), std::memory_order_relaxed);
  nic().contexts().add(*this);
  return true;
}

std::vector<Gid> Context::gids() const { return present().gids; }
bool Context::port_is_up() const { return present().is_up; }

// Asking the system takes longer than all the rest of such a call, and programs ask for entry after
// entry, or make address handles by the hundred.
Device Context::present() const {
  const std::unique_lock guard(seen_lock_, std::try_to_lock);
  // Somebody asks, or did when this process was forked.
  if (!guard.owns_lock()) return ask();
  const Instant now = clock_now();
  if (now >= seen_until_) {
    seen_ = ask();
    seen_until_ = now + kSeenFor;
  }
  return seen_;
}

Device Context::ask() const {
  for (Device& device : devices()) {
    if (device.name == device_.name) return std::move(device);
  }
  Device gone = device_;
  gone.is_up = false;
  return gone;
}

Result<AsyncEvent, Error> next_async_event(Context& context) {
  if (!context.is_usable()) return refuse(Error::kGone);
  // Who waits for events wants those of the interface, too, whatever it has made so far. Where this
  // process has no place on the host there are none.
  static_cast<void>(context.nic().start_engine());
  return context.async_events().take([](const AsyncEvent& event) {
    if (event.count) event.count->delivered();
  });
}

Result<Pd*, Error> alloc_pd(Context& context) {
  if (!context.is_usable()) return refuse(Error::kGone);
  Nic& nic = context.nic();
  Share share(nic.counts().domains, nic.limits().domains);
  if (!share) return refuse(Error::kNoRoom);
  auto* pd = new Pd;
  share.keep();
  pd->context = &context;
  pd->id = nic.new_domain();
  context.count_objects(1);
  return pd;
}

Result<Pd*, Error> alloc_parent_domain(Pd& pd) {
  auto domain = alloc_pd(*pd.context);
  if (!domain) return domain;
  (*domain)->id = pd.id;
  (*domain)->parent = &pd;
  pd.dependents.fetch_add(1);
  return domain;
}

Result<void, Error> dealloc_pd(Pd* pd) {
  if (pd->dependents.load() != 0) return refuse(Error::kBusy);
  if (pd->context->is_usable()) pd->context->nic().counts().domains.fetch_sub(1);
  if (pd->parent) pd->parent->dependents.fetch_sub(1);
  pd->context->count_objects(-1);
  delete pd;
  return {};
}

namespace {

// Gives it a key, and takes it into use.
Result<Mr*, Error> enter(std::unique_ptr<Mr> mr) {
  Nic& nic = mr->pd->context->nic();
  const auto key = nic.regions().add(region_of(*mr));
  if (!key) return refuse(error_of(key.error()));
  mr->key = *key;
  mr->pd->dependents.fetch_add(1);
  if (mr->dm) mr->dm->dependents.fetch_add(1);
  nic.sharing().add(*mr);
  return mr.release();
}

}  // namespace

Result<Mr*, Error> reg_mr(Pd& pd, void* address, std::size_t length, std::uint64_t iova,
                          std::uint32_t access) {
  if (!pd.context->is_usable()) return refuse(Error::kGone);
  auto mr = std::make_unique<Mr>();
  mr->pd = &pd;
  mr->iova = iova;
  mr->address = static_cast<std::byte*>(address);
  mr->length = length;
  mr->access = access;
  return enter(std::move(mr));
}

Result<Mr*, Error> alloc_null_mr(Pd& pd) {
  if (!pd.context->is_usable()) return refuse(Error::kGone);
  auto mr = std::make_unique<Mr>();
  mr->pd = &pd;
  mr->length = kWholeMemory;
  mr->access = memory::kLocalWrite;
  mr->is_null = true;
  return enter(std::move(mr));
}

Result<Mr*, Error> reg_dm_mr(Pd& pd, Dm& dm, std::uint64_t offset, std::size_t length,
                             std::uint32_t access) {
  const bool is_inside = offset <= dm.length && length <= dm.length - offset;
  if (!pd.context->is_usable()) return refuse(Error::kGone);
  const bool is_same_device = pd.context->device().name == dm.context->device().name;
  if (!is_same_device || !is_inside) return refuse(Error::kInvalid);
  auto mr = std::make_unique<Mr>();
  mr->pd = &pd;
  mr->dm = &dm;
  mr->address = dm.memory + offset;
  mr->length = length;
  mr->access = access;
  return enter(std::move(mr));
}

Result<void, Error> rereg_mr(Mr& mr, const Rereg& change) {
  Context& context = *mr.pd->context;
  if (!context.is_usable()) return refuse(Error::kGone);
  if (mr.is_null || (mr.dm && change.change_translation)) return refuse(Error::kInvalid);
  if (context.nic().regions().has_windows(mr.key)) return refuse(Error::kBusy);
  Mr wanted = mr;
  if (change.change_translation) {
    wanted.address = static_cast<std::byte*>(change.address);
    wanted.length = change.length;
    wanted.iova = reinterpret_cast<std::uint64_t>(change.address);
  }
  if (change.pd) wanted.pd = change.pd;
  if (change.access) wanted.access = *change.access;
  Sharing& sharing = context.nic().sharing();
  const Sharing::Change changes(sharing);
  sharing.hide(mr);
  auto key = context.nic().regions().change(mr.key, region_of(wanted));
  sharing.settle(mr);
  if (!key) {
    sharing.add(mr);
    return refuse(error_of(key.error()));
  }
  wanted.key = *key;
  wanted.pd->dependents.fetch_add(1);
  mr.pd->dependents.fetch_sub(1);
  mr = wanted;
  sharing.add(mr);
  return {};
}

Result<void, Error> dereg_mr(Mr* mr) {
  Context& context = *mr->pd->context;
  if (context.is_usable()) {
    memory::RegionTable& regions = context.nic().regions();
    if (regions.has_windows(mr->key)) return refuse(Error::kBusy);
    Sharing& sharing = context.nic().sharing();
    sharing.hide(*mr);
    const bool is_removed = regions.remove(mr->key);
    std::optional<Sharing::Change> changes;
    if (!is_removed) changes.emplace(sharing);
    sharing.settle(*mr);
    // A window was bound to it this moment.
    if (!is_removed) {
      sharing.add(*mr);
      return refuse(Error::kBusy);
    }
  }
  mr->pd->dependents.fetch_sub(1);
  if (mr->dm) mr->dm->dependents.fetch_sub(1);
  delete mr;
  return {};
}

Result<Mw*, Error> alloc_mw(Pd& pd, memory::WindowType type) {
  if (!pd.context->is_usable()) return refuse(Error::kGone);
  auto mw = std::make_unique<Mw>();
  const auto key = pd.context->nic().regions().windows().add(pd.id, type);
  if (!key) return refuse(error_of(key.error()));
  *mw = {.pd = &pd, .type = type, .key = *key};
  pd.dependents.fetch_add(1);
  return mw.release();
}

Result<void, Error> dealloc_mw(Mw* mw) {
  Context& context = *mw->pd->context;
  if (context.is_usable()) context.nic().regions().windows().remove(mw->key);
  mw->pd->dependents.fetch_sub(1);
  delete mw;
  return {};
}

Result<Ah*, Error> create_ah(Pd& pd, const qp::AddressVector& path) {
  Context& context = *pd.context;
  if (!context.is_usable()) return refuse(Error::kGone);
  const std::vector<Gid> gids = context.gids();
  // RoCE has no other addresses than GIDs (annex A16.3.1).
  if (!path.has_grh || path.port != 1 || path.source_gid_index >= gids.size()) {
    return refuse(Error::kInvalid);
  }
  if (context.device().is_loopback && wire::is_multicast(path.destination))
    send_to_groups(context.nic());
  auto ah = std::make_unique<Ah>();
  const auto number = context.nic().address_handles().add(
      {.pd = pd.id,
       .source = gids[path.source_gid_index],
       .destination = path.destination,
       .traffic_class = path.traffic_class,
       .hop_limit = path.hop_limit,
       .is_on_this_host = host::is_local_address(path.destination)});
  if (!number) return refuse(Error::kNoRoom);
  pd.dependents.fetch_add(1);
  ah->pd = &pd;
  ah->number = *number;
  ah->path = path;
  return ah.release();
}

Result<void, Error> destroy_ah(Ah* ah) {
  Context& context = *ah->pd->context;
  if (context.is_usable()) context.nic().address_handles().remove(ah->number);
  ah->pd->dependents.fetch_sub(1);
  delete ah;
  return {};
}

}  // namespace verbena::nic
