// SPDX-License-Identifier: MIT
// Advice about regions whose pages come when they are used. A page fault is the processor's affair
// here, so no advice is ever needed: it saves the first access the fault.
#include "memory/page_check.h"
#include "nic/nic.h"
#include "nic/objects.h"

namespace verbena::nic {
namespace {

bool bring(const memory::Extent& extent, Prefetch how) {
  switch (how) {
    case Prefetch::kForReading: return memory::fault_in(extent.address, extent.length, false);
    case Prefetch::kForWriting: return memory::fault_in(extent.address, extent.length, true);
    case Prefetch::kReady: return true;
  }
  return false;
}

}  // namespace

Result<void, Error> prefetch(Pd& pd, Prefetch how, std::span<const Sge> ranges) {
  if (!pd.context->is_usable()) return refuse(Error::kGone);
  const std::uint32_t access =
      how == Prefetch::kForWriting ? std::uint32_t{memory::kLocalWrite} : 0;
  for (const Sge& range : ranges) {
    const auto extents =
        pd.context->nic().regions().look_up(range.key, pd.id, range.address, range.length, access);
    if (!extents) return refuse(Error::kFault);
    for (const memory::Extent& extent : *extents) {
      if (!bring(extent, how)) return refuse(Error::kFault);
    }
  }
  return {};
}

}  // namespace verbena::nic
