// SPDX-License-Identifier: MIT
#include "port/steering.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_seed.h"
#include "port/test_interpreter.h"
#include "port/test_packets.h"

namespace verbena::port {
namespace {

std::uint32_t run(const Steering& steering, std::span<const std::byte> packet,
                  std::uint16_t fallback = 0) {
  const auto program = steering.program(fallback);
  return Interpreter(program, packet).run();
}

TEST(Steering, APacketIsForTheSlotOfItsQueuePair) {
  Steering steering;
  steering.set_positions(std::array{SlotNumber{9}, SlotNumber{1023}, SlotNumber{0}});
  for (const auto& [slot, position] : {std::pair{9, 0u}, {1023, 1u}, {0, 2u}}) {
    const SlotNumber number{static_cast<std::uint16_t>(slot)};
    const auto packet = make_packet(number, 100, 1);
    EXPECT_EQ(steering.owner(packet).whose, Steering::Whose::kSlot);
    EXPECT_EQ(steering.owner(packet).slot, number);
    EXPECT_EQ(steering.position(number), position);
    EXPECT_EQ(run(steering, packet), position);
  }
  EXPECT_EQ(steering.owner(make_packet({10}, 100, 1)).whose, Steering::Whose::kNobody);
}

TEST(Steering, ALaterPositionOfASlotCounts) {
  Steering steering;
  steering.set_positions(std::array{SlotNumber{9}, SlotNumber{4}, SlotNumber{9}});
  EXPECT_EQ(steering.position({9}), 2u);
  EXPECT_EQ(run(steering, make_packet({9}, 100, 1)), 2u);
}

TEST(Steering, ReservedNumbersAreNobodys) {
  Steering steering;
  steering.set_positions(std::array{SlotNumber{0}, SlotNumber{1023}});
  auto packet = make_packet({0}, 100, 1);
  poke(packet, 4, std::uint32_t{0});
  EXPECT_EQ(steering.owner(packet).whose, Steering::Whose::kNobody);
  poke(packet, 4, std::uint32_t{0xFFFFFF});
  EXPECT_EQ(steering.owner(packet).whose, Steering::Whose::kEverybody);
  EXPECT_EQ(steering.owner(std::span(packet).first(11)).whose, Steering::Whose::kNobody);
  EXPECT_EQ(steering.owner({}).whose, Steering::Whose::kNobody);
}

TEST(Steering, TheAnswerToACmMessageGoesHome) {
  Steering steering;
  steering.set_positions(std::array{SlotNumber{700}, SlotNumber{3}});
  for (const auto attribute :
       std::to_array<std::uint16_t>({0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1A})) {
    auto packet = cm_packet(attribute);
    poke(packet, 48, steered_id({3}, 0xFFFFFFFF));
    EXPECT_EQ(steering.owner(packet).slot, SlotNumber{3}) << attribute;
    EXPECT_EQ(run(steering, packet), 1u) << attribute;
  }
  auto sidr = cm_packet(0x18);
  poke(sidr, 44, steered_id({3}, 12));
  EXPECT_EQ(steering.owner(sidr).slot, SlotNumber{3});
  EXPECT_EQ(run(steering, sidr), 1u);
}

// Who withdraws its request does not know yet who has it.
TEST(Steering, ARejectionThatNamesNobodyIsOneOfAlls) {
  Steering steering;
  steering.set_positions(std::array{SlotNumber{700}, SlotNumber{0}});
  const auto rejection = cm_packet(0x12);
  EXPECT_EQ(steering.owner(rejection).whose, Steering::Whose::kOneOfAll);
  EXPECT_EQ(run(steering, rejection, 1), 1u);
  EXPECT_EQ(run(steering, rejection, 0), 0u);
  EXPECT_EQ(steering.owner(cm_packet(0x13)).whose, Steering::Whose::kNobody);
}

TEST(Steering, ARequestGoesToWhoServes) {
  Steering steering;
  steering.set_positions(std::array{SlotNumber{700}, SlotNumber{3}});
  const Service service{0x0000000001060BB8, {3}};  // TCP port 3000 of rdma_cm
  ASSERT_TRUE(steering.add_service(service));
  EXPECT_FALSE(steering.add_service({service.id, {700}}));
  for (const auto attribute : std::to_array<std::uint16_t>({0x10, 0x17})) {
    auto packet = cm_packet(attribute);
    poke(packet, 52, service.id);
    EXPECT_EQ(steering.owner(packet).slot, SlotNumber{3});
    EXPECT_EQ(run(steering, packet), 1u);
    poke(packet, 52, service.id + 1);
    EXPECT_EQ(steering.owner(packet).whose, Steering::Whose::kEverybody);
    EXPECT_EQ(run(steering, packet, 1), 1u);
    EXPECT_EQ(run(steering, packet, 0), 0u);
  }
  steering.remove_services({3});
  EXPECT_TRUE(steering.services().empty());
}

TEST(Steering, OtherManagementIsEverybodys) {
  Steering steering;
  steering.set_positions(std::array{SlotNumber{700}, SlotNumber{3}});
  auto other_class = cm_packet(0x13);
  other_class[21] = std::byte{0x03};
  auto other_opcode = cm_packet(0x13);
  other_opcode[0] = std::byte{0x04};
  for (const auto& packet : {other_class, other_opcode, cm_packet(0x0F), cm_packet(0x1B)}) {
    EXPECT_EQ(steering.owner(packet).whose, Steering::Whose::kEverybody);
    EXPECT_EQ(run(steering, packet, 1), 1u);
  }
  const auto answer = cm_packet(0x13);
  EXPECT_EQ(steering.owner(std::span(answer).first(59)).whose, Steering::Whose::kEverybody);
}

TEST(Steering, ThereIsNoRoomForEndlessServices) {
  Steering steering;
  for (std::uint64_t id = 0; id < Steering::kServicesMax; ++id)
    ASSERT_TRUE(steering.add_service({id << 31, {1}}));
  EXPECT_FALSE(steering.add_service({1, {1}}));
}

// The program and the table agree on every packet that is somebody's, whatever the table.
TEST(Steering, TheProgramSaysWhatTheTableSays) {
  SeededRandom random(test_seed());
  for (const std::size_t members : {1u, 2u, 3u, 40u, 255u, 700u, 1024u}) {
    std::vector<SlotNumber> slots(kSlotCount);
    for (std::uint16_t i = 0; i < kSlotCount; ++i)
      slots[i] = {i};
    for (std::size_t i = kSlotCount - 1; i > 0; --i)
      std::swap(slots[i], slots[random.below(i + 1)]);
    slots.resize(members);
    Steering steering;
    steering.set_positions(slots);
    for (std::size_t i = 0; i < Steering::kServicesMax; ++i)
      steering.add_service(
          {random.below(4) << 32 | random.below(1000), slots[random.below(members)]});

    const auto fallback = static_cast<std::uint16_t>(random.below(members));
    const auto program = steering.program(fallback);
    ASSERT_LE(program.size(), std::size_t{BPF_MAXINSNS});
    for (int i = 0; i < 3000; ++i) {
      const SlotNumber slot{static_cast<std::uint16_t>(random.below(kSlotCount))};
      auto packet = make_packet(slot, 100, 0);
      if (random.one_in(2)) {
        packet = cm_packet(static_cast<std::uint16_t>(0x0F + random.below(13)));
        poke(packet, 44, steered_id(slot, static_cast<std::uint32_t>(random.next())));
        poke(packet, 48, steered_id(slot, static_cast<std::uint32_t>(random.next())));
        poke(packet, 52, random.below(5) << 32 | random.below(1000));
      }
      const auto owner = steering.owner(packet);
      const std::uint32_t position = Interpreter(program, packet).run();
      ASSERT_LT(position, members);
      if (owner.whose == Steering::Whose::kSlot) {
        ASSERT_EQ(position, steering.position(owner.slot));
      } else if (owner.whose == Steering::Whose::kEverybody) {
        ASSERT_EQ(position, fallback);
      }
    }
  }
}

TEST(Steering, TheKernelTakesTheLargestProgram) {
  std::vector<SlotNumber> slots(kSlotCount);
  for (std::uint16_t i = 0; i < kSlotCount; ++i)
    slots[i] = {static_cast<std::uint16_t>(i * 37 % kSlotCount)};
  Steering steering;
  steering.set_positions(slots);
  for (std::uint64_t id = 0; id < Steering::kServicesMax; ++id)
    steering.add_service({0x0000000001060000 + id, slots[id]});
  auto group = make_group(free_port(), 1);
  const auto done = attach_steering(group[0].get(), steering.program(0));
  // net.core.optmem_max bounds it; old systems have 20 KiB.
  EXPECT_TRUE(done.has_value() || done.error() == SocketError::kNoMemory);
}

}  // namespace
}  // namespace verbena::port
