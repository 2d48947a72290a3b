// SPDX-License-Identifier: MIT
#include "local/peer_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <utility>
#include <vector>

#include "base/log.h"
#include "host/raw_calls.h"
#include "host/raw_memory.h"

namespace verbena::local {
namespace {

// Of one peer. A hostile one shall not use up our address space.
constexpr std::uint64_t kMappedMax = std::uint64_t{1} << 36;

// Mappings of all peers together: a process has 65,530, and the program needs most of them.
constexpr std::uint32_t kMappingsOfAllMax = 16'384;
constinit std::atomic<std::uint32_t> mappings_of_all{0};

constexpr std::size_t kPlacesSize = kPublishedRegions * sizeof(std::atomic<void*>);

// What a peer says of its file makes sense: anything else is as if it was not mapped.
bool is_sound(const MappedPart& part, std::uint64_t length) {
  return part.file != 0 && part.begin < part.end && part.end <= length &&
         part.end - part.begin <= kMappedMax && part.offset <= std::uint64_t{1} << 62;
}

// Memory that stays as long as we map it. A file system of the peer's own could hold us in a page
// fault, a device do anything.
bool is_memory(int file) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_SEAL;
  const int seals = host::raw::seals(file);
  struct statfs system{};
  return seals >= 0 && (seals & kSeals) == kSeals && host::raw::file_system(file, system) == 0 &&
         system.f_type == TMPFS_MAGIC;
}

bool holds(int file, const MappedPart& part) {
  struct stat status{};
  return host::raw::status(file, status) == 0 &&
         part.offset + (part.end - part.begin) <= static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

void PeerFiles::take(FileId id, host::PrivateFd descriptor) {
  if (!descriptor || !is_memory(descriptor.get())) return;
  if (files_.size() >= kMost && !files_.contains(id)) files_.erase(files_.begin());
  files_.insert_or_assign(id, std::move(descriptor));
}

int PeerFiles::find(FileId id) const {
  const auto found = files_.find(id);
  return found == files_.end() ? -1 : found->second.get();
}

PeerMemory::PeerMemory(const host::MemoryOwner& owner, MappingRequests& requests,
                       memory::AccessSections& sections)
    : process_(owner.pid), file_(owner), requests_(requests), sections_(sections) {}

// Whoever may look has gone before: nobody to wait for.
PeerMemory::~PeerMemory() {
  for (const auto& [place, mapping] : mappings_)
    unmap(*mapping);
  if (places()) host::raw_unmap(places(), kPlacesSize);
}

bool PeerMemory::fits(const Mapping& mapping, const MappedPart& part) {
  return mapping.file == part.file && mapping.offset == part.offset &&
         mapping.length == part.end - part.begin;
}

std::optional<PeerMemory::Region> PeerMemory::read(MemoryKey key) const {
  const PublishedTables* all = tables();
  if (!all) return std::nullopt;
  const PublishedRegion& place = all->regions[published_place(key)];
  Region region;
  region.identity = place.identity.load(std::memory_order_acquire);
  if (static_cast<std::uint32_t>(region.identity) != key.value || key.value == 0) {
    return std::nullopt;
  }
  region.pd = {place.pd};
  region.access = place.access;
  region.iova = place.iova;
  region.length = place.length;
  region.address = place.address;
  region.mapped = {
      .begin = place.begin, .end = place.end, .offset = place.offset, .file = place.file};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (place.identity.load(std::memory_order_relaxed) != region.identity) return std::nullopt;
  if (!is_sound(region.mapped, region.length)) region.mapped = {};
  return region;
}

std::optional<PeerMemory::Region> PeerMemory::find(MemoryKey key) {
  std::optional<Region> region = read(key);
  if (!region || region->mapped.file == 0) return region;
  const auto* all = places();
  const Mapping* mapping =
      all ? all[published_place(key)].load(std::memory_order_acquire) : nullptr;
  if (!mapping || !fits(*mapping, region->mapped)) {
    requests_.want_mapping(key);
    return region;
  }
  region->base = mapping->base;
  region->may_write_mapping = FileId{region->mapped.file}.is_writable();
  return region;
}

// -- the control thread -------------------------------------------------------------------------

void PeerMemory::take_tables(host::SharedMemory memory) {
  if (memory_) return;  // a peer has one
  const auto& all = memory.at<PublishedTables>(0);
  if (all.magic != PublishedTables::kMagic) return;
  memory_ = std::move(memory);
  tables_.store(&memory_.at<PublishedTables>(0), std::memory_order_release);
}

void PeerMemory::forget_failures() {
  std::vector<std::uint32_t> failed;
  for (const auto& [place, mapping] : mappings_) {
    if (!mapping->base) failed.push_back(place);
  }
  drop(failed);
}

bool PeerMemory::make_places() {
  if (places()) return true;
  void* const at = host::raw_map(kPlacesSize, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (at == MAP_FAILED) return false;
  places_.store(static_cast<std::atomic<const Mapping*>*>(at), std::memory_order_release);
  return true;
}

void PeerMemory::map_now(MemoryKey key, const PeerFiles& files) {
  const std::optional<Region> region = read(key);
  if (!region || region->mapped.file == 0 || !make_places()) return;
  const std::uint32_t place = published_place(key);
  if (const auto found = mappings_.find(place); found != mappings_.end()) {
    if (fits(*found->second, region->mapped)) return;
    drop({place});
  }
  const std::uint64_t length = region->mapped.end - region->mapped.begin;
  if (!has_room(length)) drop_stale();
  // What finds no room is noted as well, or each operation would ask again.
  std::unique_ptr<Mapping> mapping = map(*region, files);
  LOG_DEBUG("%llu bytes of process %d are%s mapped",
            static_cast<unsigned long long>(mapping->length), static_cast<int>(process_),
            mapping->base ? "" : " not");
  places()[place].store(mapping.get(), std::memory_order_release);
  mappings_.emplace(place, std::move(mapping));
}

bool PeerMemory::has_room(std::uint64_t length) const {
  return mapped_ < kMappingsMax && length <= kMappedMax - mapped_bytes_ &&
         mappings_of_all.load(std::memory_order_relaxed) < kMappingsOfAllMax;
}

void PeerMemory::unmap(const Mapping& mapping) {
  if (!mapping.pages) return;
  host::raw_unmap(mapping.pages, mapping.size);
  --mapped_;
  mapped_bytes_ -= mapping.length;
  mappings_of_all.fetch_sub(1, std::memory_order_relaxed);
}

std::unique_ptr<PeerMemory::Mapping> PeerMemory::map(const Region& region, const PeerFiles& files) {
  const MappedPart& part = region.mapped;
  auto mapping = std::make_unique<Mapping>();
  mapping->file = part.file;
  mapping->offset = part.offset;
  mapping->length = part.end - part.begin;
  const int file = files.find(FileId{part.file});
  if (file < 0 || !holds(file, part) || !has_room(mapping->length)) return mapping;
  const std::uint64_t inside = part.offset % host::page_size();
  const std::size_t size =
      (inside + mapping->length + host::page_size() - 1) / host::page_size() * host::page_size();
  const int rights = PROT_READ | (FileId{part.file}.is_writable() ? PROT_WRITE : 0);
  void* const at = host::raw_map(size, MAP_SHARED, file, rights, part.offset - inside);
  if (at == MAP_FAILED) return mapping;
  // A child of ours must not write into the peer.
  if (!host::raw_advise(at, size, MADV_DONTFORK)) {
    host::raw_unmap(at, size);
    return mapping;
  }
  host::raw_advise(at, size, MADV_DONTDUMP);
  mapping->pages = static_cast<std::byte*>(at);
  mapping->size = size;
  mapping->base = mapping->pages + inside;
  ++mapped_;
  mapped_bytes_ += mapping->length;
  mappings_of_all.fetch_add(1, std::memory_order_relaxed);
  return mapping;
}

void PeerMemory::drop(const std::vector<std::uint32_t>& all) {
  if (all.empty()) return;
  for (const std::uint32_t place : all)
    places()[place].store(nullptr, std::memory_order_seq_cst);
  drops_.fetch_add(1, std::memory_order_seq_cst);
  sections_.wait_until_left();
  for (const std::uint32_t place : all) {
    const auto found = mappings_.find(place);
    unmap(*found->second);
    mappings_.erase(found);
  }
}

// Those whose region is gone; and those that found no room, to try again.
void PeerMemory::drop_stale() {
  std::vector<std::uint32_t> stale;
  bool makes_room = false;
  for (const auto& [place, mapping] : mappings_) {
    const PublishedRegion& region = tables()->regions[place];
    const bool is_used = region.identity.load(std::memory_order_relaxed) != 0 &&
                         region.file == mapping->file && region.offset == mapping->offset;
    if (!is_used || !mapping->base) stale.push_back(place);
    makes_room |= !is_used && mapping->base;
  }
  if (makes_room) drop(stale);
}

}  // namespace verbena::local
