// SPDX-License-Identifier: MIT
// What can be imported (ibv_import_device(3)): open devices, domains, regions and device memory of
// this process, each listed from its creation to its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/mutex.h"
#include "nic/objects.h"

namespace verbena::verbs {

struct Context;
struct Pd;
struct Mr;
struct Dm;

// The place of an object in its list, `listed` in each.
template <class Object>
struct Listed {
  const void* in = nullptr;  // the list; a forked child's objects may be in none of its lists
  Object* before = nullptr;
  Object* after = nullptr;
};

template <class Object>
class List {
 public:
  void add(Object& object) {
    const std::lock_guard guard(lock_);
    object.listed = {.in = this, .before = nullptr, .after = first_};
    if (first_) first_->listed.before = &object;
    first_ = &object;
  }
  void remove(Object& object) {
    if (object.listed.in != this) return;
    const std::lock_guard guard(lock_);
    Object* const before = object.listed.before;
    Object* const after = object.listed.after;
    (before ? before->listed.after : first_) = after;
    if (after) after->listed.before = before;
  }
  // Calls use(object) for the first one of which is_it(object) is true; none of them goes
  // meanwhile. False: there is none.
  template <class Is, class Use>
  bool find(Is is_it, Use use) {
    const std::lock_guard guard(lock_);
    for (Object* object = first_; object; object = object->listed.after) {
      if (!is_it(*object)) continue;
      use(*object);
      return true;
    }
    return false;
  }

 private:
  Mutex lock_;
  Object* first_ = nullptr;
};

struct Shareables {
  const nic::Nic* nic = nullptr;  // of the process whose objects these are
  List<Context> contexts;
  List<Pd> domains;
  List<Mr> regions;
  List<Dm> device_memory;
  // Imported domains that were given back while something was left on them.
  List<Pd> abandoned;
  std::atomic<std::uint32_t> device_memory_handles{0};
};
// Of this process: a forked child begins with none.
Shareables& shareables();
// Domains that were abandoned and have nothing on them any more.
void free_abandoned();

}  // namespace verbena::verbs
