// SPDX-License-Identifier: MIT
// Event channels, ids, events: what is made and goes (rdma_create_id(3) and its neighbours).
#include "rdmacm/ids.h"

#include <memory>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "base/serial_number.h"
#include "rdmacm/manager.h"
#include "rdmacm/multicast.h"
#include "rdmacm/queue_pair.h"

namespace verbena::rdmacm {
namespace {

// Sleeps until the program has acknowledged that many events.
void wait_until_acknowledged(const Id& id, std::uint32_t fetched) {
  for (;;) {
    const std::uint32_t acknowledged = id.acknowledged.load(std::memory_order_acquire);
    if (!is_before(acknowledged, fetched)) return;
    futex_wait(id.acknowledged, acknowledged, FutexScope::kProcess);
  }
}

// Requests that nobody fetched, and will not: their ids are nobody's, and have no other events.
void drop(std::deque<std::unique_ptr<Event>> events) {
  for (const std::unique_ptr<Event>& event : events) {
    if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) continue;
    const std::unique_ptr<Id> child(static_cast<Id*>(event->id));
    Turn turn(child->manager);
    if (child->comm) turn.engine().release(*child->comm, turn.now());
    child->manager.forget(*child);
  }
}

bool is_port_space(rdma_port_space space) {
  return space == RDMA_PS_TCP || space == RDMA_PS_UDP || space == RDMA_PS_IPOIB ||
         space == RDMA_PS_IB;
}

}  // namespace

int create_id(rdma_event_channel* channel, rdma_cm_id** made, void* context, rdma_port_space space,
              ibv_qp_type type) {
  Manager* const manager = Manager::current();
  if (!manager) return errno;
  if (!is_port_space(space)) return EPROTONOSUPPORT;
  if (const int error = manager->devices().open()) return error;
  auto id = std::make_unique<Id>(*manager, space, type);
  id->context = context;
  id->is_sync = channel == nullptr;
  if (id->is_sync) {
    auto own = Channel::create(*manager);
    if (!own) return errno;
    id->channel = own.release();
  } else {
    id->channel = channel;
  }
  *made = id.release();
  return 0;
}

int destroy_id(Id& id) {
  if (!id.manager.in_owner()) {
    delete &id;  // of our parent, and so is all that it holds
    return 0;
  }
  if (id.is_sync && id.event) acknowledge(std::exchange(id.event, nullptr));
  leave_all_groups(id);
  // First: who looks for the service from now on waits whether it is served again. A request that
  // gets as far as us could only be refused, and is not made again.
  id.manager.ports().give_back(id);
  {
    Turn turn(id.manager);
    if (turn.has_engine()) {
      for (const cm::ListenerId listener : id.listeners)
        turn.engine().unlisten(listener, turn.now());
      if (id.comm) turn.engine().release(*id.comm, turn.now());
    }
    if (id.stage == Stage::kListening) LOG_DEBUG("a listener ends");
    id.manager.forget(id);
    id.listeners.clear();
    id.comm.reset();
  }
  // From here on nothing new comes.
  drop(id.events().withdraw([&](const Event& event) { return event.counted == &id; }));
  wait_until_acknowledged(id, id.delivered.load(std::memory_order_acquire));
  if (id.is_sync) id.events().retire();
  delete &id;
  return 0;
}

int migrate_id(Id& id, rdma_event_channel* channel) {
  if (!id.manager.in_owner()) return EIO;
  Channel::Owned own;
  if (!channel) {
    own = Channel::create(id.manager);
    if (!own) return errno;
  }
  if (id.is_sync && id.event) acknowledge(std::exchange(id.event, nullptr));
  Channel* const to = channel ? static_cast<Channel*>(channel) : own.get();
  Channel::Owned former;
  std::uint32_t fetched = 0;
  {
    const Turn turn(id.manager);
    Channel& from = id.events();
    if (id.is_sync && to != &from) former.reset(&from);
    id.channel = to;
    id.is_sync = channel == nullptr;
    static_cast<void>(own.release());
    auto moved = from.withdraw([&](const Event& each) { return each.counted == &id; });
    fetched = id.delivered.load(std::memory_order_acquire);
    for (auto& event : moved) {
      // A request that was not fetched belongs where its listener is.
      if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) event->id->channel = to;
      to->push(std::move(event));
    }
  }
  // As with the kernel's: nobody else waits on the former channel for this id any more. What is
  // fetched from the new one may be held by a thread that waits for this one.
  wait_until_acknowledged(id, fetched);
  return 0;
}

void acknowledge(rdma_cm_event* event) {
  const std::unique_ptr<Event> own(static_cast<Event*>(event));
  Id& id = *own->counted;
  id.acknowledged.fetch_add(1, std::memory_order_release);
  futex_wake(id.acknowledged, 1, FutexScope::kProcess);
}

int next_event(Channel& channel, rdma_cm_event** event) {
  if (!channel.manager.in_owner()) return EIO;
  std::unique_ptr<Event> next;
  if (const int error = channel.take(next)) return error;
  if (const int error = settle(*next)) {
    acknowledge(next.release());
    return error;
  }
  *event = next.release();
  return 0;
}

// What it waits for is not that an address has changed.
int next_own_event(Id& id) {
  do {
    if (id.event) acknowledge(std::exchange(id.event, nullptr));
    if (const int error = next_event(id.events(), &id.event)) return error;
  } while (id.event->event == RDMA_CM_EVENT_ADDR_CHANGE);
  return 0;
}

int complete(Id& id) {
  if (!id.is_sync) return 0;
  if (const int error = next_own_event(id)) return error;
  if (id.event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) return ENODEV;
  const int status = id.event->status;
  if (status == 0) return 0;
  if (id.event->event == RDMA_CM_EVENT_REJECTED) return ECONNREFUSED;
  return status < 0 ? -status : status;
}

}  // namespace verbena::rdmacm

using namespace verbena::rdmacm;

extern "C" {

rdma_event_channel* rdma_create_event_channel() {
  Manager* const manager = Manager::current();
  if (!manager) return nullptr;
  if (const int error = manager->devices().open()) {
    errno = error;
    return nullptr;
  }
  return Channel::create(*manager).release();
}

void rdma_destroy_event_channel(rdma_event_channel* channel) {
  if (channel) static_cast<Channel*>(channel)->retire();
}

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** id, void* context,
                   rdma_port_space space) {
  const bool is_datagram = space == RDMA_PS_UDP || space == RDMA_PS_IPOIB;
  return answer(create_id(channel, id, context, space, is_datagram ? IBV_QPT_UD : IBV_QPT_RC));
}

int rdma_destroy_id(rdma_cm_id* id) { return answer(destroy_id(Id::of(id))); }

int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* channel) {
  return answer(migrate_id(Id::of(id), channel));
}

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
  if (!channel || !event) return answer(EINVAL);
  return answer(next_event(*static_cast<Channel*>(channel), event));
}

int rdma_ack_cm_event(rdma_cm_event* event) {
  if (!event) return answer(EINVAL);
  acknowledge(event);
  return 0;
}

ibv_context** rdma_get_devices(int* count) {
  Manager* const manager = Manager::current();
  if (!manager) return nullptr;
  if (const int error = manager->devices().open()) {
    errno = error;
    return nullptr;
  }
  const std::span<Device> all = manager->devices().all();
  auto** const list = new ibv_context*[all.size() + 1];
  for (std::size_t i = 0; i < all.size(); ++i)
    list[i] = all[i].context;
  list[all.size()] = nullptr;
  if (count) *count = static_cast<int>(all.size());
  return list;
}

void rdma_free_devices(ibv_context** list) { delete[] list; }

}  // extern "C"
