// SPDX-License-Identifier: MIT
#include "local/published.h"

#include <utility>

#include "base/assert.h"

namespace verbena::local {

Published::Published(host::SharedMemory memory, SlotNumber slot) : memory_(std::move(memory)) {
  all().slot = slot.value;
  all().magic = PublishedTables::kMagic;
}

SectionLock* Published::lock_of(QpNum number) const {
  if (!memory_ || number.slot().value != tables().slot) return nullptr;
  return &all().queue_pairs[number.index()].lock;
}

void Published::grant(QpNum number, const Grant& grant) const {
  if (!lock_of(number)) return;
  PublishedQp& place = all().queue_pairs[number.index()];
  place.pd.store(grant.pd.value, std::memory_order_relaxed);
  place.connection.store(grant.connection, std::memory_order_relaxed);
  place.grant.store(std::uint64_t{grant.to.value} << 32 | grant.rights | PublishedQp::kOpen,
                    std::memory_order_release);
}

void Published::revoke(QpNum number) const {
  if (!lock_of(number)) return;
  all().queue_pairs[number.index()].grant.store(0, std::memory_order_seq_cst);
}

void Published::show(MemoryKey key, const Region& region) {
  if (!memory_) return;
  PublishedRegion& place = all().regions[published_place(key)];
  VERBENA_ASSERT(place.identity.load(std::memory_order_relaxed) == 0);
  place.pd = region.pd.value;
  place.access = region.access;
  place.iova = region.iova;
  place.length = region.length;
  place.address = reinterpret_cast<std::uint64_t>(region.address);
  place.offset = region.mapped.offset;
  place.file = region.mapped.file;
  place.begin = static_cast<std::uint32_t>(region.mapped.begin);
  place.end = region.mapped.end;
  // Also when the count wraps no key is 0.
  const std::uint64_t identity = std::uint64_t{++publications_} << 32 | key.value;
  place.identity.store(identity, std::memory_order_release);
}

void Published::hide(MemoryKey key) {
  if (!memory_) return;
  all().regions[published_place(key)].identity.store(0, std::memory_order_seq_cst);
}

}  // namespace verbena::local
