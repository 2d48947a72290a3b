// SPDX-License-Identifier: MIT
#include "local/conduit.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/assert.h"
#include "host/raw_memory.h"

namespace verbena::local {

struct ConduitFile::Shared {
  host::SharedMemory memory;
  std::atomic<std::uint32_t> references{1};
};

ConduitFile::ConduitFile(host::SharedMemory memory) {
  if (memory) shared_ = new Shared{std::move(memory)};
}

ConduitFile::ConduitFile(const ConduitFile& other) : shared_(other.shared_) {
  if (shared_) shared_->references.fetch_add(1, std::memory_order_relaxed);
}

ConduitFile::~ConduitFile() {
  if (shared_ && shared_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared_;
}

std::uint32_t ConduitFile::conduits() const {
  if (!shared_) return 0;
  return static_cast<std::uint32_t>(
      std::min<std::size_t>(kMost, shared_->memory.size() / kConduitSize));
}

std::byte* ConduitFile::at(std::uint32_t index) const {
  return index < conduits() ? shared_->memory.data() + index * kConduitSize : nullptr;
}

bool ConduitFile::is_ours() const { return shared_ && shared_->memory.is_ours(); }

Conduit::~Conduit() {
  // The peer may write to `ends_gone` whatever it likes: then it is its own connection that loses
  // its content early.
  if (!at_ || !file_.is_ours() || file_.conduits() == 1) return;
  if (header().ends_gone.fetch_add(1, std::memory_order_acq_rel) != 1) return;
  host::raw_advise(at_, kConduitSize, MADV_REMOVE);  // a refusal only costs memory
}

Conduit Conduit::prepare(const ConduitFile& file, std::uint32_t index, std::uint64_t id) {
  Conduit conduit(file, index, id);
  VERBENA_ASSERT(conduit);
  ConduitHeader& header = conduit.header();
  header.magic = ConduitHeader::kMagic;
  header.id = id;
  header.layout_version = host::kLayoutVersion;
  header.request_units = kRequestUnits;
  header.response_units = kResponseUnits;
  return conduit;
}

Conduit Conduit::accept(const ConduitFile& file, std::uint32_t index, std::uint64_t id) {
  Conduit conduit(file, index, id);
  if (!conduit) return {};
  const ConduitHeader& header = conduit.header();
  const bool fits = header.magic == ConduitHeader::kMagic && header.id == id &&
                    header.layout_version == host::kLayoutVersion &&
                    header.request_units == kRequestUnits &&
                    header.response_units == kResponseUnits;
  return fits ? std::move(conduit) : Conduit{};
}

}  // namespace verbena::local
