// SPDX-License-Identifier: MIT
#include "wire/opcode.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace verbena::wire {
namespace {

// The bytes before the payload, written down from IBTA vol 1, 9.2.1 and the figures of 9.4, by
// opcode: BTH 12, RETH 16, AtomicETH 28, AETH 4, AtomicAckETH 8, ImmDt 4, IETH 4, DETH 8, XRCETH 4,
// FETH 4.
const std::map<unsigned, unsigned> kHeaderBytes = {
    {0x00, 12}, {0x01, 12}, {0x02, 12}, {0x03, 16}, {0x04, 12}, {0x05, 16}, {0x06, 28}, {0x07, 12},
    {0x08, 12}, {0x09, 16}, {0x0A, 28}, {0x0B, 32}, {0x0C, 28}, {0x0D, 16}, {0x0E, 12}, {0x0F, 16},
    {0x10, 16}, {0x11, 16}, {0x12, 24}, {0x13, 40}, {0x14, 40}, {0x16, 16}, {0x17, 16}, {0x1C, 32},
    {0x1D, 28}, {0x20, 12}, {0x21, 12}, {0x22, 12}, {0x23, 16}, {0x24, 12}, {0x25, 16}, {0x26, 28},
    {0x27, 12}, {0x28, 12}, {0x29, 16}, {0x2A, 28}, {0x2B, 32}, {0x64, 20}, {0x65, 24}, {0x81, 28},
    {0xA0, 16}, {0xA1, 16}, {0xA2, 16}, {0xA3, 20}, {0xA4, 16}, {0xA5, 20}, {0xA6, 32}, {0xA7, 16},
    {0xA8, 16}, {0xA9, 20}, {0xAA, 32}, {0xAB, 36}, {0xAC, 32}, {0xAD, 16}, {0xAE, 12}, {0xAF, 16},
    {0xB0, 16}, {0xB1, 16}, {0xB2, 24}, {0xB3, 44}, {0xB4, 44}, {0xB6, 20}, {0xB7, 20}, {0xBC, 36},
    {0xBD, 32},
};

TEST(Opcode, HasTheHeadersOfTheSpecificationAndNoOthers) {
  for (unsigned value = 0; value < 256; ++value) {
    const Opcode opcode{static_cast<std::uint8_t>(value)};
    const auto expected = kHeaderBytes.find(value);
    ASSERT_EQ(shape_of(opcode).is_defined, expected != kHeaderBytes.end()) << value;
    if (expected == kHeaderBytes.end()) {
      EXPECT_STREQ(name_of(opcode), "reserved opcode");
    } else {
      EXPECT_EQ(shape_of(opcode).header_bytes, expected->second) << name_of(opcode);
    }
  }
}

TEST(Opcode, NamesSayWhatTheTableSays) {
  for (const auto& [value, bytes] : kHeaderBytes) {
    const Opcode opcode{static_cast<std::uint8_t>(value)};
    const OpcodeShape& shape = shape_of(opcode);
    const std::string name = name_of(opcode);
    const auto says = [&](const char* word) { return name.find(word) != std::string::npos; };
    EXPECT_EQ(says("First"), shape.place == Place::kFirst) << name;
    EXPECT_EQ(says("Middle"), shape.place == Place::kMiddle) << name;
    EXPECT_EQ(says("Last"), shape.place == Place::kLast) << name;
    EXPECT_EQ(says("Immediate"), shape.immediate) << name;
    EXPECT_EQ(says("Invalidate"), shape.ieth) << name;
    EXPECT_EQ(says("Response") || says("Acknowledge"), shape.is_response) << name;
    EXPECT_EQ(says("SEND"), shape.kind == Kind::kSend) << name;
    EXPECT_EQ(says("UD "), shape.deth) << name;
    EXPECT_EQ(says("XRC ") && !shape.is_response, shape.xrceth) << name;
  }
}

// Every pair of RC packets, against the rule in words.
TEST(Opcode, AMessageEndsBeforeTheNextBegins) {
  int allowed = 0;
  for (unsigned before = 0; before < 0x20; ++before) {
    for (unsigned next = 0; next < 0x20; ++next) {
      const OpcodeShape& a = shape_of({static_cast<std::uint8_t>(before)});
      const OpcodeShape& b = shape_of({static_cast<std::uint8_t>(next)});
      if (!a.is_defined || !b.is_defined) continue;
      const bool a_goes_on = a.place == Place::kFirst || a.place == Place::kMiddle;
      const bool b_goes_on = b.place == Place::kMiddle || b.place == Place::kLast;
      const bool expected = a_goes_on == b_goes_on && (!a_goes_on || a.kind == b.kind);
      EXPECT_EQ(may_follow(&a, b), expected) << before << " then " << next;
      allowed += expected ? 1 : 0;
    }
  }
  EXPECT_GT(allowed, 0);
  EXPECT_TRUE(may_follow(nullptr, shape_of(Opcode::of(Service::kRc, Code::kSendFirst))));
  EXPECT_FALSE(may_follow(nullptr, shape_of(Opcode::of(Service::kRc, Code::kWriteLast))));
}

TEST(Opcode, ConsumesAReceiveOnlyWhereTheSpecificationSaysSo) {
  for (const unsigned value : {0x00u, 0x04u, 0x03u, 0x16u, 0x09u, 0x0Bu, 0x29u, 0x64u, 0xA4u}) {
    EXPECT_TRUE(shape_of({static_cast<std::uint8_t>(value)}).consumes_receive()) << value;
  }
  for (const unsigned value : {0x06u, 0x08u, 0x0Au, 0x0Cu, 0x10u, 0x11u, 0x13u, 0x1Du, 0x81u}) {
    EXPECT_FALSE(shape_of({static_cast<std::uint8_t>(value)}).consumes_receive()) << value;
  }
}

}  // namespace
}  // namespace verbena::wire
