// SPDX-License-Identifier: MIT
#include <cstring>

#include "memory/raw_calls.h"
#include "nic/nic.h"
#include "nic/objects.h"
#include "nic/sharing.h"

namespace verbena::nic {
namespace {

constexpr std::uint32_t kWord = 4;  // what hardware copies at a time

std::uint32_t in_pages(std::size_t length) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return static_cast<std::uint32_t>((length + page - 1) / page * page);
}

Result<std::byte*, Error> place_in(Dm& dm, std::uint64_t offset, std::size_t length) {
  if (!dm.context->is_usable()) return refuse(Error::kGone);
  if (offset > dm.length || length > dm.length - offset) return refuse(Error::kFault);
  if (offset % kWord != 0 || length % kWord != 0) return refuse(Error::kInvalid);
  return dm.memory + offset;
}

// Where nothing can be shared it is memory like any other, and peers take the ring.
Result<void, Error> find_memory(Dm& dm) {
  const auto shared = dm.context->nic().sharing().allocate(dm.size);
  dm.is_shared = shared.has_value();
  dm.memory = shared ? *shared : memory::raw::map_private(dm.size);
  if (dm.memory == memory::raw::failed()) return refuse(Error::kNoRoom);
  return {};
}

}  // namespace

Result<Dm*, Error> alloc_dm(Context& context, std::size_t length) {
  if (!context.is_usable()) return refuse(Error::kGone);
  if (length == 0) return refuse(Error::kInvalid);
  Nic& nic = context.nic();
  const std::uint32_t most = nic.limits().device_memory_bytes;
  if (length > most) return refuse(Error::kNoRoom);
  auto dm = std::make_unique<Dm>();
  dm->context = &context;
  dm->length = static_cast<std::uint32_t>(length);
  dm->size = in_pages(length);
  std::atomic<std::uint32_t>& used = nic.counts().device_memory;
  std::uint32_t before = used.load(std::memory_order_relaxed);
  do {
    if (dm->size > most - before) return refuse(Error::kNoRoom);
  } while (!used.compare_exchange_weak(before, before + dm->size, std::memory_order_relaxed));
  if (const auto found = find_memory(*dm); !found) {
    used.fetch_sub(dm->size, std::memory_order_relaxed);
    return refuse(found.error());
  }
  context.count_objects(1);
  return dm.release();
}

Result<void, Error> free_dm(Dm* dm) {
  if (dm->dependents.load() != 0) return refuse(Error::kBusy);
  Context& context = *dm->context;
  if (context.is_usable()) {
    // That the control thread takes its time changes nothing.
    if (dm->is_shared) static_cast<void>(context.nic().sharing().free(dm->memory));
    context.nic().counts().device_memory.fetch_sub(dm->size, std::memory_order_relaxed);
  }
  if (!dm->is_shared) memory::raw::unmap(dm->memory, dm->size);
  context.count_objects(-1);
  delete dm;
  return {};
}

Result<void, Error> copy_to_dm(Dm& dm, std::uint64_t offset, const void* from, std::size_t length) {
  const auto place = place_in(dm, offset, length);
  if (!place) return refuse(place.error());
  std::memcpy(*place, from, length);
  return {};
}

Result<void, Error> copy_from_dm(Dm& dm, std::uint64_t offset, void* to, std::size_t length) {
  const auto place = place_in(dm, offset, length);
  if (!place) return refuse(place.error());
  std::memcpy(to, *place, length);
  return {};
}

}  // namespace verbena::nic
