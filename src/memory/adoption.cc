// SPDX-License-Identifier: MIT
#include "memory/adoption.h"

#include <unistd.h>

#include "base/log.h"
#include "memory/adoption_table.h"

namespace verbena::memory {
namespace {

// Length 0: there is none.
PageRun pages_inside(std::byte* address, std::size_t length) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = (begin + length) / page * page;
  const std::uintptr_t first = (begin + page - 1) / page * page;
  if (begin + length < begin || first < begin || end <= first) return {};
  return {.begin = reinterpret_cast<std::byte*>(first), .length = end - first};
}

}  // namespace

const char* to_string(AdoptRefusal refusal) {
  switch (refusal) {
    case AdoptRefusal::kNoWholePage: return "no whole page";
    case AdoptRefusal::kTooLarge: return "too large";
    case AdoptRefusal::kTooMuch: return "too much memory is adopted already";
    case AdoptRefusal::kTooMany: return "too many ranges are adopted already";
    case AdoptRefusal::kOverlap: return "a part of it is adopted already";
    case AdoptRefusal::kOtherRights: return "adopted already, with other rights for peers";
    case AdoptRefusal::kNotPlain: return "not one plain private mapping";
    case AdoptRefusal::kLocked: return "the process has locked memory";
    case AdoptRefusal::kPinned: return "somebody has pinned its pages";
    case AdoptRefusal::kTrackedElsewhere: return "the program has a userfaultfd on it";
    case AdoptRefusal::kOtherThreads: return "the process has other threads";
    case AdoptRefusal::kAsynchronousIo: return "the process has asynchronous I/O";
    case AdoptRefusal::kSleepers: return "a thread sleeps on a futex in it";
    case AdoptRefusal::kAddressSpace: return "too little address space or too many mappings";
    case AdoptRefusal::kFileSizeLimit: return "a limit on the size of files";
    case AdoptRefusal::kNoMemory: return "no memory left";
    case AdoptRefusal::kNoDescriptor: return "no descriptor left";
    case AdoptRefusal::kDenied: return "denied by the system, or unknown to it";
    case AdoptRefusal::kShutDown: return "shut down";
  }
  return "?";
}

Adoption::Adoption(AdoptionOptions options) : table_(std::make_unique<AdoptionTable>(options)) {}

Adoption::~Adoption() {
  // Somebody else's descriptors, or a fork's copy: the memory stays as it is, and is still copied
  // for forked children.
  if (!table_->is_ours()) static_cast<void>(table_.release());
}

Result<Adopted, AdoptRefusal> Adoption::adopt(std::byte* address, std::size_t length,
                                              bool peers_may_write, const void* stack) {
  const PageRun body = pages_inside(address, length);
  if (body.length == 0) return refuse(AdoptRefusal::kNoWholePage);
  const ArenaKind kind = peers_may_write ? ArenaKind::kPeersWrite : ArenaKind::kPeersRead;
  auto adopted = table_->adopt(body, kind, static_cast<const std::byte*>(stack));
  if (!adopted) {
    LOG_DEBUG("%zu bytes of memory are not adopted: %s", length, to_string(adopted.error()));
  }
  return adopted;
}

void Adoption::release(AdoptedId id) { table_->release(id); }

Result<std::byte*, AdoptRefusal> Adoption::allocate(std::size_t length) {
  return table_->allocate(length);
}

bool Adoption::free(std::byte* address) { return table_->free(address); }

std::size_t Adoption::expel() { return table_->expel(); }

bool Adoption::undo_range(const std::byte* address, std::size_t length) {
  return table_->undo_range(address, length);
}

bool Adoption::overlaps(const std::byte* address, std::size_t length) const {
  return table_->overlaps(address, length);
}

bool Adoption::give_back(std::byte* address, std::size_t length) {
  return table_->give_back(address, length);
}

int Adoption::descriptor(ArenaKind kind) const { return table_->descriptor(kind); }

std::uint32_t Adoption::generation() const { return table_->generation(); }

bool Adoption::needs_single_thread() const { return table_->needs_single_thread(); }

AdoptionCounters Adoption::counters() const { return table_->counters(); }

void Adoption::close() { table_->close(); }

}  // namespace verbena::memory
