// SPDX-License-Identifier: MIT
// Counters of flows (ibv_create_counters(3), ibv_attach_counters_point_flow(3)): places that flows
// count frames and bytes in. What goes to one place is one sum.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "nic/objects.h"

namespace verbena::nic {

enum class Counted : std::uint8_t { kPackets, kBytes };

// What is to be counted, and in which place.
struct CounterPoint {
  Counted what = Counted::kPackets;
  std::uint32_t index = 0;
};

struct Counters {
  static constexpr std::uint32_t kPlaces = 64;
  static constexpr std::size_t kPointsMax = 256;

  explicit Counters(Context& of) : context(&of) {}
  Context* context;
  std::atomic<std::uint32_t> dependents{0};  // flows that count here
  std::array<std::atomic<std::uint64_t>, kPlaces> values{};
  Mutex lock;
  std::vector<CounterPoint> points;  // of flows that are made with them; with lock
};
Result<Counters*, Error> create_counters(Context& context);
Result<void, Error> destroy_counters(Counters* counters);  // kBusy while flows count here
// For flows that are made with them from now on. kBusy: some count already. kInvalid: there is no
// such place. kNoRoom: too many were asked for.
Result<void, Error> attach(Counters& counters, const CounterPoint& point);
// The first places. kInvalid: there are not so many.
Result<void, Error> read(const Counters& counters, std::span<std::uint64_t> values);

}  // namespace verbena::nic
