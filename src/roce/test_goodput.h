// SPDX-License-Identifier: MIT
// How much of a line's rate is left under loss, in virtual time: 25 Gb/s, a round trip of 20 us.
// For tests only.
#pragma once

#include <algorithm>
#include <memory>

#include "roce/dcqcn.h"
#include "roce/delay_control.h"
#include "roce/test_incast.h"
#include "roce/test_world.h"

namespace verbena::roce {

inline constexpr double kLineBitsPerSecond = 25e9;
inline constexpr double kRoundTripSeconds = 20e-6;
inline constexpr std::uint32_t kGoodputMessage = 1 << 20;
inline constexpr Duration kTestPatience = Duration::microseconds(8);

struct GoodputSetting {
  std::uint32_t path_mtu = 4096;
  std::uint32_t window = 64;
  std::uint32_t loss = 0;  // of 100,000
  std::uint32_t reorder = 0;
  bool selective = false;
  bool delay_control = false;
  queues::SendOpcode opcode = queues::SendOpcode::kWrite;
};

struct Goodput {
  double gigabits = 0;  // payload
  std::uint64_t packets = 0;
  std::uint64_t repeated = 0;
  std::uint64_t probes = 0;
  std::uint64_t timeouts = 0;

  double part_repeated() const {
    return static_cast<double>(repeated) / static_cast<double>(std::max<std::uint64_t>(packets, 1));
  }
};

inline EndOptions options_of(const GoodputSetting& setting) {
  EndOptions options;
  options.path_mtu = setting.path_mtu;
  options.memory = 2 * kGoodputMessage;
  options.timeout = 12;  // 16 ms
  options.in_flight = {.packets = setting.window, .bytes = setting.window * setting.path_mtu};
  if (setting.selective) {
    options.selective = true;
    options.reorder_packets = setting.window;
    options.reorder_patience = kTestPatience;
  }
  if (setting.delay_control) {
    options.congestion = [mtu = setting.path_mtu] {
      return std::make_unique<DelayControl>(DelayControlOptions{.packet_bytes = mtu});
    };
  }
  return options;
}

// One connection that sends `messages`, with one seed. Nothing when a work request fails.
inline Goodput goodput_once(const GoodputSetting& setting, unsigned messages, std::uint64_t seed) {
  TestWorld world(options_of(setting), seed);
  world.link.options.loss = setting.loss;
  world.link.options.reorder = setting.reorder;
  world.link.options.backlog_max = Duration::microseconds(2);
  unsigned done = 0;
  unsigned posted = 0;
  const Instant begin = world.now();
  while (done < messages) {
    for (; posted < messages && posted < done + 8; ++posted) {
      world.near().post({.opcode = setting.opcode,
                         .remote_address = world.far().address(0),
                         .remote_key = world.far().key},
                        kGoodputMessage, kGoodputMessage);
    }
    std::vector<queues::Completion> some;
    const bool is_alive = world.run_until([&] { return !(some = world.near().poll()).empty(); },
                                          Duration::seconds(1));
    for (const queues::Completion& completion : some)
      if (completion.status != queues::Status::kSuccess) return {};
    done += static_cast<unsigned>(some.size());
    if (!is_alive) return {};
  }
  const auto nanoseconds = static_cast<double>((world.now() - begin).count_nanoseconds());
  const RequesterCounters& counters = world.near().rc().requester().counters();
  return {.gigabits = static_cast<double>(messages) * kGoodputMessage * 8 / nanoseconds,
          .packets = counters.packets,
          .repeated = counters.repeated,
          .probes = counters.probes,
          .timeouts = counters.timeouts};
}

// Of several seeds: the rates' mean, the counters' sum.
inline Goodput goodput(const GoodputSetting& setting) {
  constexpr unsigned kSeeds = 4;
  constexpr unsigned kMessages = 12;
  Goodput sum;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Goodput one = goodput_once(setting, kMessages, seed);
    sum.gigabits += one.gigabits / kSeeds;
    sum.packets += one.packets;
    sum.repeated += one.repeated;
    sum.probes += one.probes;
    sum.timeouts += one.timeouts;
  }
  return sum;
}

// Go-back-N at its best: each loss costs what is sent until the NAK is back, a round trip's worth
// of packets or a window (Bertsekas and Gallager, Data Networks, 2.4.2):
//
//   W = min(window, 1 + round trip / packet time)
//   rate = line * W / (1 + round trip / packet time) * (1 - p) / (1 + p (W - 1))
//
// That NAKs are lost, too, and what replaces them, is not in it.
inline double go_back_n_gigabits(const GoodputSetting& setting) {
  constexpr double kReth = 16;
  const double packet =
      (setting.path_mtu + kReth + static_cast<double>(kAround)) * 8 / kLineBitsPerSecond;
  const double round_trip = 1 + kRoundTripSeconds / packet;
  const double out = std::min<double>(setting.window, round_trip);
  const double loss = setting.loss / 100'000.0;
  return out / round_trip * (1 - loss) / (1 + loss * (out - 1)) * setting.path_mtu * 8 / packet /
         1e9;
}

// Round trips, as they were measured before, from the sending of a packet that is lost to the
// completion of its message. `lost` says which packet of which end; `before` bytes have been
// written just before.
template <class Lost>
double recovery_round_trips(const GoodputSetting& setting, std::uint32_t before, int from,
                            Lost lost) {
  TestWorld world(options_of(setting), 1);
  world.link.options.backlog_max = Duration::microseconds(2);
  const auto post = [&](queues::SendOpcode opcode, std::uint32_t length) {
    world.near().post(
        {.opcode = opcode, .remote_address = world.far().address(0), .remote_key = world.far().key},
        kGoodputMessage, length);
    return world.run_until([&] { return !world.near().poll().empty(); }, Duration::seconds(1));
  };
  if (!post(queues::SendOpcode::kWrite, before)) return 0;
  const Duration round_trip = world.near().rc().requester().round_trip().smoothed();
  Instant at;
  world.link.tap = [&](int sender, const wire::Packet& packet) {
    if (sender != from || at != Instant() || !lost(packet)) return true;
    at = world.now();
    return false;
  };
  if (!post(setting.opcode, 10'000) || at == Instant()) return 0;
  return static_cast<double>((world.now() - at).count_nanoseconds()) /
         static_cast<double>(round_trip.count_nanoseconds());
}

struct Shares {
  double gigabits = 0;  // of all
  double least = 0;     // of the fair share
  double jain = 0;
  std::uint64_t dropped = 0;
  double part_repeated = 0;
  bool has_failed = false;
};

// Sixteen senders and one receiver behind a queue that marks (ECN) or only drops. `first` of them
// begin, the others come later; measured from then on, for `most`.
struct IncastSetting {
  std::uint32_t path_mtu = 4096;
  bool delay_control = false;  // and selective repeat; else DCQCN and go-back-N
  bool marks = true;
  std::size_t first = 16;
  Duration most = Duration::milliseconds(40);
};

inline Shares incast_shares(const IncastSetting& setting) {
  constexpr std::size_t kSenders = 16;
  EndOptions end = options_of({.path_mtu = setting.path_mtu,
                               .window = setting.delay_control ? 256u : 64u,
                               .selective = setting.delay_control,
                               .delay_control = setting.delay_control});
  end.in_flight.bytes = InFlight{}.bytes;
  end.memory = 64 * 1024;
  if (!setting.delay_control) end.congestion = [] { return std::make_unique<Dcqcn>(); };
  SwitchOptions port;
  if (!setting.marks) port.mark_from = port.mark_all_from = SIZE_MAX;
  Incast incast(kSenders, end, port, 5);
  if (setting.first != kSenders) incast.run(setting.first, Duration::milliseconds(10));
  incast.take_sent();
  incast.run(kSenders, setting.most);
  const std::vector<double> sent = incast.take_sent();
  const double sum = std::accumulate(sent.begin(), sent.end(), 0.0);
  const auto nanoseconds = static_cast<double>(setting.most.count_nanoseconds());
  return {.gigabits = sum * 8 / nanoseconds,
          .least = *std::ranges::min_element(sent) / (sum / kSenders),
          .jain = jain(sent),
          .dropped = incast.dropped(),
          .part_repeated = incast.repeated(),
          .has_failed = incast.has_failed()};
}

}  // namespace verbena::roce
