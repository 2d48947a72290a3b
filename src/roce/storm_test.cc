// SPDX-License-Identifier: MIT
// Thousands of connections on lines that lose, repeat and reorder packets: whatever the seed, every
// byte arrives in its place, exactly once and in order. `--seed=N` repeats one run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/test_seed.h"
#include "roce/test_program.h"

namespace verbena::roce {
namespace {

constexpr unsigned kSeeds = 1500;

struct Plan {
  EndOptions end;
  EndOptions other;
  LinkOptions link;
  unsigned operations = 0;
  std::uint32_t size_max = 0;
};

Plan plan_of(SeededRandom& random) {
  Plan plan;
  plan.end.memory = kProgramMemory;
  plan.end.path_mtu = 256u << random.below(5);
  plan.end.first_psn = random.one_in(2) ? 0xFFFFFF - static_cast<std::uint32_t>(random.below(300))
                                        : static_cast<std::uint32_t>(random.next() & 0xFFFFFF);
  plan.end.in_flight.packets = 1 + static_cast<std::uint32_t>(random.below(128));
  plan.end.in_flight.bytes = 1024 << random.below(9);
  plan.end.reads_max = static_cast<std::uint8_t>(1 + random.below(16));
  if (random.one_in(2)) {
    plan.end.reorder_packets = 8u << random.below(5);
    plan.end.reorder_patience = Duration::microseconds(static_cast<std::int64_t>(random.below(30)));
    plan.end.selective = random.one_in(2);
  }
  const auto chance = [&](std::uint64_t most) {
    return random.one_in(2) ? 0 : static_cast<std::uint32_t>(random.below(most));
  };
  plan.link.loss = chance(6000);
  plan.link.duplicate = chance(10'000);
  plan.link.reorder = chance(10'000);
  plan.link.reorder_by = Duration::microseconds(1 + static_cast<std::int64_t>(random.below(40)));
  plan.link.mark = chance(5000);
  plan.link.backlog_max = Duration::nanoseconds(500 << random.below(8));
  plan.other = plan.end;
  // One of them may be another NIC.
  if (!plan.end.selective && random.one_in(2)) {
    for (EndOptions* end : {&plan.end, &plan.other}) {
      end->asks_for_agreement = !random.one_in(4);
      if (end->asks_for_agreement) end->reorder_packets = kAgreedSpan;
    }
  }
  plan.operations = 10 + static_cast<unsigned>(random.below(50));
  plan.size_max = random.one_in(4) ? 8192 : 1 + static_cast<std::uint32_t>(random.below(6000));
  return plan;
}

std::string describe(const Plan& plan) {
  std::ostringstream text;
  text << "mtu " << plan.end.path_mtu << ", packets " << plan.end.in_flight.packets << ", bytes "
       << plan.end.in_flight.bytes << ", reorder buffer " << plan.end.reorder_packets
       << (plan.end.selective ? " selective" : "") << (plan.end.asks_for_agreement ? " asks" : "")
       << (plan.other.asks_for_agreement ? " is asked" : "") << ", loss " << plan.link.loss
       << ", duplicate " << plan.link.duplicate << ", reorder " << plan.link.reorder;
  return text.str();
}

struct Run {
  explicit Run(std::uint64_t seed)
      : random(seed),
        plan(plan_of(random)),
        world(plan.end, plan.other, seed),
        there(world.near(), world.far(), random, plan.operations, plan.size_max),
        back(world.far(), world.near(), random, plan.operations, plan.size_max) {
    world.link.options = plan.link;
  }
  bool is_done() const { return there.is_done() && back.is_done(); }
  void step() {
    there.step();
    back.step();
    world.run(Duration::microseconds(20));
    world.link.now = world.link.now + Duration::microseconds(1);
  }
  std::string failure() const { return there.failure().empty() ? back.failure() : there.failure(); }

  SeededRandom random;
  Plan plan;
  TestWorld world;
  TestProgram there;
  TestProgram back;
};

std::string arrive_once(std::uint64_t seed) {
  Run run(seed);
  const Instant end = run.world.now() + Duration::seconds(2);
  while (!run.is_done() && run.world.now() < end && run.failure().empty())
    run.step();
  run.there.step();
  run.back.step();
  if (!run.failure().empty()) return run.failure() + ": " + describe(run.plan);
  if (run.there.has_failed_work() || run.back.has_failed_work()) {
    return "a work request failed: " + describe(run.plan);
  }
  if (!run.is_done()) return "does not come to an end: " + describe(run.plan);
  run.there.check_memory();
  run.back.check_memory();
  if (!run.failure().empty()) return run.failure() + ": " + describe(run.plan);
  return {};
}

// The line is cut at some time, for good: every work request ends, once and in order.
std::string end_in_silence(std::uint64_t seed) {
  Run run(seed);
  const std::uint64_t cut_after = run.random.below(40);
  const Instant end = run.world.now() + Duration::seconds(2);
  for (std::uint64_t i = 0; !run.is_done() && run.world.now() < end; ++i) {
    if (i == cut_after) run.world.link.options.is_cut = true;
    run.step();
  }
  if (!run.failure().empty()) return run.failure() + ": " + describe(run.plan);
  // Who waits for nothing does not notice; who waits does.
  if (!run.is_done()) return "does not come to an end: " + describe(run.plan);
  return {};
}

void over_seeds(std::string (*run)(std::uint64_t)) {
  const std::uint64_t seed = test_seed();
  const char* wanted = std::getenv("VERBENA_SEEDS");
  const unsigned seeds = wanted ? static_cast<unsigned>(std::strtoul(wanted, nullptr, 10)) : kSeeds;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const std::string failure = run(seed + i);
    ASSERT_EQ(failure, "") << "--seed=" << seed + i;
  }
}

TEST(Storm, EveryByteArrivesOnce) { over_seeds(arrive_once); }
TEST(Storm, EveryWorkRequestEndsWhenThePeerStops) { over_seeds(end_in_silence); }

}  // namespace
}  // namespace verbena::roce
