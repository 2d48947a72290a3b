// SPDX-License-Identifier: MIT
// What is left of a line's rate under loss, in virtual time, against what go-back-N can do at best.
// The table is printed; the limits are those that the project wants to hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

constexpr double kBitsPerSecond = 25e9;
constexpr double kRoundTripSeconds = 20e-6;
constexpr std::uint32_t kMessage = 1 << 20;

struct Measured {
  double gigabits = 0;  // payload
  double repeated = 0;  // of the packets sent
  std::uint64_t probes = 0;
  std::uint64_t timeouts = 0;
};

struct Setting {
  std::uint32_t path_mtu = 4096;
  std::uint32_t window = 64;
  std::uint32_t loss = 0;  // of 100,000
  std::uint32_t reorder = 0;
  bool selective = false;
  queues::SendOpcode opcode = queues::SendOpcode::kWrite;
};

EndOptions options_of(const Setting& setting) {
  EndOptions options;
  options.path_mtu = setting.path_mtu;
  options.memory = 2 * kMessage;
  options.timeout = 12;  // 16 ms
  options.in_flight = {.packets = setting.window, .bytes = setting.window * setting.path_mtu};
  if (setting.selective) {
    options.selective = true;
    options.reorder_packets = setting.window;
    options.reorder_patience = Duration::microseconds(setting.reorder == 0 ? 2 : 8);
  }
  return options;
}

Measured measure(const Setting& setting, unsigned messages = 48) {
  TestWorld world(options_of(setting), 7);
  world.link.options.loss = setting.loss;
  world.link.options.reorder = setting.reorder;
  world.link.options.delay = Duration::microseconds(10);
  world.link.options.backlog_max = Duration::microseconds(2);
  unsigned done = 0;
  unsigned posted = 0;
  const Instant begin = world.now();
  while (done < messages) {
    for (; posted < messages && posted < done + 8; ++posted) {
      world.near().post({.opcode = setting.opcode,
                         .remote_address = world.far().address(0),
                         .remote_key = world.far().key},
                        kMessage, kMessage);
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
  return {.gigabits = static_cast<double>(messages) * kMessage * 8 / nanoseconds,
          .repeated = static_cast<double>(counters.repeated) /
                      static_cast<double>(std::max<std::uint64_t>(counters.packets, 1)),
          .probes = counters.probes,
          .timeouts = counters.timeouts};
}

// Go-back-N at its best: each loss costs what is sent until the NAK is back, a round trip's worth
// of packets or a window (Bertsekas and Gallager, Data Networks, 2.4.2). That NAKs are lost, too,
// is not in it.
double ideal_gigabits(const Setting& setting) {
  const double packet = (setting.path_mtu + 16 + 66.0) * 8 / kBitsPerSecond;
  const double round_trip = 1 + kRoundTripSeconds / packet;
  const double out = std::min<double>(setting.window, round_trip);
  const double loss = setting.loss / 100'000.0;
  return out / round_trip * (1 - loss) / (1 + loss * (out - 1)) * setting.path_mtu * 8 / packet /
         1e9;
}

TEST(Goodput, GoBackNStaysNearItsIdeal) {
  std::printf("   mtu window  loss %%    ideal  measured  repeated  probes  timeouts\n");
  for (const std::uint32_t mtu : {4096u, 1024u}) {
    for (const std::uint32_t window : {8u, 64u}) {
      for (const std::uint32_t loss : {0u, 100u, 1000u, 5000u}) {
        const Setting setting{.path_mtu = mtu, .window = window, .loss = loss};
        const Measured measured = measure(setting);
        const double ideal = ideal_gigabits(setting);
        std::printf("%6u %6u %7.1f %8.2f %9.2f %8.1f%% %7llu %9llu\n", mtu, window, loss / 1000.0,
                    ideal, measured.gigabits, measured.repeated * 100,
                    static_cast<unsigned long long>(measured.probes),
                    static_cast<unsigned long long>(measured.timeouts));
        EXPECT_GT(measured.gigabits, 0.85 * ideal);
      }
    }
  }
}

TEST(Goodput, SelectiveRepeatLosesLittle) {
  std::printf("   mtu window  loss %%  measured  repeated  probes  timeouts\n");
  for (const std::uint32_t mtu : {4096u, 1024u}) {
    double lossless = 0;
    for (const std::uint32_t loss : {0u, 100u, 1000u, 5000u}) {
      const Measured measured =
          measure({.path_mtu = mtu, .window = 256, .loss = loss, .selective = true});
      std::printf("%6u %6u %7.1f %9.2f %8.1f%% %7llu %9llu\n", mtu, 256u, loss / 1000.0,
                  measured.gigabits, measured.repeated * 100,
                  static_cast<unsigned long long>(measured.probes),
                  static_cast<unsigned long long>(measured.timeouts));
      if (loss == 0) lossless = measured.gigabits;
      const double part = loss <= 100 ? 0.97 : loss <= 1000 ? 0.90 : 0.5;
      EXPECT_GT(measured.gigabits, part * lossless);
    }
  }
}

TEST(Goodput, ReadsAreAskedForAgainOnlyWhereTheyMiss) {
  std::printf("   mtu window  loss %%  measured  requests repeated\n");
  for (const std::uint32_t loss : {0u, 100u, 1000u, 5000u}) {
    const Measured measured =
        measure({.window = 64, .loss = loss, .opcode = queues::SendOpcode::kRead});
    std::printf("%6u %6u %7.1f %9.2f %8.1f%%\n", 4096u, 64u, loss / 1000.0, measured.gigabits,
                measured.repeated * 100);
    EXPECT_GT(measured.gigabits, loss > 1000 ? 5 : 15);
  }
}

TEST(Goodput, ReorderingIsNotTakenForLoss) {
  const Measured measured = measure({.window = 256, .reorder = 1000, .selective = true});
  std::printf("1 %% reordered: %.2f Gb/s, %.3f %% repeated\n", measured.gigabits,
              measured.repeated * 100);
  EXPECT_LE(measured.repeated, 0.001);
}

}  // namespace
}  // namespace verbena::roce
