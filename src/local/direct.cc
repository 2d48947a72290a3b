// SPDX-License-Identifier: MIT
#include "local/direct.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/fence.h"
#include "base/short_copy.h"
#include "memory/guarded_copy.h"

namespace verbena::local {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

// Programs spin on the last bytes of a WRITE, so the last word goes by itself, after the others. A
// processor that ends with a byte gets an odd number of them: it stores the last one once then.
// Twice would undo what a program that has seen it writes there, as the one for an answer does
// that uses the same byte.
const std::uint64_t kTail = short_copy().ends_with_a_byte ? kWord + 1 : kWord;

// 0: this operation needs the peer's CPU.
std::uint32_t access_of(const qp::Operation& op) {
  switch (op.kind) {
    case qp::OpKind::kWrite: return op.has_immediate ? 0 : std::uint32_t{memory::kRemoteWrite};
    case qp::OpKind::kRead: return memory::kRemoteRead;
    case qp::OpKind::kCompareSwap:
    case qp::OpKind::kFetchAdd: return memory::kRemoteAtomic;
    case qp::OpKind::kSend:
    case qp::OpKind::kFlush:
    case qp::OpKind::kAtomicWrite:
    case qp::OpKind::kBindWindow:
    case qp::OpKind::kLocalInvalidate: break;
  }
  return 0;
}

}  // namespace

void Direct::attach(PeerMemory& peer, QpNum self, QpNum other, ConduitHeader& header,
                    std::uint64_t connection) {
  peer_ = &peer;
  last_ = {};
  self_ = self;
  other_ = other;
  reach_ = header.reach;
  small_.attach(peer, header);
  connection_ = connection;
  done_ = 0;
}

std::optional<std::uint64_t> Direct::grant_for(std::uint32_t access) const {
  const PublishedTables* tables = peer_->tables();
  if (!tables || tables->slot != other_.slot().value) return std::nullopt;
  const PublishedQp& place = tables->queue_pairs[other_.index()];
  const std::uint64_t grant = place.grant.load(std::memory_order_acquire);
  const bool is_ours = grant >> 32 == self_.value && (grant & PublishedQp::kOpen) &&
                       place.connection.load(std::memory_order_relaxed) == connection_;
  if (!is_ours || (grant & access) != access) return std::nullopt;
  return grant;
}

// The check that the peer's responder would make, on what it published.
std::optional<Direct::Target> Direct::find(const qp::Operation& op, std::uint32_t access) const {
  const auto region = peer_->find(op.remote_key);
  if (!region) return std::nullopt;
  const PublishedQp& granted = peer_->tables()->queue_pairs[other_.index()];
  if (region->pd.value != granted.pd.load(std::memory_order_relaxed)) return std::nullopt;
  const std::uint64_t offset = op.remote_address - region->iova;
  if (offset > region->length || op.length > region->length - offset) return std::nullopt;
  if ((region->access & access) != access) return std::nullopt;
  Target target{.identity = region->identity};
  const bool writes = access != memory::kRemoteRead;
  const MappedPart& part = region->mapped;
  if (region->base && offset >= part.begin && offset + op.length <= part.end &&
      (!writes || region->may_write_mapping)) {
    target.mapped = region->base + (offset - part.begin);
  }
  if (region->address != 0) target.address = region->address + offset;
  return target;
}

bool Direct::is_mapped(const qp::Operation& op) const {
  const std::uint32_t access = access_of(op);
  if (access == 0 || op.length == 0 || !grant_for(access)) return false;
  const auto target = find(op, access);
  return target && target->mapped;
}

bool Direct::may_still(const qp::Operation& op, const Target& target, std::uint64_t grant) const {
  const PublishedQp& place = peer_->tables()->queue_pairs[other_.index()];
  return peer_->still_holds(op.remote_key, target.identity) &&
         place.grant.load(std::memory_order_acquire) == grant;
}

Direct::Outcome Direct::execute(qp::SendWindow& window, const qp::Operation& op,
                                qp::Budget& budget) {
  const std::uint32_t access = access_of(op);
  if (!peer_ || access == 0 || op.length == 0) return Outcome::kCannot;
  const auto grant = grant_for(access);
  const auto target = grant ? find(op, access) : std::nullopt;
  const std::uint64_t identity = target ? target->identity : 0;
  // Parts that were done in an earlier publication may have missed this one's memory.
  if (doing_ != op.index || doing_in_ != identity) done_ = 0;
  doing_ = op.index;
  doing_in_ = identity;
  Outcome outcome = Outcome::kCannot;
  if (target && is_atomic(op.kind)) {
    if (target->mapped) outcome = atomic(window, op, target->mapped);
  } else if (target) {
    const std::size_t length = std::min<std::uint64_t>(op.length - done_, budget.bytes);
    if (target->mapped) {
      outcome = copy(window, op, target->mapped + done_, length);
    } else if (target->address != 0 && reach(window, op, *target, *grant, length)) {
      outcome = Outcome::kDone;
    }
    budget.take(length);
    if (outcome == Outcome::kDone) done_ += length;
    if (outcome == Outcome::kDone && done_ < op.length) outcome = Outcome::kPartly;
  }
  // What was taken away meanwhile may have missed the target. An atomic is executed once: who takes
  // away waits for us, so it was in time unless we were given up for stopped.
  if (outcome == Outcome::kDone && !is_atomic(op.kind) && !may_still(op, *target, *grant)) {
    outcome = Outcome::kCannot;
  }
  if (outcome == Outcome::kDone) ++(target->mapped ? mapped_ : reached_);
  if (outcome != Outcome::kPartly) done_ = 0;
  return outcome;
}

bool Direct::remember(MemoryKey key, std::uint32_t access) {
  last_ = {};
  const auto grant = grant_for(access);
  if (!grant) return false;
  const std::uint64_t drops = peer_->drops();  // before: else it may count one that find() missed
  const auto region = peer_->find(key);
  const PublishedTables& tables = *peer_->tables();
  const PublishedQp& granted = tables.queue_pairs[other_.index()];
  if (!region || region->pd.value != granted.pd.load(std::memory_order_relaxed)) return false;
  const MappedPart& part = region->mapped;
  const bool is_reachable = part.file == 0 && region->address != 0;
  // What can be mapped soon will be: until then each operation asks again.
  if (!region->base && !is_reachable) return false;
  const std::uint32_t by_mapping =
      memory::kRemoteRead | (region->may_write_mapping ? std::uint32_t{memory::kRemoteWrite} : 0);
  const std::uint32_t allowed =
      static_cast<std::uint32_t>(*grant) & region->access & (region->base ? by_mapping : ~0U);
  if ((allowed & access) == 0) return false;
  last_ = {.key = key,
           .access = allowed,
           .identity = region->identity,
           .grant = *grant,
           .drops = drops,
           .identity_place = &tables.regions[published_place(key)].identity,
           .grant_place = &granted.grant,
           .first = region->iova + (region->base ? part.begin : 0),
           .size = region->base ? part.end - part.begin : region->length,
           .base = region->base,
           .address = is_reachable ? region->address : 0};
  return true;
}

Direct::Outcome Direct::copy(qp::SendWindow& window, const qp::Operation& op, std::byte* mapped,
                             std::size_t length) {
  const bool copied = op.kind == qp::OpKind::kWrite
                          ? window.gather(op.index, done_, {mapped, length}).has_value()
                          : window.scatter(op.index, done_, {mapped, length}).has_value();
  return copied ? Outcome::kDone : Outcome::kEnded;
}

Direct::Outcome Direct::atomic(qp::SendWindow& window, const qp::Operation& op, std::byte* mapped) {
  if (reinterpret_cast<std::uintptr_t>(mapped) % kWord != 0) return Outcome::kCannot;
  std::uint64_t before = 0;
  const bool done = op.kind == qp::OpKind::kFetchAdd
                        ? memory::guarded_fetch_add(mapped, op.compare_add, before)
                        : memory::guarded_compare_swap(mapped, op.compare_add, op.swap, before);
  if (!done) return Outcome::kCannot;
  std::array<std::byte, kWord> value;
  std::memcpy(value.data(), &before, sizeof before);
  return window.scatter(op.index, 0, value) ? Outcome::kDone : Outcome::kEnded;
}

// Where the responder sees that we are about to reach. Whoever takes our right away clears it first
// and then this; so whether we have it is looked at afterwards.
void Direct::show_reach(std::uint64_t address, std::uint64_t length) {
  const std::uint64_t tail = length > kTail ? kTail : 0;
  reach_[0].address.store(address, std::memory_order_relaxed);
  reach_[0].length.store(length - tail, std::memory_order_relaxed);
  reach_[1].address.store(address + length - tail, std::memory_order_relaxed);
  reach_[1].length.store(tail, std::memory_order_relaxed);
  small_.show(length);
  full_fence();
}

// False: not all of it was moved. The ring finds out why.
bool Direct::call(bool is_write, std::span<const iovec> ours, std::uint64_t address,
                  std::uint64_t length) {
  const bool is_small = is_write && ours.size() == 1;
  bool is_done = is_small && small_.write(static_cast<const std::byte*>(ours.front().iov_base),
                                          length, address);
  if (!is_done) {
    const int saved = errno;
    const long moved =
        syscall(is_write ? SYS_process_vm_writev : SYS_process_vm_readv,
                static_cast<long>(peer_->process()), ours.data(), ours.size(), reach_, 2UL, 0UL);
    errno = saved;
    is_done = moved == static_cast<long>(length);
  }
  small_.prepare();
  return is_done;
}

bool Direct::reach(qp::SendWindow& window, const qp::Operation& op, const Target& target,
                   std::uint64_t grant, std::size_t length) {
  if (peer_->process() == 0) return false;
  std::array<memory::Extent, 2 * queues::kReceiveSgeMax> extents;
  const auto count = window.memory_of(op.index, done_, length, extents);
  if (!count) return false;
  std::array<iovec, extents.size()> ours;
  for (std::size_t i = 0; i < *count; ++i)
    ours[i] = {extents[i].address, extents[i].length};
  const std::uint64_t there = target.address + done_;
  show_reach(there, length);
  return may_still(op, target, grant) &&
         call(op.kind == qp::OpKind::kWrite, std::span(ours).first(*count), there, length);
}

bool Direct::reach_at_once(std::uint32_t access, MemoryKey key, std::uint64_t address,
                           std::byte* ours, std::uint64_t length) {
  const bool knows = is_remembered(access, key) || remember(key, access);
  if (!knows || last_.address == 0 || peer_->process() == 0 || !last_.holds(address, length))
    return false;
  const std::uint64_t there = last_.address + (address - last_.first);
  show_reach(there, length);
  const iovec piece{ours, length};
  const bool done =
      last_.still_holds() && call(access == memory::kRemoteWrite, {&piece, 1}, there, length);
  // What was taken away meanwhile may have missed the target.
  if (!done || !last_.still_holds()) return false;
  ++reached_;
  return true;
}

}  // namespace verbena::local
