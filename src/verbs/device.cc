// SPDX-License-Identifier: MIT
// The list of devices (ibv_get_device_list(3)).
//
// Programs compare the ibv_device of a context with those of a later list, keep the pointers after
// they have freed the list, and expect a list to tell what is there now. So the known devices are
// kept: a device that is listed again unchanged keeps its struct; one that is gone or has changed
// is forgotten, and its struct goes with the last list or context that has it.
#include <endian.h>

#include <cstdio>
#include <cstdlib>

#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

constinit Mutex known_lock;
constinit Device* known = nullptr;  // guarded by known_lock

template <std::size_t size>
void print(char (&to)[size], const char* format, const char* name) {
  std::snprintf(to, size, format, name);
}

// Where the kernel would show it; the preload answers for these paths.
void fill_shell(ibv_device& shell, const std::string& name, int index) {
  shell = {};
  shell.node_type = IBV_NODE_CA;
  shell.transport_type = IBV_TRANSPORT_IB;
  char uverbs[32];
  std::snprintf(uverbs, sizeof uverbs, "uverbs%d", index);
  print(shell.name, "%s", name.c_str());
  print(shell.dev_name, "%s", uverbs);
  print(shell.dev_path, "/sys/class/infiniband_verbs/%s", uverbs);
  print(shell.ibdev_path, "/sys/class/infiniband/%s", name.c_str());
}

bool is_same(const Device& device, const nic::Device& description, int index) {
  return device.index == index && device.description.name == description.name &&
         device.description.guid == description.guid &&
         device.description.interface_index == description.interface_index &&
         device.description.active_mtu == description.active_mtu;
}

Device* make_device(nic::Device description, int index) {
  auto* device = new Device;
  device->shell = {};
  fill_shell(device->shell.device, description.name, index);
  device->description = std::move(description);
  device->index = index;
  return device;
}

// Takes the device out of the known ones if it is there unchanged.
Device* take_known(const nic::Device& description, int index) {
  for (Device** at = &known; *at; at = &(*at)->next_known) {
    if (!is_same(**at, description, index)) continue;
    Device* const found = *at;
    *at = found->next_known;
    return found;
  }
  return nullptr;
}

void forget(Device* first) {
  while (first) {
    Device* const next = first->next_known;
    first->next_known = nullptr;
    release(first);
    first = next;
  }
}

// The known devices become those that are there now. With known_lock held.
void look_again(std::vector<nic::Device> present) {
  Device* first = nullptr;
  Device** end = &first;
  int index = 0;
  for (nic::Device& description : present) {
    Device* device = take_known(description, index);
    if (!device) device = make_device(std::move(description), index);
    device->next_known = nullptr;
    *end = device;
    end = &device->next_known;
    ++index;
  }
  forget(known);
  known = first;
}

Result<ibv_device**, nic::Error> list_devices(int& count) {
  std::vector<nic::Device> present = nic::devices();
  const std::lock_guard guard(known_lock);
  const std::size_t total = present.size();
  auto** const list = static_cast<ibv_device**>(std::calloc(total + 1, sizeof(ibv_device*)));
  if (!list) return refuse(nic::Error::kNoRoom);
  look_again(std::move(present));
  std::size_t place = 0;
  for (Device* device = known; device; device = device->next_known) {
    hold(*device);
    list[place++] = &device->shell.device;
  }
  count = static_cast<int>(total);
  return list;
}

}  // namespace

void hold(Device& device) { device.holders.fetch_add(1, std::memory_order_relaxed); }

void release(Device* device) {
  if (device->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete device;
}

}  // namespace verbena::verbs

using namespace verbena;

ibv_device** ibv_get_device_list(int* num_devices) {
  int count = 0;
  ibv_device** const list = verbs::pointer_at_border([&] { return verbs::list_devices(count); });
  if (num_devices) *num_devices = count;
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  if (!list) return;
  for (ibv_device** at = list; *at; ++at)
    verbs::release(&verbs::own(*at));
  std::free(static_cast<void*>(list));
}

__be64 ibv_get_device_guid(ibv_device* device) {
  return htobe64(verbs::own(device).description.guid);
}

int ibv_get_device_index(ibv_device* device) { return verbs::own(device).index; }
