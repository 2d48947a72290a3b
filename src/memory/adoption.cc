// SPDX-License-Identifier: MIT
#include "memory/adoption.h"

#include <unistd.h>

#include <new>

#include "base/log.h"
#include "memory/adoption_table.h"
#include "memory/raw_calls.h"

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

// Not on the heap: that is memory of the program, which may register it, and what moves a page must
// not need it meanwhile.
AdoptionTable* new_table(const AdoptionOptions& options) {
  std::byte* const at = raw::map_private(sizeof(AdoptionTable));
  return at == raw::failed() ? nullptr : new (at) AdoptionTable(options);
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

void AdoptionTableEnd::operator()(AdoptionTable* table) const {
  table->~AdoptionTable();
  raw::unmap(reinterpret_cast<std::byte*>(table), sizeof(AdoptionTable));
}

Adoption::Adoption(AdoptionOptions options) : table_(new_table(options)) {}

Adoption::~Adoption() {
  // Somebody else's descriptors, or a fork's copy: the memory stays as it is, and is still copied
  // for forked children.
  if (table_ && !table_->is_ours()) static_cast<void>(table_.release());
}

Result<Adopted, AdoptRefusal> Adoption::adopt(std::byte* address, std::size_t length,
                                              bool peers_may_write, const void* stack) {
  const PageRun body = pages_inside(address, length);
  if (body.length == 0) return refuse(AdoptRefusal::kNoWholePage);
  if (!table_) return refuse(AdoptRefusal::kAddressSpace);
  const ArenaKind kind = peers_may_write ? ArenaKind::kPeersWrite : ArenaKind::kPeersRead;
  auto adopted = table_->adopt(body, kind, static_cast<const std::byte*>(stack));
  if (!adopted) {
    LOG_DEBUG("%zu bytes of memory are not adopted: %s", length, to_string(adopted.error()));
  }
  return adopted;
}

void Adoption::release(AdoptedId id) {
  if (table_) table_->release(id);
}

Result<std::byte*, AdoptRefusal> Adoption::allocate(std::size_t length) {
  if (!table_) return refuse(AdoptRefusal::kAddressSpace);
  return table_->allocate(length);
}

bool Adoption::free(std::byte* address) { return table_ && table_->free(address); }

std::size_t Adoption::expel() { return table_ ? table_->expel() : 0; }

bool Adoption::undo_range(const std::byte* address, std::size_t length) {
  return !table_ || table_->undo_range(address, length);
}

bool Adoption::overlaps(const std::byte* address, std::size_t length) const {
  return table_ && table_->overlaps(address, length);
}

bool Adoption::give_back(std::byte* address, std::size_t length) {
  return !table_ || table_->give_back(address, length);
}

int Adoption::descriptor(ArenaKind kind) const { return table_ ? table_->descriptor(kind) : -1; }

std::uint32_t Adoption::generation() const { return table_ ? table_->generation() : 1; }

bool Adoption::needs_single_thread() const { return !table_ || table_->needs_single_thread(); }

AdoptionCounters Adoption::counters() const {
  return table_ ? table_->counters() : AdoptionCounters{};
}

void Adoption::close() {
  if (table_) table_->close();
}

}  // namespace verbena::memory
