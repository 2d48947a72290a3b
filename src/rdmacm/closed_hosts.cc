// SPDX-License-Identifier: MIT
#include "rdmacm/closed_hosts.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "host/interfaces.h"

namespace verbena::rdmacm {

void ClosedHosts::watch(const GsiMad& question, cm::CommId asker, Instant now) {
  auto found = hosts_.find(question.to);
  if (found == hosts_.end()) {
    // Processes of this host are asked otherwise, and open the port when they are asked by the
    // wire.
    if (hosts_.size() >= kHostsMax || host::is_local_address(question.to)) return;
    found = hosts_.try_emplace(question.to).first;
    found->second.probe = std::make_unique<PortProbe>(question, port_);
    ask(found->second, now);
    next_ = std::min(next_, found->second.next);
  }
  std::vector<cm::CommId>& askers = found->second.askers;
  if (std::ranges::find(askers, asker) == askers.end()) askers.push_back(asker);
}

void ClosedHosts::ask(Host& host, Instant now) {
  static_cast<void>(host.probe->ask());
  ++host.asks;
  host.next = now + kPause;
}

std::vector<cm::CommId> ClosedHosts::look(Instant now,
                                          const std::function<bool(cm::CommId)>& is_waiting) {
  std::vector<cm::CommId> unanswerable;
  if (now < next_) return unanswerable;
  next_ = Instant::never();
  for (auto each = hosts_.begin(); each != hosts_.end();) {
    Host& host = each->second;
    const bool stays = host.next > now || goes_on(host, is_waiting, unanswerable);
    if (stays && host.next <= now) ask(host, now);
    if (stays) next_ = std::min(next_, host.next);
    each = stays ? std::next(each) : hosts_.erase(each);
  }
  return unanswerable;
}

// Whether it is worth another question.
bool ClosedHosts::goes_on(Host& host, const std::function<bool(cm::CommId)>& is_waiting,
                          std::vector<cm::CommId>& unanswerable) {
  std::erase_if(host.askers, [&](cm::CommId id) { return !is_waiting(id); });
  if (host.probe->was_refused()) ++host.refusals;
  if (host.refusals < kRefusalsWanted) return !host.askers.empty() && host.asks < kAsksMax;
  if (!host.askers.empty()) LOG_INFO("a host says that it has no RoCE");
  unanswerable.insert(unanswerable.end(), host.askers.begin(), host.askers.end());
  return false;
}

}  // namespace verbena::rdmacm
