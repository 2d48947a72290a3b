// SPDX-License-Identifier: MIT
#include "endpoint.h"

#include <algorithm>

#include "base/assert.h"

namespace verbena::sim {

Endpoint::Endpoint(unsigned number, SeededRandom& random, Failures& failures,
                   std::uint32_t completions)
    : pd{2 * number + 1},
      other_pd{2 * number + 2},
      table(32, random, sections),
      sends(completions, this),
      receives(completions, this),
      failures_(failures),
      base_((std::uint64_t{number} + 1) << 32),
      memory_(kMemorySize) {
  for (std::byte& byte : memory_)
    byte = static_cast<std::byte>(random.next() >> 56);
  shadow_ = memory_;
  key = add_region(pd, kAllAccess);
  revocable = add_region(pd, kAllAccess);
  no_rights = add_region(pd, 0);
  foreign = add_region(other_pd, kAllAccess);
}

MemoryKey Endpoint::add_region(PdId domain, std::uint32_t access) {
  // Addresses of work requests that are the same in every run.
  const auto added = table.add({.pd = domain,
                                .iova = base_,
                                .access = access,
                                .extents = {{memory_.data(), memory_.size()}}});
  VERBENA_ASSERT(added.has_value());
  regions_[*added] = {.pd = domain, .access = access};
  return *added;
}

void Endpoint::revoke() {
  if (is_revoked) return;
  is_revoked = true;
  regions_[revocable].is_there = false;
  failures_.check(table.remove(revocable), "a region could not be removed");
}

bool Endpoint::may_touch(MemoryKey which, PdId domain, std::uint64_t address, std::uint64_t length,
                         std::uint32_t access) const {
  const auto found = regions_.find(which);
  if (found == regions_.end() || !found->second.is_there || found->second.pd != domain)
    return false;
  if (address < base_ || address - base_ > kMemorySize) return false;
  return length <= kMemorySize - (address - base_) && (found->second.access & access) == access;
}

std::vector<std::byte> Endpoint::shadow_at(std::uint64_t address, std::size_t length) const {
  const std::byte* begin = shadow_.data() + (address - base_);
  return {begin, begin + length};
}

void Endpoint::shadow_write(std::uint64_t address, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, shadow_.begin() + static_cast<std::ptrdiff_t>(address - base_));
}

void Endpoint::shadow_scatter(std::span<const Sge> sges, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  for (const Sge& sge : sges) {
    if (bytes.empty()) return;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::size_t part = std::min<std::size_t>(bytes.size(), sge.length - offset);
    shadow_write(sge.address + offset, bytes.first(part));
    bytes = bytes.subspan(part);
    offset = 0;
  }
  failures_.check(bytes.empty(), "more bytes than the SGEs have", bytes.size());
}

void Endpoint::compare_memory() {
  for (std::size_t i = 0; i < kMemorySize; ++i) {
    if (memory_[i] == shadow_[i]) continue;
    return failures_.add("memory of endpoint " + std::to_string(pd.value / 2) + " differs at " +
                         std::to_string(i));
  }
}

}  // namespace verbena::sim
