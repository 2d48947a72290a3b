// SPDX-License-Identifier: MIT
#include "cm/listeners.h"

#include <algorithm>
#include <bit>
#include <tuple>

namespace verbena::cm {
namespace {

// Who opens a listener anew does so within milliseconds, but for a busy machine; and whoever asks
// in vain shall soon hear so.
constexpr Duration kMoment = Duration::milliseconds(500);
constexpr std::size_t kGoneMax = 64;  // more at a time are no listeners that come back

bool same_prefix(const Gid& a, const Gid& b, unsigned bits) {
  const unsigned bytes = bits / 8;
  if (!std::equal(a.bytes, a.bytes + bytes, b.bytes)) return false;
  if (bits % 8 == 0) return true;
  return ((a.bytes[bytes] ^ b.bytes[bytes]) >> (8 - bits % 8)) == 0;
}

bool takes(const Listening& what, const Listeners::Wanted& wanted) {
  if (!(wanted.is_datagram ? what.datagrams : what.connections)) return false;
  if (what.port != Listening::kAnyPort && what.port != wanted.route.port) return false;
  return same_prefix(what.local, wanted.route.local, what.local_prefix);
}

auto precision(const Listening& what) {
  return std::tuple(what.local_prefix, what.port != Listening::kAnyPort,
                    std::popcount(what.service_mask));
}

// Whether no request could tell the two apart.
bool are_rivals(const Listening& a, const Listening& b) {
  const bool meet = (a.connections && b.connections) || (a.datagrams && b.datagrams);
  return meet && a.service_mask == b.service_mask &&
         (a.service_id & a.service_mask) == (b.service_id & b.service_mask) && a.port == b.port &&
         a.local_prefix == b.local_prefix && same_prefix(a.local, b.local, a.local_prefix);
}

}  // namespace

Result<ListenerId, Refusal> Listeners::add(const Listening& what) {
  if (what.local_prefix > 128 || what.backlog == 0 || !(what.connections || what.datagrams)) {
    return refuse(Refusal::kInvalid);
  }
  if (listeners_.size() >= max_) return refuse(Refusal::kNoRoom);
  auto group = std::ranges::find(groups_, what.service_mask, &Group::mask);
  if (group == groups_.end()) group = groups_.insert(group, Group{what.service_mask, {}});
  const std::uint64_t service = what.service_id & what.service_mask;
  const auto [first, last] = group->by_service.equal_range(service);
  const bool is_taken = std::any_of(
      first, last, [&](const auto& entry) { return are_rivals(find(entry.second)->what, what); });
  if (is_taken) return refuse(Refusal::kInUse);
  const ListenerId id{next_id_++};
  group->by_service.emplace(service, id);
  listeners_.emplace(id.value, Listener{.what = what, .id = id});
  return id;
}

void Listeners::remove(ListenerId id, Instant now) {
  const Listener* const listener = find(id);
  if (listener == nullptr) return;
  if (gone_.size() >= kGoneMax) gone_.pop_front();
  gone_.push_back({listener->what, now});
  const auto group = std::ranges::find(groups_, listener->what.service_mask, &Group::mask);
  const auto [first, last] = group->by_service.equal_range(listener->what.service_id & group->mask);
  group->by_service.erase(
      std::find_if(first, last, [&](const auto& entry) { return entry.second == id; }));
  if (group->by_service.empty()) groups_.erase(group);
  listeners_.erase(id.value);
}

Listener* Listeners::find(ListenerId id) {
  const auto found = listeners_.find(id.value);
  return found == listeners_.end() ? nullptr : &found->second;
}

Listener* Listeners::match(const Wanted& wanted) {
  Listener* best = nullptr;
  for (const Group& group : groups_) {
    const auto [first, last] = group.by_service.equal_range(wanted.service_id & group.mask);
    for (auto entry = first; entry != last; ++entry) {
      Listener* const listener = find(entry->second);
      if (!takes(listener->what, wanted)) continue;
      if (best == nullptr || precision(best->what) < precision(listener->what)) best = listener;
    }
  }
  return best;
}

bool Listeners::was_taken(const Wanted& wanted, Instant now) const {
  return std::ranges::any_of(gone_, [&](const Gone& gone) {
    const Listening& what = gone.what;
    return now - gone.when < kMoment && takes(what, wanted) &&
           (what.service_id & what.service_mask) == (wanted.service_id & what.service_mask);
  });
}

}  // namespace verbena::cm
