// SPDX-License-Identifier: MIT
#include "nic/wire_group.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "base/log.h"
#include "host/raw_calls.h"
#include "nic/engine.h"

namespace verbena::nic {
namespace {

// All that follow, and what the group waits for by itself: else whoever asks does not hear why.
constexpr Duration kFetchPatience = JoinWait::kMost + Duration::seconds(10);
// A member that is stopped does not answer.
constexpr Duration kReachPatience = Duration::milliseconds(500);
// Where there are members and none answers.
constexpr Duration kLonelyPatience = Duration::seconds(2);
constexpr const char* kMarkerName = "verbena/wire/";
constexpr const char* kSlotName = "verbena/slot/";

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Name name_of(const char* prefix, SlotNumber slot) {
  Name name;
  name.address.sun_family = AF_UNIX;
  char* const text = name.address.sun_path + 1;  // an abstract name
  const int length =
      std::snprintf(text, sizeof name.address.sun_path - 1, "%s%u", prefix, slot.value);
  name.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                     static_cast<std::size_t>(length));
  return name;
}

int milliseconds_until(Instant deadline) {
  const Instant now = clock_now();
  if (now >= deadline) return 0;
  return static_cast<int>((deadline - now).count_nanoseconds() / 1'000'000) + 1;
}

WireError error_of(port::GroupError error) {
  switch (error) {
    case port::GroupError::kInUse: return WireError::kInUse;
    case port::GroupError::kBusy: return WireError::kBusy;
    case port::GroupError::kSilent: return WireError::kSilent;
    case port::GroupError::kNoSockets:
    case port::GroupError::kFull:
    case port::GroupError::kDenied: return WireError::kNoSockets;
  }
  return WireError::kNoSockets;
}

}  // namespace

const char* to_string(WireError error) {
  switch (error) {
    case WireError::kNone: return "none";
    case WireError::kInUse: return "UDP port 4791 is taken by another user, program or version";
    case WireError::kNoSockets: return "the system gives no socket";
    case WireError::kBusy: return "another process joins and does not come to an end";
    case WireError::kSilent: return "those that share UDP port 4791 do not answer: stopped?";
    case WireError::kNoAnswer: return "no answer from the control thread";
  }
  return "?";
}

WireGroup::WireGroup(host::Control& control, Links& links, port::UdpPort& port)
    : control_(control), links_(links), port_(port) {}

// ---------------------------------------------------------------------------------- any thread

UniqueFd WireGroup::make_mailbox(Asker& asker) {
  UniqueFd mailbox(host::raw::datagram_socket());
  if (!mailbox) return mailbox;
  // The kernel finds a name that is free.
  asker.name.sun_family = AF_UNIX;
  auto* const name = reinterpret_cast<sockaddr*>(&asker.name);
  asker.name_size = sizeof asker.name;
  if (host::raw::bind(mailbox.get(), name, sizeof asker.name.sun_family) != 0 ||
      syscall(SYS_getsockname, mailbox.get(), name, &asker.name_size) != 0) {
    return UniqueFd();
  }
  return mailbox;
}

Result<UniqueFd, WireError> WireGroup::receive(int mailbox, std::uint64_t nonce, SlotNumber slot) {
  const Instant deadline = clock_now() + kFetchPatience;
  for (;;) {
    pollfd watched{mailbox, POLLIN, 0};
    const int left = milliseconds_until(deadline);
    if (left == 0) return refuse(WireError::kNoAnswer);
    const int ready = poll(&watched, 1, left);
    if (ready < 0 && errno != EINTR) return refuse(WireError::kNoAnswer);
    if (ready <= 0) continue;
    Answer answer{};
    iovec piece{&answer, sizeof answer};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // a second one would fit into the padding
    const ssize_t size = host::raw::recvmsg(mailbox, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    UniqueFd socket;
    const cmsghdr* const attached = size >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (attached && attached->cmsg_level == SOL_SOCKET && attached->cmsg_type == SCM_RIGHTS) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(attached), sizeof fd);
      socket = UniqueFd(fd);
    }
    // Anybody may write to any name.
    if (size != sizeof answer || answer.nonce != nonce || answer.slot != slot.value) continue;
    if (socket) return socket;
    const bool says_why =
        answer.error > 0 && answer.error <= static_cast<std::uint32_t>(WireError::kNoAnswer);
    return refuse(says_why ? static_cast<WireError>(answer.error) : WireError::kNoSockets);
  }
}

Result<UniqueFd, WireError> WireGroup::fetch(SlotNumber slot, RandomSource& random) {
  return ask(slot, Whose::kOurs, random);
}

Result<UniqueFd, WireError> WireGroup::fetch_peers(SlotNumber slot, RandomSource& random) {
  return ask(slot, Whose::kAnybodys, random);
}

Result<UniqueFd, WireError> WireGroup::ask(SlotNumber slot, Whose whose, RandomSource& random) {
  Asker asker;
  const UniqueFd mailbox = make_mailbox(asker);
  if (!mailbox) return refuse(WireError::kNoSockets);
  asker.nonce = random.next();
  const bool is_accepted = control_.submit([this, slot, whose, asker] {
    if (whose == Whose::kOurs) return want(slot, asker);
    show(slot, asker);
  });
  if (!is_accepted) return refuse(WireError::kNoAnswer);
  return receive(mailbox.get(), asker.nonce, slot);
}

// -------------------------------------------------------------------------- the control thread

void WireGroup::tell(const Asker& asker, const Answer& answer, int socket) {
  const host::PrivateFd sender(host::raw::datagram_socket());
  if (!sender) return;  // whoever asked gives up in the end
  iovec piece{const_cast<Answer*>(&answer), sizeof answer};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = const_cast<sockaddr_un*>(&asker.name);
  message.msg_namelen = asker.name_size;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (socket >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const attached = CMSG_FIRSTHDR(&message);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof socket);
    std::memcpy(CMSG_DATA(attached), &socket, sizeof socket);
  }
  static_cast<void>(host::raw::sendmsg(sender.get(), message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

void WireGroup::want(SlotNumber slot, const Asker& asker) {
  if (!group_) {
    port::GroupEvents& events = *this;
    group_.emplace(events, port::GroupOptions{.table = &control_.descriptors()});
  }
  if (const host::PrivateFd* socket = group_->socket_of(slot)) {
    return tell(asker, {asker.nonce, slot.value, 0}, socket->get());
  }
  askers_[slot].push_back(asker);
  if (stage_ == Stage::kIdle) begin(clock_now());
  links_.plan_tick();
}

void WireGroup::show(SlotNumber slot, const Asker& asker) {
  const host::PrivateFd* const socket = group_ ? group_->socket_for(slot) : nullptr;
  if (socket) return tell(asker, {asker.nonce, slot.value, 0}, socket->get());
  const auto error = static_cast<std::uint32_t>(WireError::kNoSockets);
  tell(asker, {asker.nonce, slot.value, error}, -1);
}

void WireGroup::begin(Instant now) {
  stage_ = Stage::kLocking;
  lock_wait_.emplace(now);
  try_lock(now);
}

void WireGroup::try_lock(Instant now) {
  joining_ = askers_.begin()->first;
  lock_ = port::JoinLock::try_take();
  if (lock_) return reach_members(now);
  const auto next = lock_wait_->next(now, marked_slots);
  if (!next) return finish(joining_, WireError::kBusy, -1);
  next_ = *next;
}

// Of all processes on this host.
std::vector<SlotNumber> WireGroup::marked_slots() {
  std::vector<SlotNumber> marked;
  const host::PrivateFd probe(host::raw::datagram_socket());
  for (std::uint16_t i = 0; i < kSlotCount; ++i) {
    const Name name = name_of(kMarkerName, {i});
    if (host::raw::connect(probe.get(), name.get(), name.size) == 0) marked.push_back({i});
  }
  return marked;
}

void WireGroup::reach_members(Instant now) {
  stage_ = Stage::kReaching;
  next_ = now + kReachPatience;
  lonely_until_ = now + kLonelyPatience;
  members_.clear();
  reaching_.clear();
  has_silent_ = false;
  for (const SlotNumber slot : marked_slots())
    if (!is_ours(slot)) reaching_.insert(slot);
  const std::set<SlotNumber> all = reaching_;
  for (const SlotNumber slot : all)
    control_.connect(slot);
  if (reaching_.empty()) join(now);
}

void WireGroup::slot_answered(SlotNumber slot, host::PeerId holder) {
  if (stage_ != Stage::kReaching || reaching_.erase(slot) == 0) return;
  members_.insert(holder);
  if (reaching_.empty()) join(clock_now());
}

// Whoever shares the port and cannot be told of us would go on taking packets that are ours.
void WireGroup::slot_refused(SlotNumber slot, host::Refusal why) {
  if (stage_ != Stage::kReaching || reaching_.erase(slot) == 0) return;
  if (why == host::Refusal::kOtherUser || why == host::Refusal::kOtherLayout) {
    LOG_ERROR("slot %u has the UDP port, and does not share it with us: %s", slot.value,
              host::to_string(why));
    reaching_.clear();
    return finish(joining_, WireError::kInUse, -1);
  }
  has_silent_ |= why == host::Refusal::kBusy;
  if (reaching_.empty()) join(clock_now());
}

// Who hears nothing of a group that exists would take itself for its first.
void WireGroup::join(Instant now) {
  if (members_.empty() && has_silent_ && markers_.empty())
    return finish(joining_, WireError::kSilent, -1);
  stage_ = Stage::kJoining;
  next_ = Instant::never();
  const std::vector<host::PeerId> members(members_.begin(), members_.end());
  group_->join(joining_, members, now);
}

// The next newcomer finds our mark, and so asks us: before the lock is given back.
void WireGroup::joined(SlotNumber slot, const host::PrivateFd& socket) {
  host::PrivateFd marker = control_.descriptors().make([] { return host::raw::datagram_socket(); });
  const Name name = name_of(kMarkerName, slot);
  if (!marker || host::raw::bind(marker.get(), name.get(), name.size) != 0) {
    LOG_ERROR("slot %u cannot be marked as one that shares the UDP port: %d", slot.value, errno);
  }
  markers_[slot] = std::move(marker);
  finish(slot, WireError::kNone, socket.get());
}

void WireGroup::not_joined(SlotNumber slot, port::GroupError why) {
  finish(slot, error_of(why), -1);
}

void WireGroup::finish(SlotNumber slot, WireError error, int socket) {
  lock_.reset();
  const auto asked = askers_.extract(slot);
  if (asked) {
    for (const Asker& asker : asked.mapped())
      tell(asker, {asker.nonce, slot.value, static_cast<std::uint32_t>(error)}, socket);
  }
  stage_ = Stage::kIdle;
  // Not from inside the group.
  next_ = askers_.empty() ? Instant::never() : clock_now();
}

void WireGroup::tick(Instant now) {
  if (!group_) return;
  group_->tick(now);
  if (now < next_) return;
  next_ = Instant::never();
  switch (stage_) {
    case Stage::kIdle:
      if (!askers_.empty()) begin(now);
      return;
    case Stage::kLocking: return try_lock(now);
    case Stage::kReaching:
      if (!members_.empty() || now >= lonely_until_) {  // without the others
        has_silent_ = true;
        return join(now);
      }
      next_ = now + kReachPatience;
      return;
    case Stage::kJoining: return;
  }
}

Instant WireGroup::next_deadline() const {
  return group_ ? std::min(next_, group_->next_deadline()) : next_;
}

bool WireGroup::is_message(std::span<const std::byte> bytes) {
  std::uint32_t magic = 0;
  if (bytes.size() != sizeof(port::GroupMessage)) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == port::GroupMessage::kMagic;
}

void WireGroup::message(host::PeerId from, std::span<const std::byte> bytes,
                        host::PrivateFd attachment) {
  if (group_) group_->message(from, bytes, std::move(attachment), clock_now());
}

void WireGroup::peer_down(host::PeerId id) {
  members_.erase(id);
  if (group_) group_->peer_down(id, clock_now());
}

bool WireGroup::send(host::PeerId to, std::span<const std::byte> bytes,
                     const host::PrivateFd* attachment) {
  return control_.send(to, bytes, attachment);
}

// Whether its name can be taken. For a moment it is: whoever wants it just then takes another.
bool WireGroup::is_held(SlotNumber slot) {
  const host::PrivateFd probe(host::raw::seqpacket_socket());
  const Name name = name_of(kSlotName, slot);
  return !probe || host::raw::bind(probe.get(), name.get(), name.size) != 0;
}

}  // namespace verbena::nic
