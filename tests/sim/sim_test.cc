// SPDX-License-Identifier: MIT
// Runs the simulator: `sim_test --seed=N` repeats one run, `sim_test --from=N --seeds=M` does M
// runs; each failure prints its seed.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "base/random.h"
#include "world.h"

namespace verbena::sim {

namespace {

constexpr std::uint64_t kFixedSeeds = 1000;  // the same ones in every run of the test
constexpr std::uint64_t kFreshSeeds = 1000;  // and others every time
constexpr unsigned kFailuresMax = 5;

std::optional<std::uint64_t> option(const std::string& name) {
  std::ifstream command_line("/proc/self/cmdline", std::ios::binary);
  for (std::string word; std::getline(command_line, word, '\0');) {
    if (word.starts_with(name + "="))
      return std::strtoull(word.c_str() + name.size() + 1, nullptr, 0);
  }
  return std::nullopt;
}

class Runs {
 public:
  void run(std::uint64_t seed) {
    const Verdict verdict = World(seed).run();
    for (std::size_t i = 0; i < statuses_.size(); ++i)
      statuses_[i] += verdict.statuses[i];
    if (verdict.failure.empty()) return;
    ++failures_;
    ADD_FAILURE() << "sim_test --seed=" << seed << "\n" << verdict.plan << "\n" << verdict.failure;
  }
  bool is_enough() const { return failures_ >= kFailuresMax; }
  const StatusCounts& statuses() const { return statuses_; }

 private:
  unsigned failures_ = 0;
  StatusCounts statuses_{};
};

// The fixed seeds must get to every way in which work ends.
void expect_all_statuses(const Runs& runs) {
  using queues::Status;
  for (Status status :
       {Status::kSuccess, Status::kLocalLength, Status::kLocalQpOperation, Status::kLocalProtection,
        Status::kFlushed, Status::kWindowBind, Status::kRemoteInvalidRequest, Status::kRemoteAccess,
        Status::kRemoteOperation, Status::kRetryExceeded, Status::kRnrRetryExceeded}) {
    const std::uint64_t count = runs.statuses()[static_cast<std::size_t>(status)];
    std::printf("status %2d: %8" PRIu64 " completions\n", static_cast<int>(status), count);
    EXPECT_GT(count, 10u) << "the runs do not reach this";
  }
}

TEST(Simulation, HoldsTheRulesForEverySeed) {
  Runs runs;
  if (const auto seed = option("--seed")) return runs.run(*seed);
  const std::uint64_t from = option("--from").value_or(1);
  const std::uint64_t fixed = option("--seeds").value_or(kFixedSeeds);
  for (std::uint64_t seed = from; seed < from + fixed && !runs.is_enough(); ++seed)
    runs.run(seed);
  if (option("--seeds") || runs.is_enough()) return;
  expect_all_statuses(runs);
  const std::uint64_t fresh = KernelRandom().next() >> 32;
  std::printf("fresh seeds from %" PRIu64 " on\n", fresh);
  for (std::uint64_t i = 0; i < kFreshSeeds && !runs.is_enough(); ++i)
    runs.run(fresh + i);
}

TEST(Simulation, ReplaysASeedBitForBit) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Verdict first = World(seed).run();
    const Verdict second = World(seed).run();
    EXPECT_EQ(first.trace, second.trace) << "sim_test --seed=" << seed;
    EXPECT_EQ(first.failure, second.failure);
  }
}

}  // namespace

}  // namespace verbena::sim
