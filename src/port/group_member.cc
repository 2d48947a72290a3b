// SPDX-License-Identifier: MIT
// The member's side of a socket group: answers newcomers, and holds what they bring.
#include <algorithm>
#include <iterator>

#include "port/group_join.h"
#include "port/socket_group.h"

namespace verbena::port {
namespace {

constexpr std::uint64_t kAllServices = ~std::uint64_t{0};

// FNV-1a, by bytes.
class Digest {
 public:
  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8)
      hash_ = (hash_ ^ (value & 0xFF)) * 0x100000001B3;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace

void SocketGroup::message(host::PeerId from, std::span<const std::byte> bytes,
                          host::PrivateFd attachment, Instant now) {
  const auto says = parse_group_message(bytes);
  if (!says) {
    ++stats_.malformed;
    return;
  }
  switch (says->says) {
    case GroupSays::kAsk: return answer_ask(from, *says);
    case GroupSays::kFetch: return answer_fetch(from, *says);
    case GroupSays::kHold: return answer_hold(from, *says, std::move(attachment));
    case GroupSays::kServing:
    case GroupSays::kNotServing: return change_service(*says);
    case GroupSays::kHolding:
    case GroupSays::kSocket:
    case GroupSays::kService:
    case GroupSays::kAll:
    case GroupSays::kHeld: return take_answer(from, *says, std::move(attachment), now);
  }
}

// Two members with one digest hold the same sockets at the same positions for the same slots.
std::uint64_t SocketGroup::digest() const {
  Digest digest;
  for (const auto& [position, held] : held_) {
    if (!held.is_bound) continue;
    digest.add(position);
    digest.add(held.slot.value);
    digest.add(held.cookie);
  }
  return digest.value();
}

// Joins are done one at a time, so when the next one begins, what is not bound never will be: its
// newcomer died on the way.
void SocketGroup::forget_unbound() {
  for (auto each = held_.begin(); each != held_.end();) {
    Held& held = each->second;
    if (!held.is_bound) held.is_bound = facts_of(held.socket.get()).port == options_.port;
    const bool is_mine_to_bind = join_ && held.is_ours;
    each = held.is_bound || is_mine_to_bind ? std::next(each) : held_.erase(each);
  }
}

void SocketGroup::answer_ask(host::PeerId to, const GroupMessage& ask) {
  forget_unbound();
  const GroupMessage answer{.says = GroupSays::kHolding,
                            .count = static_cast<std::uint16_t>(size()),
                            .round = ask.round,
                            .value = digest()};
  events_.send(to, bytes_of(answer), nullptr);
}

void SocketGroup::answer_fetch(host::PeerId to, const GroupMessage& fetch) {
  for (const auto& [position, held] : held_) {
    if (!held.is_bound || held.socket.get() < 0) continue;
    const GroupMessage one{.says = GroupSays::kSocket,
                           .position = position,
                           .slot = held.slot.value,
                           .round = fetch.round,
                           .value = held.turn};
    if (!events_.send(to, bytes_of(one), &held.socket)) return;
  }
  for (const Service& service : steering_.services()) {
    const GroupMessage one{.says = GroupSays::kService,
                           .slot = service.slot.value,
                           .round = fetch.round,
                           .value = service.id};
    if (!events_.send(to, bytes_of(one), nullptr)) return;
  }
  const GroupMessage all{.says = GroupSays::kAll, .round = fetch.round};
  events_.send(to, bytes_of(all), nullptr);
}

void SocketGroup::answer_hold(host::PeerId to, const GroupMessage& says, host::PrivateFd socket) {
  const bool is_held = hold(says, std::move(socket));
  const GroupMessage answer{.says = GroupSays::kHeld,
                            .position = says.position,
                            .slot = says.slot,
                            .count = static_cast<std::uint16_t>(is_held ? 1 : 0),
                            .round = says.round};
  events_.send(to, bytes_of(answer), nullptr);
}

bool SocketGroup::hold(const GroupMessage& says, host::PrivateFd socket) {
  const SocketFacts facts = facts_of(socket.get());
  if (!socket || !belongs(facts)) {
    ++stats_.bad_sockets;
    return false;
  }
  const auto [at, is_new] = held_.try_emplace(says.position);
  Held& held = at->second;
  if (held.is_ours) {
    ++stats_.conflicts;
    return false;
  }
  const bool is_same = !is_new && held.cookie == facts.cookie;
  // Where we were stopped for long, two newcomers wait in whatever order. The later one had asked
  // everybody, so it knows better.
  if (is_same && says.value < held.turn && events_.is_held(held.slot)) return true;
  if (!is_new && !is_same && held.is_bound) ++stats_.conflicts;
  if (!is_new) steering_.remove_services(held.slot);
  steering_.remove_services({says.slot});
  held = {std::move(socket),           facts.cookie, {says.slot}, false,
          facts.port == options_.port, says.value};
  refresh_steering();
  return true;
}

void SocketGroup::change_service(const GroupMessage& says) {
  const Service service{says.value, {says.slot}};
  if (says.says == GroupSays::kServing) {
    const auto services = steering_.services();
    const auto known = std::ranges::find(services, service.id, &Service::id);
    if (known != services.end()) steering_.remove_service(Service(*known));
    if (!steering_.add_service(service)) ++stats_.unexpected;
  } else if (service.id == kAllServices) {
    steering_.remove_services(service.slot);
  } else {
    steering_.remove_service(service);
  }
  events_.steering_changed(steering_);
}

}  // namespace verbena::port
