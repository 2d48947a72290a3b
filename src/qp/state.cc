// SPDX-License-Identifier: MIT
#include "qp/state.h"

#include <optional>

#include "memory/region_table.h"

namespace verbena::qp {

namespace {

struct Rule {
  QpType type;
  QpState from;
  QpState to;
  std::uint32_t required;
  std::uint32_t optional;
};

constexpr QpType kAllTypes[] = {QpType::kRc, QpType::kUc, QpType::kUd, QpType::kRawPacket};
constexpr auto kReset = QpState::kReset;
constexpr auto kInit = QpState::kInit;
constexpr auto kRtr = QpState::kReadyToReceive;
constexpr auto kRts = QpState::kReadyToSend;
constexpr auto kSqd = QpState::kDrained;
constexpr auto kSqe = QpState::kSendError;

// Tables 91 to 98 (11.2.5.2). The moves to RESET and to ERR take nothing but the state. Raw packets
// have no transport: all that there is to be said is the port, and how fast.
constexpr Rule kRules[] = {
    {QpType::kRc, kReset, kInit, kPkeyIndex | kPort | kAccessFlags, 0},
    {QpType::kUc, kReset, kInit, kPkeyIndex | kPort | kAccessFlags, 0},
    {QpType::kUd, kReset, kInit, kPkeyIndex | kPort | kQkey, 0},
    {QpType::kRawPacket, kReset, kInit, kPort, 0},

    {QpType::kRc, kInit, kInit, 0, kPkeyIndex | kPort | kAccessFlags},
    {QpType::kUc, kInit, kInit, 0, kPkeyIndex | kPort | kAccessFlags},
    {QpType::kUd, kInit, kInit, 0, kPkeyIndex | kPort | kQkey},
    {QpType::kRawPacket, kInit, kInit, 0, kPort},

    {QpType::kRc, kInit, kRtr,
     kAddressVector | kPathMtu | kDestinationQp | kReceivePsn | kReadsInMax | kRnrTimer,
     kAlternatePath | kAccessFlags | kPkeyIndex},
    {QpType::kUc, kInit, kRtr, kAddressVector | kPathMtu | kDestinationQp | kReceivePsn,
     kAlternatePath | kAccessFlags | kPkeyIndex},
    {QpType::kUd, kInit, kRtr, 0, kPkeyIndex | kQkey},
    {QpType::kRawPacket, kInit, kRtr, 0, 0},

    {QpType::kRc, kRtr, kRts, kTimeout | kRetryCount | kRnrRetry | kSendPsn | kReadsOutMax,
     kCurrentState | kAlternatePath | kAccessFlags | kRnrTimer | kPathMigration},
    {QpType::kUc, kRtr, kRts, kSendPsn,
     kCurrentState | kAlternatePath | kAccessFlags | kPathMigration},
    {QpType::kUd, kRtr, kRts, kSendPsn, kCurrentState | kQkey},
    {QpType::kRawPacket, kRtr, kRts, 0, kCurrentState | kRateLimit},

    {QpType::kRc, kRts, kRts, 0,
     kCurrentState | kAccessFlags | kAlternatePath | kPathMigration | kRnrTimer},
    {QpType::kUc, kRts, kRts, 0, kCurrentState | kAccessFlags | kAlternatePath | kPathMigration},
    {QpType::kUd, kRts, kRts, 0, kCurrentState | kQkey},
    {QpType::kRawPacket, kRts, kRts, 0, kCurrentState | kRateLimit},

    {QpType::kRc, kRts, kSqd, 0, kNotifyDrained},
    {QpType::kUc, kRts, kSqd, 0, kNotifyDrained},
    {QpType::kUd, kRts, kSqd, 0, kNotifyDrained},
    {QpType::kRawPacket, kRts, kSqd, 0, kNotifyDrained},

    {QpType::kRc, kSqd, kRts, 0,
     kCurrentState | kAlternatePath | kAccessFlags | kRnrTimer | kPathMigration},
    {QpType::kUc, kSqd, kRts, 0, kCurrentState | kAlternatePath | kAccessFlags | kPathMigration},
    {QpType::kUd, kSqd, kRts, 0, kCurrentState | kQkey},
    {QpType::kRawPacket, kSqd, kRts, 0, kCurrentState},

    {QpType::kRc, kSqd, kSqd, 0,
     kPort | kAddressVector | kTimeout | kRetryCount | kRnrRetry | kReadsOutMax | kReadsInMax |
         kAlternatePath | kAccessFlags | kPkeyIndex | kRnrTimer | kPathMigration},
    {QpType::kUc, kSqd, kSqd, 0,
     kAddressVector | kAlternatePath | kAccessFlags | kPkeyIndex | kPathMigration},
    {QpType::kUd, kSqd, kSqd, 0, kPkeyIndex | kQkey},
    {QpType::kRawPacket, kSqd, kSqd, 0, 0},

    {QpType::kUc, kSqe, kRts, 0, kCurrentState | kAccessFlags},
    {QpType::kUd, kSqe, kRts, 0, kCurrentState | kQkey},
    {QpType::kRawPacket, kSqe, kRts, 0, kCurrentState},
    // A reliable queue pair never gets into SQE, but the move is in the state diagram of all types.
    {QpType::kRc, kSqe, kRts, 0, 0},
};

constexpr std::optional<Rule> find_rule(QpType type, QpState from, QpState to) {
  if (!may_move(from, to)) return std::nullopt;
  for (const Rule& rule : kRules)
    if (rule.type == type && rule.from == from && rule.to == to) return rule;
  return Rule{type, from, to, 0, 0};  // RESET and ERR
}

// Every move of the diagram that carries attributes has its rule for every type, and no rule is for
// another move.
constexpr bool table_is_complete() {
  constexpr QpState kStates[] = {kReset, kInit, kRtr, kRts, kSqd, kSqe, QpState::kError};
  for (QpType type : kAllTypes) {
    for (QpState from : kStates) {
      for (QpState to : kStates) {
        unsigned rules = 0;
        for (const Rule& rule : kRules)
          rules += rule.type == type && rule.from == from && rule.to == to;
        const bool carries = may_move(from, to) && to != kReset && to != QpState::kError;
        if (rules != (carries ? 1u : 0u)) return false;
      }
    }
  }
  return true;
}
static_assert(table_is_complete());

// Half of a connection has no use for what belongs to the other half. Programs may name it.
constexpr std::uint32_t useless_for(Xrc xrc) {
  switch (xrc) {
    case Xrc::kNo: return 0;
    case Xrc::kInitiator: return kReadsInMax | kRnrTimer;
    case Xrc::kTarget: return kRetryCount | kRnrRetry | kReadsOutMax;
  }
  return 0;
}

// The current state may be named where the queue pair may have moved by itself (11.2.5.2).
constexpr bool may_be_named(QpState state) {
  return state == kRtr || state == kRts || state == kSqd || state == kSqe;
}

constexpr std::uint32_t kThreeBits = 0x7;
constexpr std::uint32_t kFiveBits = 0x1F;
constexpr std::uint32_t kTwentyFourBits = 0xFFFFFF;
constexpr std::uint8_t kServiceLevels = 16;
// What verbs defines for regions may be said of a queue pair too; only the remote rights matter.
// Bits 8 and 9 are the rights to flush, 20 to 29 the optional range.
constexpr std::uint32_t kKnownAccess =
    memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic |
    memory::kWindowBind | memory::kZeroBased | memory::kOnDemand | 0x80u | 0x300u | 0x3FF00000u;

constexpr bool is_port(std::uint8_t port) { return port >= 1 && port <= kPortCount; }

// RoCE knows only global addresses (annex A17.4.1).
constexpr bool is_possible(QpType type, const AddressVector& path) {
  return type == QpType::kUd ||
         (path.has_grh && is_port(path.port) && path.service_level < kServiceLevels);
}

}  // namespace

Result<void, ModifyError> check_attributes(TypeOfAttributes type, QpState from, QpState to,
                                           std::uint32_t mask) {
  std::optional<Rule> rule = find_rule(type.type, from, to);
  if (!rule) return refuse(ModifyError::kBadMove);
  rule->required &= ~useless_for(type.xrc);
  if ((mask & kCurrentState) && !may_be_named(from)) return refuse(ModifyError::kNotAllowed);
  if ((mask & rule->required) != rule->required) return refuse(ModifyError::kMissing);
  const std::uint32_t useless = useless_for(type.xrc);
  if (mask & ~(rule->required | rule->optional | useless | std::uint32_t{kState}))
    return refuse(ModifyError::kNotAllowed);
  return {};
}

Result<void, ModifyError> check_values(QpType type, const QpAttributes& wanted,
                                       std::uint32_t mask) {
  const auto has = [mask](std::uint32_t bit) { return (mask & bit) != 0; };
  const bool possible = (!has(kPort) || is_port(wanted.port)) &&
                        (!has(kPkeyIndex) || wanted.pkey_index < kPkeyCount) &&
                        (!has(kAddressVector) || is_possible(type, wanted.path)) &&
                        (!has(kAccessFlags) || (wanted.access & ~kKnownAccess) == 0) &&
                        (!has(kPathMtu) || (wanted.path_mtu >= 1 && wanted.path_mtu <= 5)) &&
                        (!has(kTimeout) || wanted.timeout <= kFiveBits) &&
                        (!has(kRnrTimer) || wanted.rnr_timer <= kFiveBits) &&
                        (!has(kRetryCount) || wanted.retry_count <= kThreeBits) &&
                        (!has(kRnrRetry) || wanted.rnr_retry <= kThreeBits) &&
                        (!has(kReceivePsn) || wanted.receive_psn <= kTwentyFourBits) &&
                        (!has(kSendPsn) || wanted.send_psn <= kTwentyFourBits) &&
                        (!has(kDestinationQp) || wanted.destination.value <= kTwentyFourBits) &&
                        (!has(kReadsOutMax) || wanted.reads_out_max <= kReadsMax) &&
                        (!has(kReadsInMax) || wanted.reads_in_max <= kReadsMax) &&
                        (!has(kRateLimit) || wanted.rate_limit <= kRateMax) &&
                        // There is one path (RoCE has no automatic path migration, annex A16.4.5):
                        // the only state of migration is "migrated".
                        !has(kAlternatePath) &&
                        (!has(kPathMigration) || wanted.path_migration == 0);
  if (!possible) return refuse(ModifyError::kBadValue);
  return {};
}

}  // namespace verbena::qp
