// SPDX-License-Identifier: MIT
// Links: their table, what is sent, and what is due. What is received is in links_receive.cc.
#include "host/links.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "host/raw_calls.h"

namespace verbena::host {
namespace {

static_assert(sizeof(FrameHead) + Control::kMessageMax == kFrameMax);

constexpr Duration kPauseMax = Duration::milliseconds(50);
constexpr Duration kStarvedPause = Duration::milliseconds(5);

// Who is at the other end: the process that called connect, or listen.
std::optional<ucred> credentials(const PrivateFd& socket) {
  ucred who{};
  if (raw::peer_credentials(socket.get(), who) != 0) return std::nullopt;
  return who;
}

}  // namespace

auto Links::find(std::uint32_t number) -> Entry* {
  const auto found = entries_.find(number);
  return found == entries_.end() || found->second.stage == Stage::kOver ? nullptr : &found->second;
}

// The link, other than `but`, that we have decided for with this process.
auto Links::find(PeerId id, const Entry& but) -> Entry* {
  for (auto& [number, entry] : entries_) {
    const bool decided = entry.stage == Stage::kUp || entry.stage == Stage::kWelcomed;
    if (decided && &entry != &but && entry.greeting.id == id) return &entry;
  }
  return nullptr;
}

auto Links::add(PrivateFd socket, Stage stage, pid_t pid) -> Entry& {
  const std::uint32_t number = ++last_number_;
  Entry& entry =
      entries_
          .emplace(number, Entry{.link = Link(std::move(socket), options_.queued_bytes_max),
                                 .stage = stage,
                                 .number = number,
                                 .pid = pid,
                                 .give_up = now_ + options_.patience,
                                 .wanted = {},
                                 .told = {},
                                 .greeting = {},
                                 .page = {},
                                 .process = {}})
          .first->second;
  ++greeting_;
  if (stage != Stage::kHelloSent) ++accepted_;
  if (!poller_.add(entry.link.fd(), {Source::kLink, number})) drop(entry);
  return entry;
}

// The entry stays until tend(): callers may still hold it.
void Links::drop(Entry& entry) {
  if (entry.stage == Stage::kOver) return;
  if (entry.stage == Stage::kUp) {
    up_.erase(entry.greeting.id);
  } else {
    greeted(entry);
  }
  entry.stage = Stage::kOver;
  poller_.remove(entry.link.fd());
  if (entry.process) poller_.remove(entry.process.get());
  over_.push_back(entry.number);
}

// Before it leaves its stage: it is up, or over.
void Links::greeted(const Entry& entry) {
  --greeting_;
  if (entry.stage != Stage::kHelloSent) --accepted_;
}

void Links::drop_all() {
  for (auto& [number, entry] : entries_)
    drop(entry);
}

void Links::refuse_and_drop(Entry& entry, RefuseReason reason) {
  send_frame(entry, FrameType::kRefuse, {}, {}, static_cast<std::uint32_t>(reason));
  drop(entry);
}

bool Links::send_frame(Entry& entry, FrameType type, std::span<const std::byte> body,
                       std::span<const int> fds, std::uint32_t detail) {
  if (entry.stage == Stage::kOver) return false;
  const FrameHead head{.type = type, .detail = detail};
  if (!entry.link.send(head, body, fds, table_)) {
    LOG_WARN("process %d does not read what we send", static_cast<int>(entry.pid));
    drop(entry);
    return false;
  }
  update_interest(entry);
  return true;
}

bool Links::send_greeting(Entry& entry, FrameType type) {
  const Greeting greeting{
      .id = identity_.id,
      .nonce_address = reinterpret_cast<std::uintptr_t>(identity_.nonce),
      .nonce = *identity_.nonce,
      .flags = identity_.pidfd >= 0 ? Greeting::kSendsPidfd : 0,
      .wanted_slot = entry.wanted.value_or(SlotNumber{}).value,
      .slots = own_slots_,
  };
  entry.told = own_slots_;
  const int fds[] = {identity_.page_fd, identity_.pidfd};
  return send_frame(entry, type, std::as_bytes(std::span(&greeting, 1)),
                    std::span(fds).first(identity_.pidfd >= 0 ? 2 : 1));
}

void Links::add_own_slot(SlotNumber slot) {
  own_slots_.add(slot);
  for (auto& [number, entry] : entries_) {
    if (entry.stage == Stage::kUp) tell_slots(entry);
  }
}

void Links::tell_slots(Entry& entry) {
  if (std::ranges::equal(entry.told.words, own_slots_.words)) return;
  entry.told = own_slots_;
  send_frame(entry, FrameType::kSlots, std::as_bytes(std::span(&own_slots_, 1)), {});
}

void Links::update_interest(Entry& entry) {
  if (entry.stage == Stage::kOver) return;
  is_starved_ |= entry.link.is_starved();
  if (entry.link.is_behind() == entry.watches_writable) return;
  entry.watches_writable = entry.link.is_behind();
  poller_.watch_writable(entry.link.fd(), {Source::kLink, entry.number}, entry.watches_writable);
}

bool Links::send(PeerId to, std::span<const std::byte> bytes, const PrivateFd* attachment) {
  const auto found = up_.find(to);
  if (found == up_.end() || bytes.size() > Control::kMessageMax) return false;
  Entry& entry = entries_.at(found->second);
  const int fd = attachment && *attachment ? attachment->get() : -1;
  return send_frame(entry, FrameType::kMessage, bytes, std::span(&fd, fd >= 0 ? 1 : 0));
}

bool Links::has_queued(PeerId to) const {
  const auto found = up_.find(to);
  return found != up_.end() && entries_.at(found->second).link.has_queued();
}

std::optional<PeerId> Links::holder(SlotNumber slot) const {
  for (const auto& [id, number] : up_) {
    if (entries_.at(number).greeting.slots.has(slot)) return id;
  }
  return std::nullopt;
}

void Links::connect(SlotNumber slot) {
  wanted_.try_emplace(slot, Wanted{.give_up = now_ + options_.patience, .next_try = now_});
}

void Links::try_connect(SlotNumber slot, Wanted& wanted) {
  PrivateFd socket = table_.make(raw::seqpacket_socket);
  if (!socket) return retry_later(wanted);
  const SlotAddress address(options_.slot_name, slot);
  if (raw::connect(socket.get(), address.address(), address.size) != 0) {
    switch (errno) {
      case ECONNREFUSED: return answer(slot, std::nullopt, Refusal::kNobody);
      case EACCES:
      case EPERM: return answer(slot, std::nullopt, Refusal::kOtherUser);
      case EAGAIN:  // as many wait already as it lets wait
      case EINTR:
      case ENOBUFS:
      case ENOMEM: return retry_later(wanted);
      default:
        LOG_WARN("slot %u: %s", slot.value, std::strerror(errno));
        return answer(slot, std::nullopt, Refusal::kNobody);
    }
  }
  // Before it sees anything of us.
  const auto who = credentials(socket);
  if (!who) return retry_later(wanted);
  if (who->uid != geteuid()) return answer(slot, std::nullopt, Refusal::kOtherUser);
  Entry& entry = add(std::move(socket), Stage::kHelloSent, who->pid);
  entry.wanted = slot;
  wanted.attempt = entry.number;
  send_greeting(entry, FrameType::kHello);
}

void Links::accept(PrivateFd socket) {
  const auto who = credentials(socket);
  if (!who) return;
  Entry& entry = add(std::move(socket), Stage::kAwaitingHello, who->pid);
  if (who->uid == geteuid()) return;
  LOG_INFO("process %d of user %u is refused", who->pid, who->uid);
  refuse_and_drop(entry, RefuseReason::kOtherUser);
}

void Links::retry_later(Wanted& wanted) {
  wanted.attempt = 0;
  wanted.next_try = now_ + wanted.pause;
  wanted.pause = std::min(wanted.pause * 2, kPauseMax);
}

void Links::answer(SlotNumber slot, std::optional<PeerId> reached, Refusal why) {
  answers_.push_back({slot, reached, why});
}

void Links::tend() {
  if (greeting_ > 0 || std::exchange(is_starved_, false)) tend_entries();
  sweep();
  tend_wanted();
  tell_answers();
}

void Links::end() {
  drop_all();
  for (const auto& [slot, wanted] : wanted_)
    answer(slot, std::nullopt, Refusal::kNobody);
  sweep();
  tell_answers();
}

void Links::tell_answers() {
  for (const Answer& each : std::exchange(answers_, {})) {
    // An answer may have been given already for the same slot.
    if (wanted_.erase(each.slot) == 0) continue;
    if (each.reached) {
      events_.slot_reached(each.slot, *each.reached);
    } else {
      LOG_DEBUG("slot %u: %s", each.slot.value, to_string(each.why));
      events_.slot_unreachable(each.slot, each.why);
    }
  }
}

void Links::tend_entries() {
  for (auto& [number, entry] : entries_) {
    if (entry.stage == Stage::kOver) continue;
    if (entry.link.is_starved()) {
      entry.link.flush();
      update_interest(entry);
    }
    const bool is_greeting = entry.stage != Stage::kUp;
    if (is_greeting && entry.give_up <= now_) drop(entry);
  }
}

// Forgets the links that are over, and says so.
void Links::sweep() {
  for (const std::uint32_t number : std::exchange(over_, {})) {
    const auto gone = entries_.extract(number);
    const Entry& entry = gone.mapped();
    const auto wanted = entry.wanted ? wanted_.find(*entry.wanted) : wanted_.end();
    if (wanted != wanted_.end() && wanted->second.attempt == number) retry_later(wanted->second);
    if (!entry.was_up) continue;
    LOG_DEBUG("process %d is gone", static_cast<int>(entry.pid));
    events_.peer_down(entry.greeting.id);
  }
}

void Links::tend_wanted() {
  for (auto& [slot, wanted] : wanted_) {
    if (own_slots_.has(slot)) {
      answer(slot, std::nullopt, Refusal::kSelf);
    } else if (const auto id = holder(slot)) {
      answer(slot, id, {});
    } else if (wanted.give_up <= now_) {
      answer(slot, std::nullopt, Refusal::kBusy);
    } else if (wanted.attempt == 0 && wanted.next_try <= now_) {
      try_connect(slot, wanted);
    }
  }
}

Instant Links::next_deadline() const {
  if (!over_.empty() || !answers_.empty()) return now_;
  Instant next = Instant::never();
  for (const auto& [slot, wanted] : wanted_) {
    next = std::min(next, wanted.give_up);
    if (wanted.attempt == 0) next = std::min(next, wanted.next_try);
  }
  if (is_starved_) next = std::min(next, now_ + kStarvedPause);
  if (greeting_ == 0) return next;
  for (const auto& [number, entry] : entries_) {
    if (entry.stage != Stage::kUp) next = std::min(next, entry.give_up);
  }
  return next;
}

}  // namespace verbena::host
