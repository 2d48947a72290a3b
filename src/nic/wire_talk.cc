// SPDX-License-Identifier: MIT
// Conversations of processes of one host, which have sockets of their own (decisions 31 and 33).
#include <algorithm>

#include "nic/wire_nic.h"
#include "nic/wire_qp.h"
#include "wire/ip.h"

namespace verbena::nic {
namespace {

// Where a socket for a conversation cannot be had, it is asked for less and less often.
constexpr unsigned kTalkMost = 1 << 24;

}  // namespace

// What one peer of this host sends by a socket for this alone (WireQp::transmit_alone), time and
// again and nothing else, gets one of its own. Such sockets count identifications, if there are
// any.
void WireNic::note_talk(const port::Received& packet, const WireQp& qp) {
  if (packet.payload.size() > port::UdpChannel::kBytesMax) {
    talk_.packets = 0;
    return;
  }
  const bool is_alone = qp.is_peer_near() && (flows_.counts_on() || !wire::is_ipv4(packet.from));
  if (!is_alone || packet.source_port != talk_.source_port || packet.from != talk_.from)
    talk_ = {.from = packet.from, .source_port = packet.source_port};
  else if (++talk_.packets >= talk_.enough)
    begin_talk(packet);
}

void WireNic::begin_talk(const port::Received& packet) {
  talk_.packets = 0;
  if (udp_.converse(packet)) {
    is_talking_.store(true, std::memory_order_relaxed);
    return look_again();
  }
  talk_.enough = std::min(talk_.enough * 2, kTalkMost);
}

// The watcher does it, for nobody may sleep on its socket then.
void WireNic::end_talk() {
  if (!ends_talk_.exchange(true, std::memory_order_relaxed)) look_again();
}

// Of the watcher, when it does not sleep.
void WireNic::tend_talk() {
  if (!ends_talk_.load(std::memory_order_relaxed)) return;
  const std::lock_guard guard(receive_lock_);
  // What lies there is not lost, as long as no more comes than can be taken.
  constexpr int kLooksMost = 16;
  for (int i = 0; i < kLooksMost; ++i) {
    udp_.look_everywhere();
    if (receive(Answer::kNow) == 0) break;
  }
  udp_.end_conversation();
  is_talking_.store(false, std::memory_order_relaxed);
  ends_talk_.store(false, std::memory_order_relaxed);
}

// What is in between wants to see all that is sent.
std::unique_ptr<port::UdpChannel> WireNic::open_channel(const port::Route& route) {
  if (line_.wants_time()) return nullptr;
  if (channels_.fetch_add(1, std::memory_order_relaxed) < kChannelsMost) {
    // In a forked child it lies there until exec, and harms nobody: it is in no group.
    if (auto channel = udp_.open_channel(route)) return channel;
  }
  closed_channel();
  return nullptr;
}

}  // namespace verbena::nic
