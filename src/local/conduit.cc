// SPDX-License-Identifier: MIT
#include "local/conduit.h"

#include <utility>

namespace verbena::local {

Conduit Conduit::prepare(host::SharedMemory memory, std::uint64_t id) {
  Conduit conduit(std::move(memory), id);
  ConduitHeader& header = conduit.header();
  header.magic = ConduitHeader::kMagic;
  header.id = id;
  header.layout_version = host::kLayoutVersion;
  header.request_units = kRequestUnits;
  header.response_units = kResponseUnits;
  return conduit;
}

Conduit Conduit::accept(host::SharedMemory memory, std::uint64_t id) {
  if (!memory || memory.size() < kConduitSize) return {};
  Conduit conduit(std::move(memory), id);
  const ConduitHeader& header = conduit.header();
  const bool fits = header.magic == ConduitHeader::kMagic && header.id == id &&
                    header.layout_version == host::kLayoutVersion &&
                    header.request_units == kRequestUnits &&
                    header.response_units == kResponseUnits;
  return fits ? std::move(conduit) : Conduit{};
}

}  // namespace verbena::local
