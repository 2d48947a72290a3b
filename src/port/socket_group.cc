// SPDX-License-Identifier: MIT
// The newcomer's side, and what both sides share. The member's side: group_member.cc.
#include "port/socket_group.h"

#include <sys/un.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "host/raw_calls.h"
#include "port/group_join.h"

namespace verbena::port {
namespace {

GroupError error_of(SocketError error) {
  switch (error) {
    case SocketError::kInUse: return GroupError::kInUse;
    case SocketError::kDenied: return GroupError::kDenied;
    case SocketError::kNoDescriptor:
    case SocketError::kNoMemory:
    case SocketError::kMissing:
    case SocketError::kClosed: return GroupError::kNoSockets;
  }
  return GroupError::kNoSockets;
}

constexpr SlotNumber kNoSlot{UINT16_MAX};
constexpr int kLonelyTimes = 4;

}  // namespace

const char* to_string(GroupError error) {
  switch (error) {
    case GroupError::kInUse: return "the UDP port is taken by somebody else";
    case GroupError::kNoSockets: return "the system gives no socket";
    case GroupError::kFull: return "there is a socket for every slot";
    case GroupError::kDenied: return "the system refuses sockets";
    case GroupError::kBusy: return "a join is under way";
    case GroupError::kSilent: return "those that share the UDP port do not answer";
  }
  return "?";
}

SocketGroup::SocketGroup(GroupEvents& events, GroupOptions options)
    : events_(events), options_(options) {
  if (const auto fd = make_receiver({.buffer = 0, .offload = false})) {
    network_ = facts_of(*fd).network;
    host::raw::close(*fd);
  }
}

SocketGroup::~SocketGroup() = default;

host::PrivateFd SocketGroup::own(int fd) const {
  return options_.table ? options_.table->settle(fd) : host::PrivateFd(fd);
}

// Whether it may be a socket of this group, bound or to be.
bool SocketGroup::belongs(const SocketFacts& facts) const {
  const bool same_network = facts.network == 0 || network_ == 0 || facts.network == network_;
  return facts.is_receiver && same_network && (facts.port == 0 || facts.port == options_.port);
}

void SocketGroup::join(SlotNumber slot, std::span<const host::PeerId> members, Instant now) {
  if (join_) return events_.not_joined(slot, GroupError::kBusy);
  forget_unbound();
  join_ = std::make_unique<Join>();
  join_->slot = slot;
  join_->round = ++round_;
  join_->deadline = now + options_.patience;
  join_->give_up = now + options_.patience * kLonelyTimes;
  const GroupMessage ask{.says = GroupSays::kAsk, .slot = slot.value, .round = round_};
  for (const host::PeerId member : members) {
    if (!events_.send(member, bytes_of(ask), nullptr)) continue;
    join_->members[member] = {};
    join_->waiting.insert(member);
  }
  if (join_->waiting.empty()) proceed(now);
}

// Everybody who was waited for has answered, or died, or had time enough.
void SocketGroup::proceed(Instant now) {
  switch (join_->stage) {
    case Join::Stage::kAsking:
      join_->stage = Join::Stage::kFetching;
      join_->give_up = now + options_.patience * kLonelyTimes;
      return fetch(now);
    case Join::Stage::kFetching: return fetch(now);
    case Join::Stage::kSpreading: return finish();
  }
}

void SocketGroup::fetch(Instant now) {
  if (ask_for_sockets(now)) return;
  if (is_ignorant()) return fail(GroupError::kSilent);
  spread(now);
}

// One member of each opinion. Mostly there is one. False: there is nobody left to ask. Who is no
// member may have been given all sockets, but has not heard of everything: it asks in any case.
bool SocketGroup::ask_for_sockets(Instant now) {
  const bool knows_ours = is_member();
  const std::uint64_t ours = digest();
  for (auto& [member, state] : join_->members) {
    if (!state.has_answered || state.was_asked || state.count == 0) continue;
    if ((knows_ours && state.digest == ours) || join_->fetched.contains(state.digest)) continue;
    state.was_asked = true;
    const GroupMessage fetch{.says = GroupSays::kFetch, .round = join_->round};
    if (!events_.send(member, bytes_of(fetch), nullptr)) continue;
    join_->waiting.insert(member);
    join_->deadline = now + options_.patience;
    return true;
  }
  return false;
}

bool SocketGroup::is_member() const {
  return std::ranges::any_of(
      held_, [](const auto& each) { return each.second.is_ours && each.second.is_bound; });
}

// Whether there is a group of which nobody has told us.
bool SocketGroup::is_ignorant() const {
  if (is_member() || !join_->fetched.empty()) return false;
  return std::ranges::any_of(join_->members, [](const auto& each) {
    return !each.second.has_answered || each.second.count != 0;
  });
}

void SocketGroup::take_answer(host::PeerId from, const GroupMessage& says, host::PrivateFd socket,
                              Instant now) {
  using Stage = Join::Stage;
  const bool is_asked = join_ && says.round == join_->round && join_->waiting.contains(from);
  const Stage stage = join_ ? join_->stage : Stage::kAsking;
  const bool fits = (says.says == GroupSays::kHolding && stage == Stage::kAsking) ||
                    (says.says == GroupSays::kHeld && stage == Stage::kSpreading) ||
                    ((says.says == GroupSays::kSocket || says.says == GroupSays::kService ||
                      says.says == GroupSays::kAll) &&
                     stage == Stage::kFetching);
  if (!is_asked || !fits) {
    ++stats_.unexpected;
    return;
  }
  if (says.says == GroupSays::kSocket) return keep(says, std::move(socket));
  if (says.says == GroupSays::kService) {
    steering_.add_service({says.value, {says.slot}});
    return;
  }
  Join::Member& member = join_->members[from];
  if (says.says == GroupSays::kHolding) {
    member.has_answered = true;
    member.digest = says.value;
    member.count = says.count;
  } else if (says.says == GroupSays::kAll) {
    join_->fetched.insert(member.digest);
    std::erase_if(join_->waiting, [&](const host::PeerId& other) {
      return join_->members[other].digest == member.digest;
    });
  } else if (says.count == 0) {
    LOG_WARN("a member of the socket group could not take a socket");
  }
  join_->waiting.erase(from);
  if (join_->waiting.empty()) proceed(now);
}

// One of the sockets that a member holds.
void SocketGroup::keep(const GroupMessage& says, host::PrivateFd socket) {
  const SocketFacts facts = facts_of(socket.get());
  if (!belongs(facts) || facts.port == 0) {
    ++stats_.bad_sockets;
    return;
  }
  const auto [at, is_new] = held_.try_emplace(says.position);
  Held& held = at->second;
  if (is_new) {
    held = {std::move(socket), facts.cookie, {says.slot}, false, true, says.value};
  } else if (held.cookie != facts.cookie) {
    ++stats_.conflicts;
  } else if (!held.is_ours && is_news(held, says)) {
    held.slot = {says.slot};
    held.turn = says.value;
  }
}

// Whether who says that a position is a slot's knows better than we.
bool SocketGroup::is_news(const Held& held, const GroupMessage& says) {
  if (says.value != held.turn) return says.value > held.turn;
  return held.slot.value != says.slot && !events_.is_held(held.slot);
}

auto SocketGroup::choose_position() -> Result<std::uint16_t, GroupError> {
  const auto find = [&](auto wanted) {
    return std::ranges::find_if(held_, [&](const auto& each) {
      return !each.second.is_ours && each.second.is_bound && wanted(each.second.slot);
    });
  };
  auto at = find([&](SlotNumber slot) { return slot == join_->slot; });
  if (at == held_.end()) at = find([&](SlotNumber slot) { return !events_.is_held(slot); });
  if (at != held_.end()) {
    steering_.remove_services(at->second.slot);
    return at->first;
  }
  const std::size_t end = held_.empty() ? 0 : held_.rbegin()->first + std::size_t{1};
  if (end >= kSlotCount) return refuse(GroupError::kFull);
  const auto fd = make_receiver(options_.receiver);
  if (!fd) return refuse(error_of(fd.error()));
  Held held{own(*fd), facts_of(*fd).cookie, join_->slot, true, false};
  held_[static_cast<std::uint16_t>(end)] = std::move(held);
  return static_cast<std::uint16_t>(end);
}

void SocketGroup::spread(Instant now) {
  const auto position = choose_position();
  if (!position) return fail(position.error());
  Held& held = held_[*position];
  held.slot = join_->slot;
  held.is_ours = true;
  ++held.turn;
  steering_.remove_services(join_->slot);
  join_->position = *position;
  join_->stage = Join::Stage::kSpreading;
  join_->deadline = now + options_.patience;
  const GroupMessage hold{.says = GroupSays::kHold,
                          .position = *position,
                          .slot = join_->slot.value,
                          .round = join_->round,
                          .value = held.turn};
  for (const auto& [member, state] : join_->members)
    if (events_.send(member, bytes_of(hold), &held.socket)) join_->waiting.insert(member);
  if (join_->waiting.empty()) finish();
}

void SocketGroup::finish() {
  Held& held = held_[join_->position];
  if (!held.is_bound) {
    if (const auto bound = bind_receiver(held.socket.get(), options_.port); !bound) {
      held_.erase(join_->position);
      return fail(error_of(bound.error()));
    }
    held.is_bound = true;
  }
  const SlotNumber slot = join_->slot;
  join_.reset();
  refresh_steering();
  attach();
  events_.joined(slot, held.socket);
}

void SocketGroup::fail(GroupError why) {
  const SlotNumber slot = join_->slot;
  join_.reset();
  // Who is no member is not heard when it holds sockets: they would keep positions in the kernel's
  // group that the next newcomer does not know of.
  if (!is_member()) {
    held_.clear();
    steering_ = Steering();
  }
  LOG_WARN("slot %u has no socket: %s", slot.value, to_string(why));
  events_.not_joined(slot, why);
}

void SocketGroup::refresh_steering() {
  std::vector<SlotNumber> slots;
  for (const auto& [position, held] : held_) {
    slots.resize(position + std::size_t{1}, kNoSlot);
    slots[position] = held.slot;
  }
  steering_.set_positions(slots);
  events_.steering_changed(steering_);
}

// The whole group's program, through a socket of ours: what nobody in particular is asked for comes
// to us, because we are certainly alive.
void SocketGroup::attach() {
  const auto ours = std::ranges::find_if(
      held_, [](const auto& each) { return each.second.is_ours && each.second.is_bound; });
  if (ours == held_.end()) return;
  const auto done = attach_steering(ours->second.socket.get(), steering_.program(ours->first));
  if (done) return;
  ++stats_.unsteered;
  LOG_INFO("the kernel does not steer, packets are handed over: %s", to_string(done.error()));
}

bool SocketGroup::serve(Service service, std::span<const host::PeerId> members) {
  const auto known = std::ranges::find(steering_.services(), service.id, &Service::id);
  if (known != steering_.services().end() && known->slot != service.slot &&
      !events_.is_held(known->slot)) {
    steering_.remove_service(*known);
  }
  if (!steering_.add_service(service)) return false;
  attach();
  tell(members, {.says = GroupSays::kServing, .slot = service.slot.value, .value = service.id});
  events_.steering_changed(steering_);
  return true;
}

void SocketGroup::stop_serving(Service service, std::span<const host::PeerId> members) {
  steering_.remove_service(service);
  attach();
  tell(members, {.says = GroupSays::kNotServing, .slot = service.slot.value, .value = service.id});
  events_.steering_changed(steering_);
}

void SocketGroup::tell(std::span<const host::PeerId> members, const GroupMessage& message) {
  for (const host::PeerId member : members)
    events_.send(member, bytes_of(message), nullptr);
}

void SocketGroup::peer_down(host::PeerId peer, Instant now) {
  if (!join_ || join_->members.erase(peer) == 0) return;
  if (join_->waiting.erase(peer) != 0 && join_->waiting.empty()) proceed(now);
}

// Who knows nothing of a group would take itself for the first one, and steer all packets wrongly.
// So it waits longer for its first answer.
bool SocketGroup::is_worth_waiting(Instant now) const {
  if (now >= join_->give_up) return false;
  switch (join_->stage) {
    case Join::Stage::kAsking:
      return std::ranges::none_of(join_->members, [](const auto& each) {
        return each.second.has_answered && each.second.count != 0;
      });
    case Join::Stage::kFetching: return is_ignorant();
    case Join::Stage::kSpreading: return false;
  }
  return false;
}

void SocketGroup::tick(Instant now) {
  if (!join_ || now < join_->deadline) return;
  if (is_worth_waiting(now)) {
    join_->deadline = now + options_.patience;
    // Another one may be faster; who was asked before may still answer.
    if (join_->stage == Join::Stage::kFetching) ask_for_sockets(now);
    return;
  }
  stats_.silent_members += join_->waiting.size();
  join_->waiting.clear();
  proceed(now);
}

Instant SocketGroup::next_deadline() const { return join_ ? join_->deadline : Instant::never(); }

bool SocketGroup::is_bound(const Held& held) const {
  return held.is_bound || facts_of(held.socket.get()).port == options_.port;
}

std::size_t SocketGroup::size() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(held_, [&](const auto& each) { return is_bound(each.second); }));
}

const host::PrivateFd* SocketGroup::socket_of(SlotNumber slot) const {
  const auto at = std::ranges::find_if(held_, [&](const auto& each) {
    return each.second.is_ours && each.second.is_bound && each.second.slot == slot;
  });
  return at == held_.end() ? nullptr : &at->second.socket;
}

const host::PrivateFd* SocketGroup::socket_for(SlotNumber slot) const {
  // What a newcomer bound after it gave it to us does not say so yet.
  const auto at = std::ranges::find_if(
      held_, [&](const auto& each) { return each.second.slot == slot && is_bound(each.second); });
  return at == held_.end() ? nullptr : &at->second.socket;
}

std::optional<JoinLock> JoinLock::try_take(std::string_view name) {
  host::PrivateFd socket(host::raw::seqpacket_socket());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name = name.substr(0, sizeof address.sun_path - 1);
  std::ranges::copy(name, address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (!socket ||
      host::raw::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return std::nullopt;
  }
  return JoinLock(std::move(socket));
}

}  // namespace verbena::port
