// SPDX-License-Identifier: MIT
// Links: what peers send. Every frame was written by somebody else and is checked before it is
// used.
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "host/links.h"

namespace verbena::host {
namespace {

// Whether process_vm_readv under this pid reaches the process that wrote the greeting. Refused
// where the system restricts it (yama, seccomp, another pid namespace); wrong where the pid is
// another's.
bool reaches_memory(const MemoryOwner& owner) {
  if (owner.pid <= 0) return false;
  std::uint64_t seen = 0;
  const iovec here{&seen, sizeof seen};
  const iovec there{reinterpret_cast<void*>(owner.nonce_address), sizeof seen};
  const ssize_t size = process_vm_readv(owner.pid, &here, 1, &there, 1, 0);
  return size == static_cast<ssize_t>(sizeof seen) && seen == owner.nonce;
}

}  // namespace

void Links::ready(std::uint32_t number, bool writable) {
  Entry* entry = find(number);
  if (!entry) return;
  if (writable) {
    entry->link.flush();
    update_interest(*entry);
  }
  // Some at a time: one that floods us does not keep the others waiting.
  receive(*entry, kFramesPerTurn);
}

// The poller tells the end of a process and the readiness of its link in any order.
void Links::process_ended(std::uint32_t number) {
  Entry* entry = find(number);
  if (!entry) return;
  receive(*entry, kLastFramesMax);
  drop(*entry);
}

void Links::receive(Entry& entry, unsigned frames_max) {
  for (unsigned i = 0; i < frames_max && entry.stage != Stage::kOver; ++i) {
    switch (entry.link.receive(received_, table_)) {
      case Link::Got::kFrame: handle(entry); break;
      case Link::Got::kNothing: return;
      case Link::Got::kEnd: return drop(entry);
      case Link::Got::kRubbish: return reject(entry, Malformed::kLength);
      case Link::Got::kNoDescriptor:
        LOG_WARN("no descriptor for what process %d sent", static_cast<int>(entry.pid));
        return refuse_and_drop(entry, RefuseReason::kBusy);
    }
  }
}

void Links::handle(Entry& entry) {
  const auto frame = parse_frame(received_.bytes);
  if (!frame) return reject(entry, frame.error());
  const bool may_attach = frame->type == FrameType::kHello || frame->type == FrameType::kWelcome ||
                          frame->type == FrameType::kMessage;
  if (received_.attachments[0] && !may_attach) return reject(entry, Malformed::kContent);
  if (entry.stage == Stage::kUp) {
    on_frame_of_peer(entry, *frame);
  } else {
    on_greeting_frame(entry, *frame);
  }
}

void Links::reject(Entry& entry, Malformed why) {
  const bool is_layout = why == Malformed::kLayout;
  LOG_WARN("process %d breaks the rules of links (%d)", static_cast<int>(entry.pid),
           static_cast<int>(why));
  if (is_layout && entry.stage == Stage::kHelloSent) {
    answer(*entry.wanted, std::nullopt, Refusal::kOtherLayout);
  }
  refuse_and_drop(entry, is_layout ? RefuseReason::kOtherLayout : RefuseReason::kMalformed);
}

void Links::on_greeting_frame(Entry& entry, const Frame& frame) {
  const bool asked = entry.stage == Stage::kHelloSent;
  if (frame.type == FrameType::kRefuse) {
    on_refuse(entry, frame.detail);
  } else if (frame.type == FrameType::kWelcome && asked) {
    on_welcome(entry, frame);
  } else if (frame.type == FrameType::kHello && entry.stage == Stage::kAwaitingHello) {
    on_hello(entry, frame);
  } else if (frame.type == FrameType::kReady && entry.stage == Stage::kWelcomed) {
    come_up(entry);
  } else {
    reject(entry, Malformed::kType);
  }
}

void Links::on_refuse(Entry& entry, std::uint32_t reason) {
  drop(entry);
  if (!entry.wanted) return;
  // Of the others, kBusy and kDuplicate pass: it is tried again, or the other link comes up.
  switch (static_cast<RefuseReason>(reason)) {
    case RefuseReason::kOtherUser: return answer(*entry.wanted, std::nullopt, Refusal::kOtherUser);
    case RefuseReason::kMalformed:
    case RefuseReason::kOtherLayout:
      return answer(*entry.wanted, std::nullopt, Refusal::kOtherLayout);
    case RefuseReason::kBusy:
    case RefuseReason::kDuplicate: return;
  }
}

// Checks and keeps what the peer says of itself. False: it was rejected.
bool Links::take_greeting(Entry& entry, const Frame& frame) {
  const auto greeting = parse_greeting(frame);
  if (!greeting) return reject(entry, greeting.error()), false;
  auto& [page_fd, process_fd] = received_.attachments;
  const bool sends_pidfd = (greeting->flags & Greeting::kSendsPidfd) != 0;
  if (greeting->id == identity_.id || !page_fd || static_cast<bool>(process_fd) != sends_pidfd) {
    return reject(entry, Malformed::kContent), false;
  }
  auto page = SharedMemory::adopt(page_fd, sizeof(ProcessPage));
  if (!page) {
    LOG_WARN("the page of process %d: %s", static_cast<int>(entry.pid), to_string(page.error()));
    // Only our own lack of memory passes.
    const bool passes = page.error() == MemoryError::kNoMemory;
    refuse_and_drop(entry, passes ? RefuseReason::kBusy : RefuseReason::kMalformed);
    return false;
  }
  entry.greeting = *greeting;
  entry.page = std::move(*page);
  entry.process = std::move(process_fd);
  return true;
}

void Links::on_hello(Entry& entry, const Frame& frame) {
  if (!take_greeting(entry, frame)) return;
  const SlotNumber wanted{static_cast<std::uint16_t>(entry.greeting.wanted_slot)};
  if (!own_slots_.has(wanted)) return reject(entry, Malformed::kContent);
  if (find(entry.greeting.id, entry)) return refuse_and_drop(entry, RefuseReason::kDuplicate);
  if (up_.size() >= options_.peers_max) return refuse_and_drop(entry, RefuseReason::kBusy);
  if (!send_greeting(entry, FrameType::kWelcome)) return;
  entry.stage = Stage::kWelcomed;
}

void Links::on_welcome(Entry& entry, const Frame& frame) {
  if (!take_greeting(entry, frame)) return;
  if (!entry.greeting.slots.has(*entry.wanted)) return reject(entry, Malformed::kContent);
  if (Entry* other = find(entry.greeting.id, entry)) {
    // Two links with one process: we asked for this one, it asked for the other.
    const bool ours_stays = other->stage == Stage::kWelcomed && identity_.id < entry.greeting.id;
    if (!ours_stays) return drop(entry);
    drop(*other);
  }
  if (up_.size() >= options_.peers_max) return refuse_and_drop(entry, RefuseReason::kBusy);
  if (send_frame(entry, FrameType::kReady, {}, {})) come_up(entry);
}

void Links::come_up(Entry& entry) {
  const Greeting& greeting = entry.greeting;
  if (!up_.emplace(greeting.id, entry.number).second) return drop(entry);
  greeted(entry);
  entry.stage = Stage::kUp;
  entry.was_up = true;
  if (entry.process) poller_.add(entry.process.get(), {Source::kPeerProcess, entry.number});
  tell_slots(entry);
  const MemoryOwner owner{entry.pid, greeting.nonce_address, greeting.nonce};
  const bool readable = reaches_memory(owner);
  LOG_DEBUG("process %d is linked, its memory is%s readable", static_cast<int>(entry.pid),
            readable ? "" : " not");
  events_.peer_up(std::make_unique<Peer>(greeting.id, owner, readable, std::move(entry.page)));
}

void Links::on_frame_of_peer(Entry& entry, const Frame& frame) {
  auto& [attachment, surplus] = received_.attachments;
  if (frame.type == FrameType::kMessage && !surplus) {
    return events_.message(entry.greeting.id, frame.body, std::move(attachment));
  }
  const auto slots = parse_slots(frame);
  if (frame.type != FrameType::kSlots || !slots) return reject(entry, Malformed::kType);
  entry.greeting.slots = *slots;
}

}  // namespace verbena::host
