// SPDX-License-Identifier: MIT
// What leaves as it is posted: a SEND of one packet while nothing stands before it, as in every
// conversation. The general way (issue()) finds out for everything that may be posted what this
// knows already.
#include "memory/guarded_copy.h"
#include "roce/requester.h"

namespace verbena::roce {

namespace {

// More on their way are a stream, whose messages may wait for company.
constexpr std::uint32_t kAtOnceMost = 4;
// Of so many, one's round trip is measured: a look at the clock is a good part of what it costs to
// take an acknowledgement. Odd, for programs take turns.
constexpr std::uint32_t kMeasuredOf = 5;

}  // namespace

// Nothing is to be sent before it, and nothing limits what may be sent.
bool Requester::is_open(const qp::SendWindow& window) const {
  if (!started_ || congestion_ || could_not_leave_ || !repairs_.is_empty()) return false;
  if (send_ != next_ || high_ != next_ || line_.size() >= kAtOnceMost) return false;
  return line_.is_empty() || (window.has_outstanding() && !line_.is_full());
}

Flight Requester::flight_of(const Engine::AtOnce& message) const {
  return {.index = message.index,
          .first = next_,
          .length = message.payload.size(),
          .before = bytes_begun_};
}

bool Requester::transmit_at_once(const Engine::AtOnce& message, const qp::SendWindow& window) {
  const std::size_t bytes = message.payload.size();
  if (!is_open(window) || bytes + kPiggybackBytes > settings_.path_mtu) return false;
  // For one packet there always is room.
  if (!line_.is_empty() && room_at(flight_of(message), next_) == 0) return false;
  OutgoingSend packet{.head = {.is_solicited = message.is_solicited,
                               .ack_request = true,
                               .mark = agreement_.mark(false),
                               .pkey = settings_.pkey,
                               .psn = next_},
                      .to = settings_.peer,
                      .payload_bytes = bytes};
  const auto along = agreement_.is_agreed() ? owing_.owed() : std::nullopt;
  if (along) {
    packet.head.mark = kPiggybackMark;
    packet.payload_bytes += kPiggybackBytes;
  }
  const auto payload = [&](std::span<std::byte> to) {
    if (along) encode(*along, to.last<kPiggybackBytes>());
    return memory::guarded_copy(to.data(), message.payload.data(), bytes);
  };
  if (trains_upto_ - finished_ <= 0) trains_upto_ = finished_;
  packet.may_overtake = trains_upto_ == finished_;
  bool is_apart = false;
  const auto outcome = along || !owing_.owes()
                           ? wire_.transmit_alone(packet, settings_.path, payload, is_apart)
                           : wire_.transmit(packet.general(), settings_.path, payload);
  if (outcome != Wire::Sent::kSent) return false;
  if (!is_apart) trains_upto_ = next_.next();
  if (along) owing_.went_along();
  return true;
}

void Requester::sent_at_once(const Engine::AtOnce& message, const Now& now) {
  const Flight flight = flight_of(message);
  line_.push(flight);
  next_ = flight.end();
  bytes_begun_ += flight.length;
  cursor_ = message.index.next();
  is_holding_ = has_heard_ = false;
  const bool is_measured = !round_trip_.is_known() || counters_.packets % kMeasuredOf == 0;
  sent(Step{.psn = flight.first, .is_measured = is_measured}, flight.length, true, now);
}

}  // namespace verbena::roce
