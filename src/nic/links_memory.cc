// SPDX-License-Identifier: MIT
// What links carry so that processes reach each other's memory: the published tables and the files
// of adopted memory.
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "nic/engine.h"
#include "nic/links.h"
#include "nic/nic.h"

namespace verbena::nic {
namespace {

// A descriptor for each peer and file is a luxury: without it the peer's memory is not mapped, but
// without one for its link the peer cannot be reached at all.
std::size_t most_files_kept() {
  constexpr std::size_t kShare = 2;
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / kShare : 0;
}

}  // namespace

Link::Link(Links& links, memory::AccessSections& sections, std::unique_ptr<host::Peer> peer)
    : links_(links),
      id_(peer->id()),
      peer_(std::move(peer)),
      doorbell_(peer_->page()),
      memory_(peer_->memory_readable() ? peer_->memory_owner() : host::MemoryOwner{}, *this,
              sections) {}

Link::Link(Links& links, memory::AccessSections& sections, host::PeerId id,
           host::ProcessPage& own_page)
    : links_(links), id_(id), doorbell_(own_page), memory_({.pid = getpid()}, *this, sections) {}

// One at a time: who is not first asks again with its next operation.
void Link::want_mapping(MemoryKey key) {
  if (is_mapping_wanted_.exchange(true, std::memory_order_relaxed)) return;
  if (!links_.map_soon(id_, key, is_mapping_wanted_)) {
    is_mapping_wanted_.store(false, std::memory_order_relaxed);
  }
}

void Link::want_room() { links_.wake_engine(); }

void Links::wake_engine() { engine_.wake(); }

bool Links::map_soon(host::PeerId peer, MemoryKey key, std::atomic<bool>& is_wanted) {
  return control_->submit([this, peer, key, &is_wanted] {
    const auto found = processes_.find(peer);
    if (found == processes_.end()) return;  // with its link, perhaps
    is_wanted.store(false, std::memory_order_relaxed);
    found->second.link->memory().map_now(key, found->second.files);
  });
}

std::vector<host::PeerId> Links::peers() const {
  std::vector<host::PeerId> all;
  for (const auto& [id, process] : processes_)
    all.push_back(id);
  return all;
}

void Links::pass_tables(host::PeerId to, const host::PrivateFd& tables) {
  const auto found = processes_.find(to);
  if (found == processes_.end()) return;
  send(found->second, {.kind = MessageKind::kTables, .conduit_id = 0}, &tables);
}

void Links::pass_file(host::PeerId to, local::FileId id, const host::PrivateFd& file) {
  const auto found = processes_.find(to);
  if (found == processes_.end()) return;
  send(found->second, {.kind = MessageKind::kFile, .conduit_id = id.value}, &file);
}

void Links::take_tables(Process& from, const host::PrivateFd& attachment) {
  auto memory = host::SharedMemory::adopt_read_only(attachment, local::kPublishedSize);
  if (memory) from.link->memory().take_tables(std::move(*memory));
}

void Links::take_file(Process& from, const Message& passed, host::PrivateFd attachment) {
  std::size_t kept = 0;
  for (const auto& [id, process] : processes_)
    kept += process.files.count();
  if (!keeps_files_ || kept >= most_files_kept()) return;
  from.files.take(local::FileId{static_cast<std::uint32_t>(passed.conduit_id)},
                  std::move(attachment));
  from.link->memory().forget_failures();
}

// Those peers' new regions are reached otherwise from now on.
bool Links::spare_descriptors() {
  keeps_files_ = false;
  std::size_t dropped = 0;
  for (auto& [id, process] : processes_) {
    dropped += process.files.count();
    process.files.drop();
  }
  if (dropped != 0) LOG_INFO("no descriptor left: %zu files of peers are given up", dropped);
  return dropped != 0;
}

}  // namespace verbena::nic
