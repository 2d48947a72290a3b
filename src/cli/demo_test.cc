// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/child.h"
#include "cli/demo_parts.h"
#include "cli/demo_report.h"
#include "cli/terminal.h"

namespace verbena::cli {
namespace {

// As perftest 4.5 and ibverbs-utils 44 print it.
constexpr char kBandwidth[] = R"(
 local address: LID 0000 QPN 0x0011 PSN 0xfc5c2 RKey 0x180 VAddr 0x007f
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             11000.00            10000.00 		   0.160000
---------------------------------------------------------------------------------------
)";
constexpr char kLatency[] =
    "\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]"
    "    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
    " 2       1000          0.50           9.00         0.61     \t       0.63        \t0.10\t"
    "\t0.90    \t\t3.00   \n";
constexpr char kPingpong[] = R"(  local address:  LID 0x0000, QPN 0x000010, PSN 0x1, GID fe80::1
8192000 bytes in 0.01 seconds = 9046.49 Mbit/sec
1000 iters in 0.01 seconds = 7.24 usec/iter
)";

TEST(Figures, AreReadFromTheProgramsOutput) {
  const auto bandwidth = read_figure(Bench::kWriteBandwidth, kBandwidth);
  ASSERT_TRUE(bandwidth);
  EXPECT_EQ(bandwidth->what, "64 KiB a WRITE");
  EXPECT_EQ(bandwidth->value, "10.5 GB/s");
  const auto latency = read_figure(Bench::kWriteLatency, kLatency);
  ASSERT_TRUE(latency);
  EXPECT_EQ(latency->what, "2 bytes a WRITE, one way");
  EXPECT_EQ(latency->value, "0.61 us (99 %: 0.90)");
  const auto pingpong = read_figure(Bench::kPingpong, kPingpong);
  ASSERT_TRUE(pingpong);
  EXPECT_EQ(pingpong->value, "7.24 us");
}

TEST(Figures, AreAbsentWhereAProgramFailed) {
  for (const Bench bench : kBenches) {
    EXPECT_FALSE(read_figure(bench, ""));
    EXPECT_FALSE(read_figure(bench, "Couldn't connect to 127.0.0.1:18515\n 1 2 3\n"));
  }
}

TEST(Report, HasAValueOnceItsLineIsComplete) {
  EXPECT_EQ(value_in("port 12\nbytes 7\n", "bytes"), "7");
  EXPECT_EQ(value_in("port 12\nbytes 7", "bytes"), std::nullopt);
  EXPECT_EQ(value_in("ports 12\n", "port"), std::nullopt);
  EXPECT_EQ(value_in("", "port"), std::nullopt);
}

TEST(Report, EndsWithItsWriter) {
  Report report;
  ASSERT_GE(report.write_end(), 0);
  ASSERT_EQ(write(report.write_end(), "port 12\nmov", 11), 11);
  EXPECT_EQ(report.wait_for("port", 10), "12");
  EXPECT_EQ(report.wait_while_moving("written", 0.01), std::nullopt);
  EXPECT_FALSE(report.has_ended());
  report.started();
  EXPECT_EQ(report.wait_for("written", 10), std::nullopt);
  EXPECT_TRUE(report.has_ended());
}

// It counts in a loop, so that it uses processor time whenever it may.
Result<Child, std::string> start_busy() {
  return Child::start({"sh", "-c", "while :; do :; done"}, {});
}

void sleep_a_little() {
  const timespec pause = {.tv_sec = 0, .tv_nsec = 50'000'000};
  nanosleep(&pause, nullptr);
}

TEST(Child, UsesNoProcessorWhileItIsStopped) {
  auto child = start_busy();
  ASSERT_TRUE(child);
  ASSERT_TRUE(child->stop(10));
  const auto before = child->cpu_nanoseconds();
  ASSERT_TRUE(before);
  sleep_a_little();
  EXPECT_EQ(child->cpu_nanoseconds(), before);
  EXPECT_FALSE(child->was_resumed());
  child->resume();
  for (const double end = seconds_now() + 10;
       child->cpu_nanoseconds() == before && seconds_now() < end;) {
    sleep_a_little();
  }
  EXPECT_GT(child->cpu_nanoseconds(), before);
  EXPECT_TRUE(child->was_resumed());
  EXPECT_FALSE(child->was_resumed());
}

TEST(Child, ThatHasEndedIsNotStopped) {
  auto child = Child::start({"false"}, {});
  ASSERT_TRUE(child);
  siginfo_t end = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child->pid()), &end, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(child->stop(10));
  EXPECT_EQ(child->wait(0), 1);
  EXPECT_EQ(child->cpu_nanoseconds(), std::nullopt);
}

TEST(Child, MayDieWhileItIsStopped) {
  auto child = start_busy();
  ASSERT_TRUE(child);
  ASSERT_TRUE(child->stop(10));
  ASSERT_EQ(kill(child->pid(), SIGKILL), 0);
  EXPECT_EQ(child->wait(10), 128 + SIGKILL);
  EXPECT_FALSE(child->was_resumed());
}

TEST(FittingSize, LeavesRoomForTwoCopies) {
  constexpr std::uint64_t kGibi = std::uint64_t{1} << 30;
  EXPECT_EQ(fitting_size(kGibi, 4 * kGibi), kGibi);
  EXPECT_EQ(fitting_size(kGibi, 2 * kGibi), kGibi / 2);
  EXPECT_EQ(fitting_size(kGibi, 0), std::uint64_t{1} << 20);
  EXPECT_EQ(fitting_size(5, 0), 5u);
}

TEST(Terminal, SpellsSizesAndRates) {
  EXPECT_EQ(spell_bytes(0), "0 bytes");
  EXPECT_EQ(spell_bytes(1), "1 byte");
  EXPECT_EQ(spell_bytes(1023), "1023 bytes");
  EXPECT_EQ(spell_bytes(1536), "1.5 KiB");
  EXPECT_EQ(spell_bytes(std::uint64_t{1} << 30), "1 GiB");
  EXPECT_EQ(spell_count(7), "7");
  EXPECT_EQ(spell_count(1024), "1,024");
  EXPECT_EQ(spell_count(1234567), "1,234,567");
  EXPECT_EQ(spell_rate(12.34e9), "12.3 GB/s");
  EXPECT_EQ(spell_rate(350e6), "350 MB/s");
}

}  // namespace
}  // namespace verbena::cli
