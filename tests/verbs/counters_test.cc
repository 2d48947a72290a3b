// SPDX-License-Identifier: MIT
// Counters of flows (ibv_create_counters(3), ibv_attach_counters_point_flow(3)): frames on the
// loopback interface, of an EtherType that nobody else uses.
#include <array>
#include <cstddef>

#include "raw_packets.h"

namespace verbena::verbs::testing {
namespace {

class CountersTest : public RawPacketTest {
 protected:
  OwnRaw<ibv_counters> make_counters() {
    ibv_counters_init_attr wanted{};
    return OwnRaw<ibv_counters>(ibv_create_counters(context.get(), &wanted));
  }
  static int attach(ibv_counters* counters, unsigned what, std::uint32_t index,
                    ibv_flow* flow = nullptr) {
    ibv_counter_attach_attr wanted{};
    put(wanted.counter_desc, what);
    wanted.index = index;
    return ibv_attach_counters_point_flow(counters, &wanted, flow);
  }
  static std::vector<std::uint64_t> read(ibv_counters* counters, std::size_t count) {
    std::vector<std::uint64_t> values(count, 0xDEAD);
    EXPECT_EQ(0, ibv_read_counters(counters, values.data(), static_cast<std::uint32_t>(count), 0));
    return values;
  }
  // The spec with a pointer lies where no compiler would put it.
  static ibv_flow* make_counting_flow(ibv_qp* qp, std::uint8_t last_of_mac, ibv_counters* counters,
                                      bool drops = false) {
    alignas(ibv_flow_attr) std::array<std::byte, 256> room{};
    ibv_flow_attr attr{};
    std::size_t used = sizeof attr;
    const auto add = [&](const auto& spec) {
      std::memcpy(room.data() + used, &spec, sizeof spec);
      used += sizeof spec;
      ++attr.num_of_specs;
    };
    add(eth_spec(last_of_mac));
    ibv_flow_spec_counter_action count{};
    count.type = IBV_FLOW_SPEC_ACTION_COUNT;
    count.size = sizeof count;
    count.counters = counters;
    add(count);
    ibv_flow_spec_action_drop drop{};
    drop.type = IBV_FLOW_SPEC_ACTION_DROP;
    drop.size = sizeof drop;
    if (drops) add(drop);
    attr.size = static_cast<std::uint16_t>(used);
    attr.port = 1;
    std::memcpy(room.data(), &attr, sizeof attr);
    return ibv_create_flow(qp, reinterpret_cast<ibv_flow_attr*>(room.data()));
  }
  // Sends a frame, and waits until the queue pair has it: then it is counted, too.
  void bring(ibv_qp* receiver, std::uint8_t last_of_mac, std::uint32_t length) {
    post_receive(receiver, kThere, 2000, 7);
    post_send(frame(0, last_of_mac, length, 1), 0);
    ASSERT_EQ(next_completion().byte_len, length);
  }
};

using Values = std::vector<std::uint64_t>;

TEST_F(CountersTest, CountFramesAndBytesOfAFlowThatIsMadeWithThem) {
  const Own<ibv_qp> receiver = make_receiver();
  const auto counters = make_counters();
  ASSERT_TRUE(counters);
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_PACKETS, 0));
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_BYTES, 2));
  const OwnRaw<ibv_flow> flow(make_counting_flow(receiver.get(), 1, counters.get()));
  ASSERT_TRUE(flow);
  EXPECT_EQ(read(counters.get(), 3), (Values{0, 0, 0}));
  bring(receiver.get(), 1, kLength);
  EXPECT_EQ(read(counters.get(), 3), (Values{1, 0, kLength}));
  bring(receiver.get(), 1, 1000);
  EXPECT_EQ(read(counters.get(), 3), (Values{2, 0, kLength + 1000}));
  EXPECT_EQ(read(counters.get(), 1), (Values{2})) << "the first ones, if less is asked for";
  std::uint64_t value = 0;
  EXPECT_EQ(0, ibv_read_counters(counters.get(), &value, 1, IBV_READ_COUNTERS_ATTR_PREFER_CACHED));
  EXPECT_EQ(value, 2u);
}

TEST_F(CountersTest, AddUpTheFlowsThatAreMadeWithThem) {
  const Own<ibv_qp> receiver = make_receiver();
  const auto counters = make_counters();
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_PACKETS, 0));
  OwnRaw<ibv_flow> first(make_counting_flow(receiver.get(), 1, counters.get()));
  const OwnRaw<ibv_flow> second(make_counting_flow(receiver.get(), 2, counters.get()));
  ASSERT_TRUE(first && second);
  bring(receiver.get(), 1, kLength);
  bring(receiver.get(), 2, kLength);
  EXPECT_EQ(read(counters.get(), 1), (Values{2}));
  first.reset();
  bring(receiver.get(), 2, kLength);
  EXPECT_EQ(read(counters.get(), 1), (Values{3})) << "what a flow has counted stays";
}

TEST_F(CountersTest, CountForAFlowThatIsThereFromThenOn) {
  const Own<ibv_qp> receiver = make_receiver();
  const auto counters = make_counters();
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  ASSERT_TRUE(counters && flow);
  bring(receiver.get(), 1, kLength);
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_PACKETS, 1, flow.get()));
  bring(receiver.get(), 1, kLength);
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_BYTES, 0, flow.get()));
  bring(receiver.get(), 1, 100);
  EXPECT_EQ(read(counters.get(), 2), (Values{100, 2}));
  // Two in one place: their sum.
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_BYTES, 1, flow.get()));
  bring(receiver.get(), 1, 50);
  EXPECT_EQ(read(counters.get(), 2), (Values{150, 2 + 1 + 50}));
}

TEST_F(CountersTest, CountWhatAFlowDrops) {
  const Own<ibv_qp> receiver = make_receiver();
  const Own<ibv_qp> witness = make_receiver();
  const auto counters = make_counters();
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_PACKETS, 0));
  const OwnRaw<ibv_flow> flow(make_counting_flow(receiver.get(), 1, counters.get(), true));
  const auto of_witness = make_flow(witness.get(), wish(eth_spec(2)));
  ASSERT_TRUE(flow && of_witness);
  post_receive(receiver.get(), kThere, 2000, 8);
  post_send(frame(1024, 1, kLength, 1), 0);
  bring(witness.get(), 2, kLength);  // frames keep their order
  EXPECT_EQ(read(counters.get(), 1), (Values{1}));
  EXPECT_TRUE(no_completion());
}

TEST_F(CountersTest, StayWhileFlowsCount) {
  const Own<ibv_qp> receiver = make_receiver();
  auto counters = make_counters();
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_PACKETS, 0));
  OwnRaw<ibv_flow> made_with(make_counting_flow(receiver.get(), 1, counters.get()));
  auto flow = make_flow(receiver.get(), wish(eth_spec(2)));
  ASSERT_TRUE(made_with && flow);
  EXPECT_EQ(EBUSY, attach(counters.get(), IBV_COUNTER_BYTES, 1)) << "too late for this";
  EXPECT_EQ(EBUSY, ibv_destroy_counters(counters.get()));
  ASSERT_EQ(0, attach(counters.get(), IBV_COUNTER_BYTES, 1, flow.get()));
  made_with.reset();
  EXPECT_EQ(EBUSY, ibv_destroy_counters(counters.get())) << "of the other flow";
  flow.reset();
  EXPECT_EQ(0, attach(counters.get(), IBV_COUNTER_BYTES, 1)) << "no flow has them";
}

TEST_F(CountersTest, RefuseWhatCannotBe) {
  ibv_counters_init_attr wanted{};
  wanted.comp_mask = 1;
  EXPECT_FALSE(ibv_create_counters(context.get(), &wanted));
  EXPECT_EQ(EINVAL, errno);
  const auto counters = make_counters();
  ASSERT_TRUE(counters);
  EXPECT_EQ(ENOTSUP, attach(counters.get(), 2, 0)) << "no such thing to count";
  EXPECT_EQ(EINVAL, attach(counters.get(), IBV_COUNTER_BYTES, 64));
  EXPECT_EQ(0, attach(counters.get(), IBV_COUNTER_BYTES, 63));
  ibv_counter_attach_attr point{};
  point.comp_mask = 1;
  EXPECT_EQ(EINVAL, ibv_attach_counters_point_flow(counters.get(), &point, nullptr));
  std::array<std::uint64_t, 65> values{};
  EXPECT_EQ(EINVAL, ibv_read_counters(counters.get(), values.data(), 65, 0));
  EXPECT_EQ(EINVAL, ibv_read_counters(counters.get(), values.data(), 1, 2));
  EXPECT_EQ(0, ibv_read_counters(counters.get(), values.data(), 64, 0));

  const Own<ibv_qp> receiver = make_receiver();
  errno = 0;
  EXPECT_FALSE(make_counting_flow(receiver.get(), 1, nullptr));
  EXPECT_EQ(EINVAL, errno);
  const Own<ibv_context> elsewhere(ibv_open_device(context->device));
  ibv_counters_init_attr plain{};
  const OwnRaw<ibv_counters> foreign(ibv_create_counters(elsewhere.get(), &plain));
  ASSERT_TRUE(foreign);
  EXPECT_FALSE(make_counting_flow(receiver.get(), 1, foreign.get()));
  EXPECT_EQ(EINVAL, errno);
  const auto flow = make_flow(receiver.get(), wish(eth_spec(1)));
  EXPECT_EQ(EINVAL, attach(foreign.get(), IBV_COUNTER_BYTES, 0, flow.get()));
}

}  // namespace
}  // namespace verbena::verbs::testing
