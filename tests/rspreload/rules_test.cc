// SPDX-License-Identifier: MIT
#include "rspreload/rules.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace verbena::rspreload {
namespace {

constexpr Kind kTcp = {AF_INET, SOCK_STREAM, IPPROTO_TCP};
constexpr Kind kStream = {AF_INET, SOCK_STREAM, 0};
constexpr Kind kTcp6 = {AF_INET6, SOCK_STREAM, IPPROTO_TCP};
constexpr Kind kUdp = {AF_INET, SOCK_DGRAM, IPPROTO_UDP};

bool holds(std::string_view line, std::string_view program, const Kind& kind) {
  const auto rule = read_rule(line);
  return rule && holds(*rule, program, kind);
}

TEST(Rules, ReadWordsNumbersAndStars) {
  for (const char* line : {"iperf3 AF_INET SOCK_STREAM IPPROTO_TCP", "* * * *", "iperf3 * * *",
                           "  iperf3\tinet stream tcp  # comment", "iperf3 PF_INET 1 6"}) {
    EXPECT_TRUE(holds(line, "iperf3", kTcp)) << line;
    EXPECT_TRUE(holds(line, "iperf3", kStream)) << line;
  }
}

TEST(Rules, HoldForNothingElse) {
  EXPECT_FALSE(holds("iperf3 * * *", "iperf", kTcp));
  EXPECT_FALSE(holds("* AF_INET6 * *", "a", kTcp));
  EXPECT_TRUE(holds("* AF_INET6 * *", "a", kTcp6));
  EXPECT_FALSE(holds("* * SOCK_STREAM *", "a", kUdp));
  EXPECT_FALSE(holds("* * * IPPROTO_TCP", "a", kUdp));
}

TEST(Rules, AreLeftOutWhereTheyMeanNothing) {
  for (const char* line : {"", "# a b c d", "a", "a *", "a * *", "a * * * *", "a AF_UNIX * *",
                           "a * SEQPACKET *", "a * * SCTP", "a * * 6x"}) {
    EXPECT_FALSE(read_rule(line)) << line;
  }
}

class RulesFile : public testing::Test {
 protected:
  void SetUp() override { descriptor = mkstemp(path.data()); }
  void TearDown() override {
    close(descriptor);
    unlink(path.c_str());
  }
  void fill(std::string_view text) const {
    ASSERT_EQ(write(descriptor, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  std::string path = "/tmp/rules_test_XXXXXX";
  int descriptor = -1;
};

TEST_F(RulesFile, NamesWhatIsWanted) {
  fill("# what is an rsocket\nbad line\n\niperf3 inet stream tcp\n* inet dgram udp");
  const Rules rules(path.c_str());
  EXPECT_TRUE(rules.want("iperf3", kTcp));
  EXPECT_FALSE(rules.want("iperf3", kTcp6));
  EXPECT_FALSE(rules.want("curl", kTcp));
  EXPECT_TRUE(rules.want("curl", kUdp));
}

TEST_F(RulesFile, ThatIsEmptyWantsNothing) { EXPECT_FALSE(Rules(path.c_str()).want("a", kTcp)); }

TEST(Rules, WithoutAFileAllStreamsAreWanted) {
  const Rules rules("/tmp/there/is/no/such/file");
  EXPECT_TRUE(rules.want("a", kTcp));
  EXPECT_TRUE(rules.want("a", kTcp6));
  EXPECT_FALSE(rules.want("a", kUdp));
}

}  // namespace
}  // namespace verbena::rspreload
