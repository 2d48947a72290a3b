// SPDX-License-Identifier: MIT
// Whole fabrics in one thread on a virtual clock: real engines, real packets, a network that does
// everything wrong, and oracles that know what must come of it.
//
//   fabric_test --seed=N [--set="loss=0 nodes=2"]   one run, with some of its plan changed
//   fabric_test --seed=N ... --trace=packets        and every packet of it
//   fabric_test --from=N --seeds=M                  M runs; a failing one is made smaller
//                                                   (not so with --shrink=0)
//
// coverage.txt says which pairs of state and event of a requester and a responder cannot be.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "coverage.h"
#include "shrink.h"
#include "world.h"

namespace verbena::fabric {
namespace {

#ifdef VERBENA_SANITIZED
constexpr bool kIsSanitized = true;  // takes ten times as long
#else
constexpr bool kIsSanitized = false;
#endif
constexpr std::uint64_t kFixedSeeds = kIsSanitized ? 600 : 3000;  // the same ones in every run
constexpr std::uint64_t kFreshSeeds = kIsSanitized ? 200 : 1000;  // and others every time

std::optional<std::string> option(const std::string& name) {
  std::ifstream command_line("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(command_line, word, '\0');) {
    if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
  }
  return std::nullopt;
}
std::optional<std::uint64_t> number(const std::string& name) {
  const auto text = option(name);
  if (!text) return std::nullopt;
  return std::strtoull(text->c_str(), nullptr, 0);
}

class Runs {
 public:
  // False: it failed.
  bool run(std::uint64_t seed, const Plan& plan) {
    const Verdict verdict = World(seed, plan).run();
    coverage_.add(verdict.coverage);
    established_ += verdict.established;
    memory_refused_ += verdict.memory_refused;
    overruns_ += verdict.overruns;
    for (std::size_t i = 0; i < statuses_.size(); ++i)
      statuses_[i] += verdict.statuses[i];
    if (verdict.failure.empty()) return true;
    ADD_FAILURE() << "fabric_test --seed=" << seed << " --set=\"" << describe(plan) << "\"\n"
                  << verdict.failure;
    if (number("--shrink") == 0) return false;
    const Shrunk smaller = shrink(seed, plan);
    ADD_FAILURE() << "smaller: fabric_test --seed=" << smaller.seed << " --set=\""
                  << describe(smaller.plan) << "\"\n"
                  << smaller.failure;
    return false;
  }
  bool run_all(std::uint64_t from, std::uint64_t count) {
    for (std::uint64_t seed = from; seed < from + count; ++seed)
      if (!run(seed, plan_of(seed))) return false;
    return true;
  }
  const WireCoverage& coverage() const { return coverage_; }
  const std::array<std::uint64_t, 32>& statuses() const { return statuses_; }
  void expect_all_troubles() const {
    EXPECT_GT(established_, 100u);
    EXPECT_GT(memory_refused_, 10u);
    EXPECT_GT(overruns_, 10u);
  }

 private:
  WireCoverage coverage_{};
  std::array<std::uint64_t, 32> statuses_{};
  std::uint64_t established_ = 0;
  std::uint64_t memory_refused_ = 0;
  std::uint64_t overruns_ = 0;
};

// The fixed seeds get to every pair of state and event but those that cannot be.
void expect_all_cells(const WireCoverage& coverage) {
  const Exceptions except = exceptions_of(VERBENA_COVERAGE);
  const std::set<Cell> seen = reached(coverage);
  for (const Cell& cell : all_cells()) {
    if (except.rare.contains(cell)) continue;
    EXPECT_EQ(seen.contains(cell), !except.holes.contains(cell))
        << cell.first << " | " << cell.second;
  }
}

// And to every way in which work ends that a network can bring about.
void expect_all_statuses(const std::array<std::uint64_t, 32>& statuses) {
  using queues::Status;
  for (const Status status :
       {Status::kSuccess, Status::kLocalProtection, Status::kFlushed, Status::kRemoteInvalidRequest,
        Status::kRemoteAccess, Status::kRetryExceeded, Status::kRnrRetryExceeded}) {
    const std::uint64_t count = statuses[static_cast<std::size_t>(status)];
    std::printf("status %2d: %8" PRIu64 " completions\n", static_cast<int>(status), count);
    EXPECT_GT(count, 10u) << "the runs do not reach this";
  }
}

TEST(Fabric, HoldsTheRulesForEverySeed) {
  Runs runs;
  if (const auto seed = number("--seed")) {
    Plan plan = option("--set") ? Plan{} : plan_of(*seed);
    ASSERT_TRUE(change(option("--set").value_or(""), plan) && is_valid(plan));
    std::printf("%s\n", describe(plan).c_str());
    if (option("--trace")) {
      World world(*seed, plan);
      world.watcher.is_tracing = true;
      EXPECT_EQ(world.run().failure, "");
      return;
    }
    runs.run(*seed, plan);
    return;
  }
  const auto seeds = number("--seeds");
  const bool is_good = runs.run_all(number("--from").value_or(1), seeds.value_or(kFixedSeeds));
  print(runs.coverage());
  if (seeds || !is_good) return;
  if (!kIsSanitized) {
    expect_all_cells(runs.coverage());
    expect_all_statuses(runs.statuses());
    runs.expect_all_troubles();
  }
  const std::uint64_t fresh = KernelRandom().next() >> 32;
  std::printf("fresh seeds from %" PRIu64 " on\n", fresh);
  runs.run_all(fresh, kFreshSeeds);
}

// What was found by chance, made smaller.
TEST(Fabric, HoldsTheRulesWhereItBrokeThem) {
  if (option("--seed") || option("--seeds")) GTEST_SKIP() << "asked for seeds";
  constexpr std::pair<std::uint64_t, const char*> kFound[] = {
      // READs between two that were missing were not counted against what the responder remembers.
      {20023902,
       "nodes=4 connections=3 operations=10 size_max=2445 path_mtu=512 packets_in_flight=7 "
       "reorder_packets=256 reorder_patience_us=9 agreeing=3 unsignaled=1 delay_ns=16000 "
       "queue_kib=16 reorder=5396 reorder_us=7 mark=2485 revokes=1 stops=1"},
      // The watcher took a NAK of an end that asks for agreement for one that names a gap.
      {30493569,
       "connections=2 operations=11 size_max=1584 path_mtu=4096 reads_max=1 reorder_packets=256 "
       "agreeing=1 unsignaled=1 shared_receives=1 delay_ns=500 reorder=6151"},
      // A READ that was acknowledged, asked for again and refused went on until its retries ended.
      {2640671886,
       "connections=3 operations=29 size_max=1140 reorder_packets=256 reorder_patience_us=14 "
       "agreeing=1 shared_receives=1 queue_kib=32 duplicate=4782 reorder=2785 reorder_us=18 "
       "mark=3607 revokes=1"},
      // The watcher believed that somebody who had not agreed yet knew what came along with a SEND.
      {52158350,
       "connections=3 operations=15 size_max=2270 managed=1 path_mtu=4096 kib_in_flight=1 "
       "reads_max=3 reorder_packets=256 agreeing=2 megabits=1000 delay_ns=16000 loss=2953 "
       "duplicate=5119 jump_us=1 revokes=1"},
  };
  for (const auto& [seed, settings] : kFound) {
    Plan plan;
    ASSERT_TRUE(change(settings, plan) && is_valid(plan));
    EXPECT_EQ(World(seed, plan).run().failure, "") << seed;
  }
}

TEST(Fabric, ReplaysASeedBitForBit) {
  if (option("--seed") || option("--seeds")) GTEST_SKIP() << "asked for seeds";
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Verdict first = World(seed, plan_of(seed)).run();
    const Verdict second = World(seed, plan_of(seed)).run();
    EXPECT_EQ(first.trace, second.trace) << "fabric_test --seed=" << seed;
    EXPECT_EQ(first.failure, second.failure);
  }
}

}  // namespace
}  // namespace verbena::fabric
