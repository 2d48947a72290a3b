// SPDX-License-Identifier: MIT
#include "qp/state.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "memory/region_table.h"

namespace verbena::qp {

namespace {

using enum QpState;
using enum QpType;

constexpr QpType kTypes[] = {kRc, kUc, kUd, kRawPacket};
constexpr QpState kStates[] = {kReset,   kInit,      kReadyToReceive, kReadyToSend,
                               kDrained, kSendError, kError};

struct Attributes {
  std::uint32_t required = 0;
  std::uint32_t optional = 0;
};
using Move = std::tuple<QpType, QpState, QpState>;

// What ibv_modify_qp(3) and the tables of 11.2.5.2 list, written down apart from the code.
std::map<Move, Attributes> expected_moves() {
  std::map<Move, Attributes> moves;
  for (QpType type : kTypes) {
    for (QpState from : kStates) {
      moves[{type, from, kReset}] = {};
      if (from != kReset) moves[{type, from, kError}] = {};
    }
    if (type == kRawPacket) {
      moves[{type, kReset, kInit}] = {kPort, 0};
      moves[{type, kInit, kInit}] = {0, kPort};
      moves[{type, kInit, kReadyToReceive}] = {};
      moves[{type, kReadyToReceive, kReadyToSend}] = {0, kCurrentState | kRateLimit};
      moves[{type, kReadyToSend, kReadyToSend}] = {0, kCurrentState | kRateLimit};
      moves[{type, kReadyToSend, kDrained}] = {0, kNotifyDrained};
      moves[{type, kDrained, kReadyToSend}] = {0, kCurrentState};
      moves[{type, kDrained, kDrained}] = {};
      moves[{type, kSendError, kReadyToSend}] = {0, kCurrentState};
      continue;
    }
    const bool connected = type != kUd;
    const bool reliable = type == kRc;
    const std::uint32_t rights = connected ? kAccessFlags : kQkey;
    const std::uint32_t path = connected ? kAlternatePath | kPathMigration : 0;
    const std::uint32_t timer = reliable ? std::uint32_t{kRnrTimer} : 0;

    moves[{type, kReset, kInit}] = {kPkeyIndex | kPort | rights, 0};
    moves[{type, kInit, kInit}] = {0, kPkeyIndex | kPort | rights};
    moves[{type, kInit, kReadyToReceive}] = {
        (connected ? kAddressVector | kPathMtu | kDestinationQp | kReceivePsn : 0u) |
            (reliable ? kReadsInMax | kRnrTimer : 0u),
        kPkeyIndex | rights | (connected ? std::uint32_t{kAlternatePath} : 0u)};
    moves[{type, kReadyToReceive, kReadyToSend}] = {
        kSendPsn | (reliable ? kTimeout | kRetryCount | kRnrRetry | kReadsOutMax : 0u),
        kCurrentState | rights | path | timer};
    moves[{type, kReadyToSend, kReadyToSend}] = {0, kCurrentState | rights | path | timer};
    moves[{type, kReadyToSend, kDrained}] = {0, kNotifyDrained};
    moves[{type, kDrained, kReadyToSend}] = {0, kCurrentState | rights | path | timer};
    moves[{type, kDrained, kDrained}] = {
        0, kPkeyIndex | rights | path | timer | (connected ? std::uint32_t{kAddressVector} : 0u) |
               (reliable ? kPort | kTimeout | kRetryCount | kRnrRetry | kReadsOutMax | kReadsInMax
                         : 0u)};
    moves[{type, kSendError, kReadyToSend}] = {0, reliable ? 0 : kCurrentState | rights};
  }
  return moves;
}

std::string name(const Move& move) {
  const auto number = [](auto value) { return std::to_string(static_cast<int>(value)); };
  return "type " + number(std::get<0>(move)) + " from " + number(std::get<1>(move)) + " to " +
         number(std::get<2>(move));
}

constexpr std::uint32_t kAttributeBits = 26;

// Each attribute alone, taken from or added to the required ones.
void check_each_attribute(const Move& move, const Attributes& attributes) {
  const auto [type, from, to] = move;
  const std::uint32_t base = attributes.required | kState;
  EXPECT_TRUE(check_attributes(type, from, to, base));
  EXPECT_TRUE(check_attributes(type, from, to, base | attributes.optional));
  for (std::uint32_t bit = 2; bit < 1u << kAttributeBits; bit <<= 1) {
    SCOPED_TRACE("attribute " + std::to_string(bit));
    if (attributes.required & bit) {
      const auto checked = check_attributes(type, from, to, base & ~bit);
      ASSERT_FALSE(checked);
      EXPECT_EQ(checked.error(), ModifyError::kMissing);
      continue;
    }
    const auto checked = check_attributes(type, from, to, base | bit);
    EXPECT_EQ(checked.has_value(), (attributes.optional & bit) != 0);
    if (!checked) {
      EXPECT_EQ(checked.error(), ModifyError::kNotAllowed);
    }
  }
}

TEST(ModifyQueuePair, TakesTheAttributesOfTheSpecificationForEachTypeAndMove) {
  const auto expected = expected_moves();
  unsigned moves = 0;
  for (QpType type : kTypes) {
    for (QpState from : kStates) {
      for (QpState to : kStates) {
        const Move move{type, from, to};
        SCOPED_TRACE(name(move));
        const auto found = expected.find(move);
        if (found != expected.end()) {
          ++moves;
          check_each_attribute(move, found->second);
          continue;
        }
        const auto checked = check_attributes(type, from, to, kState);
        ASSERT_FALSE(checked);
        EXPECT_EQ(checked.error(), ModifyError::kBadMove);
      }
    }
  }
  EXPECT_EQ(moves, 4u * 22);
}

TEST(ModifyQueuePair, RefusesStatesThatDoNotExist) {
  const auto checked = check_attributes(kRc, kReset, static_cast<QpState>(7), kState);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error(), ModifyError::kBadMove);
}

QpAttributes good_values() {
  QpAttributes values;
  values.path_mtu = 3;
  values.port = 1;
  values.access = memory::kRemoteWrite;
  values.path = {.has_grh = true, .port = 1};
  return values;
}

struct BadValue {
  const char* what;
  std::uint32_t mask;
  void (*spoil)(QpAttributes&);
};

TEST(ModifyQueuePair, RefusesImpossibleValues) {
  const BadValue bad_values[] = {
      {"receive PSN of 25 bits", kReceivePsn, [](auto& v) { v.receive_psn = 1 << 24; }},
      {"send PSN of 25 bits", kSendPsn, [](auto& v) { v.send_psn = 1 << 24; }},
      {"destination of 25 bits", kDestinationQp, [](auto& v) { v.destination = {1 << 24}; }},
      {"path MTU 0", kPathMtu, [](auto& v) { v.path_mtu = 0; }},
      {"path MTU 6", kPathMtu, [](auto& v) { v.path_mtu = 6; }},
      {"timeout of 6 bits", kTimeout, [](auto& v) { v.timeout = 32; }},
      {"RNR timer of 6 bits", kRnrTimer, [](auto& v) { v.rnr_timer = 32; }},
      {"retry count of 4 bits", kRetryCount, [](auto& v) { v.retry_count = 8; }},
      {"RNR retry of 4 bits", kRnrRetry, [](auto& v) { v.rnr_retry = 8; }},
      {"too many READs out", kReadsOutMax, [](auto& v) { v.reads_out_max = 129; }},
      {"too many READs in", kReadsInMax, [](auto& v) { v.reads_in_max = 129; }},
      {"port 0", kPort, [](auto& v) { v.port = 0; }},
      {"port 2", kPort, [](auto& v) { v.port = 2; }},
      {"P_Key index 1", kPkeyIndex, [](auto& v) { v.pkey_index = 1; }},
      {"path without GRH", kAddressVector, [](auto& v) { v.path.has_grh = false; }},
      {"path over port 2", kAddressVector, [](auto& v) { v.path.port = 2; }},
      {"service level 16", kAddressVector, [](auto& v) { v.path.service_level = 16; }},
      {"unknown access flag", kAccessFlags, [](auto& v) { v.access = 1u << 31; }},
      {"alternate path", kAlternatePath, [](auto&) {}},
      {"path migration armed", kPathMigration, [](auto& v) { v.path_migration = 2; }},
  };
  for (const BadValue& bad : bad_values) {
    SCOPED_TRACE(bad.what);
    QpAttributes values = good_values();
    EXPECT_TRUE(check_values(kRc, values, bad.mask & ~std::uint32_t{kAlternatePath}));
    bad.spoil(values);
    const auto checked = check_values(kRc, values, bad.mask);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error(), ModifyError::kBadValue);
    EXPECT_TRUE(check_values(kRc, values, 0)) << "not named, not looked at";
  }
}

TEST(ModifyQueuePair, TakesTheLargestPossibleValues) {
  QpAttributes values = good_values();
  values.receive_psn = values.send_psn = 0xFFFFFF;
  values.destination = {0xFFFFFF};
  values.path_mtu = 5;
  values.timeout = values.rnr_timer = 31;
  values.retry_count = values.rnr_retry = 7;
  values.reads_out_max = values.reads_in_max = 128;
  values.access =
      memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
  EXPECT_TRUE(check_values(kRc, values, 0x1FFFFF & ~std::uint32_t{kAlternatePath}));
}

}  // namespace

}  // namespace verbena::qp
