// SPDX-License-Identifier: MIT
#include "raw/flow_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "raw/test_frames.h"

namespace verbena::raw {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Table : public testing::Test {
 protected:
  FlowTable table{16};

  static Flow rule(std::uint32_t to, std::uint16_t priority = 0) {
    Flow flow;
    flow.priority = priority;
    flow.to = {to};
    return flow;
  }
  static Flow to_mac(std::uint32_t to, const Mac& mac, std::uint16_t priority = 0) {
    Flow flow = rule(to, priority);
    flow.value.destination_mac = mac;
    flow.mask.destination_mac = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    return flow;
  }
  static Flow to_port(std::uint32_t to, std::uint16_t port, std::uint16_t priority = 0) {
    Flow flow = rule(to, priority);
    flow.value.destination_port = wire::be16(port);
    flow.mask.destination_port = wire::be16(0xFFFF);
    return flow;
  }
  static Flow other(FlowKind kind, std::uint32_t to) {
    Flow flow;
    flow.kind = kind;
    flow.to = {to};
    return flow;
  }
  std::vector<std::uint32_t> who(const Bytes& frame, Heading heading = Heading::kIn) const {
    std::vector<QpNum> found;
    table.find({key_of(frame), heading, frame.size()}, found);
    std::vector<std::uint32_t> numbers;
    for (const QpNum number : found)
      numbers.push_back(number.value);
    return numbers;
  }
};

TEST_F(Table, GivesAFrameToTheFirstPriorityThatMatches) {
  table.add(to_port(3, 80, 3));
  table.add(to_port(1, 80, 1));
  table.add(to_port(2, 80, 2));
  table.add(to_port(4, 81, 0));
  EXPECT_THAT(who(udp4(9, 80)), ElementsAre(1));
  EXPECT_THAT(who(udp4(9, 81)), ElementsAre(4));
  EXPECT_THAT(who(udp4(9, 82)), IsEmpty());
}

TEST_F(Table, GivesAFrameToAllOfOnePriority) {
  table.add(to_port(1, 80));
  table.add(to_mac(2, kHere));
  table.add(to_port(1, 80));
  EXPECT_THAT(who(udp4(9, 80)), ElementsAre(1, 2)) << "and to each once";
}

TEST_F(Table, LetsAFramePassOn) {
  Flow first = to_port(1, 80, 0);
  first.passes_on = true;
  table.add(first);
  table.add(to_port(2, 80, 1));
  table.add(to_port(3, 80, 2));
  table.add(other(FlowKind::kAllDefault, 4));
  EXPECT_THAT(who(udp4(9, 80)), ElementsAre(1, 2));
  first = to_port(5, 81, 0);
  first.passes_on = true;
  table.add(first);
  EXPECT_THAT(who(udp4(9, 81)), ElementsAre(5, 4)) << "and so to the default";
}

TEST_F(Table, DropsWhatARuleDrops) {
  Flow drop = to_port(1, 80, 1);
  drop.drops = true;
  table.add(drop);
  table.add(to_port(2, 80, 1));
  table.add(to_port(3, 80, 2));
  table.add(other(FlowKind::kAllDefault, 4));
  table.add(other(FlowKind::kSniffer, 5));
  EXPECT_THAT(who(udp4(9, 80)), ElementsAre(5));
}

TEST_F(Table, GivesTheRestToTheDefaults) {
  table.add(other(FlowKind::kAllDefault, 1));
  table.add(to_port(3, 80));
  EXPECT_THAT(who(udp4(9, 80)), ElementsAre(3));
  EXPECT_THAT(who(udp4(9, 81)), ElementsAre(1));
  EXPECT_THAT(who(udp4(9, 81, 16, {}, kGroup)), ElementsAre(1));
  table.add(other(FlowKind::kMulticastDefault, 2));
  EXPECT_THAT(who(udp4(9, 81)), ElementsAre(1));
  EXPECT_THAT(who(udp4(9, 81, 16, {}, kGroup)), ElementsAre(2));
}

TEST_F(Table, ShowsEverythingToSniffers) {
  table.add(other(FlowKind::kSniffer, 1));
  table.add(to_port(2, 80));
  EXPECT_THAT(who(udp4(9, 80)), ElementsAre(1, 2));
  EXPECT_THAT(who(udp4(9, 81), Heading::kOut), ElementsAre(1));
}

// What this host sends comes round where a switch would turn it.
TEST_F(Table, TurnsRoundMulticastAndWhatIsForAnAddressOfItsRules) {
  table.add(to_port(1, 80));
  table.add(to_mac(2, kHere));
  table.add(other(FlowKind::kAllDefault, 3));
  EXPECT_THAT(who(udp4(9, 80), Heading::kOut), ElementsAre(2));
  EXPECT_THAT(who(udp4(9, 80, 16, {}, kThere), Heading::kOut), IsEmpty());
  EXPECT_THAT(who(udp4(9, 80, 16, {}, kGroup), Heading::kOut), ElementsAre(1));
  EXPECT_THAT(who(udp4(9, 81, 16, {}, kGroup), Heading::kOut), ElementsAre(3));
}

TEST_F(Table, ForgetsWhatIsRemoved) {
  const auto first = table.add(to_port(1, 80));
  const auto second = table.add(other(FlowKind::kSniffer, 2));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(table.remove(*first)->to, QpNum{1});
  EXPECT_THAT(who(udp4(9, 80)), ElementsAre(2));
  EXPECT_TRUE(table.remove(*second));
  EXPECT_FALSE(table.remove(*second));
  EXPECT_EQ(table.size(), 0u);
}

TEST_F(Table, CountsWhatAFlowAppliesTo) {
  std::atomic<std::uint64_t> frames = 0;
  std::atomic<std::uint64_t> bytes = 0;
  std::atomic<std::uint64_t> dropped = 0;
  std::atomic<std::uint64_t> sniffed = 0;
  std::atomic<std::uint64_t> rest = 0;
  Flow rule = to_port(1, 80, 1);
  rule.counting = {{&frames, false}, {&bytes, true}};
  const auto first = table.add(rule);
  rule = to_port(2, 80, 2);  // behind the other one
  rule.counting = {{&rest, false}};
  table.add(rule);
  Flow drop = to_port(3, 81);
  drop.drops = true;
  drop.counting = {{&dropped, true}};
  table.add(drop);
  Flow sniffer = other(FlowKind::kSniffer, 4);
  sniffer.counting = {{&sniffed, false}};
  table.add(sniffer);
  const Bytes frame = udp4(9, 80);
  for (int i = 0; i < 3; ++i)
    who(frame);
  who(frame, Heading::kOut);  // no rule of an address: it leaves
  who(udp4(9, 81));
  EXPECT_EQ(frames, 3u);
  EXPECT_EQ(bytes, 3 * frame.size());
  EXPECT_EQ(rest, 0u) << "a rule of a lower priority did not apply";
  EXPECT_EQ(dropped, udp4(9, 81).size());
  EXPECT_EQ(sniffed, 5u);
  // A further place of a rule that is there, and two rules in one place.
  ASSERT_TRUE(table.count(*first, {&sniffed, false}));
  who(frame);
  EXPECT_EQ(frames, 4u);
  EXPECT_EQ(sniffed, 7u);
  table.remove(*first);
  EXPECT_FALSE(table.count(*first, {&sniffed, false}));
  who(frame);
  EXPECT_EQ(frames, 4u);
  EXPECT_EQ(rest, 1u);
}

TEST_F(Table, IsFullAtItsLimit) {
  for (unsigned i = 0; i < 16; ++i)
    EXPECT_TRUE(table.add(i % 2 == 0 ? rule(i) : other(FlowKind::kSniffer, i)));
  EXPECT_FALSE(table.add(rule(17)));
  EXPECT_FALSE(table.add(other(FlowKind::kSniffer, 17)));
}

}  // namespace
}  // namespace verbena::raw
