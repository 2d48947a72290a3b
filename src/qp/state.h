// SPDX-License-Identifier: MIT
// The states of a queue pair and its attributes (IBTA vol 1, 10.3.1 and 11.2.4.2).
//
//  RESET ─► INIT ─► RTR ─► RTS ◄─► SQD      any but RESET ─► ERR, any ─► RESET
//                           ▲
//                           └─ SQE (UC and UD: a send failed)
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/types.h"
#include "qp/operation.h"

namespace verbena::qp {

// Numbered as in verbs (enum ibv_qp_state).
enum class QpState : std::uint8_t {
  kReset = 0,
  kInit = 1,
  kReadyToReceive = 2,
  kReadyToSend = 3,
  kDrained = 4,    // SQD
  kSendError = 5,  // SQE
  kError = 6,
};

// Which attributes a modification carries. Numbered as in verbs (enum ibv_qp_attr_mask).
enum AttributeMask : std::uint32_t {
  kState = 1 << 0,
  kCurrentState = 1 << 1,
  kNotifyDrained = 1 << 2,
  kAccessFlags = 1 << 3,
  kPkeyIndex = 1 << 4,
  kPort = 1 << 5,
  kQkey = 1 << 6,
  kAddressVector = 1 << 7,
  kPathMtu = 1 << 8,
  kTimeout = 1 << 9,
  kRetryCount = 1 << 10,
  kRnrRetry = 1 << 11,
  kReceivePsn = 1 << 12,
  kReadsOutMax = 1 << 13,  // max_rd_atomic
  kAlternatePath = 1 << 14,
  kRnrTimer = 1 << 15,
  kSendPsn = 1 << 16,
  kReadsInMax = 1 << 17,  // max_dest_rd_atomic
  kPathMigration = 1 << 18,
  kCapabilities = 1 << 19,
  kDestinationQp = 1 << 20,
  kRateLimit = 1 << 25,
};

// Where a connected queue pair sends to.
struct AddressVector {
  Gid destination{};
  bool has_grh = false;
  std::uint8_t source_gid_index = 0;
  std::uint8_t hop_limit = 0;
  std::uint8_t traffic_class = 0;
  std::uint32_t flow_label = 0;
  std::uint8_t service_level = 0;
  std::uint8_t port = 0;
  std::uint16_t dlid = 0;
  std::uint8_t source_path_bits = 0;
  std::uint8_t static_rate = 0;
};

struct QpAttributes {
  QpState state = QpState::kReset;
  QpState current_state = QpState::kReset;
  std::uint8_t path_mtu = 0;  // as in verbs: 1 is 256 bytes, 5 is 4096
  std::uint8_t path_migration = 0;
  std::uint32_t qkey = 0;
  std::uint32_t receive_psn = 0;
  std::uint32_t send_psn = 0;
  QpNum destination{};
  std::uint32_t access = 0;  // remote write, read, atomic
  AddressVector path{};
  std::uint16_t pkey_index = 0;
  bool notify_drained = false;
  std::uint8_t reads_out_max = 0;
  std::uint8_t reads_in_max = 0;
  std::uint8_t rnr_timer = 0;  // code
  std::uint8_t port = 0;
  std::uint8_t timeout = 0;  // code
  std::uint8_t retry_count = 0;
  std::uint8_t rnr_retry = 0;    // 7: without limit
  std::uint32_t rate_limit = 0;  // kilobits a second; 0: none
  std::uint32_t rate_burst = 0;  // bytes, with the mask of the limit; 0: as usual
};

constexpr bool may_move(QpState from, QpState to) {
  if (to == QpState::kReset) return true;
  if (to == QpState::kError) return from != QpState::kReset;
  switch (from) {
    case QpState::kReset: return to == QpState::kInit;
    case QpState::kInit: return to == QpState::kInit || to == QpState::kReadyToReceive;
    case QpState::kReadyToReceive: return to == QpState::kReadyToSend;
    case QpState::kReadyToSend: return to == QpState::kReadyToSend || to == QpState::kDrained;
    case QpState::kDrained: return to == QpState::kReadyToSend || to == QpState::kDrained;
    case QpState::kSendError: return to == QpState::kReadyToSend;
    case QpState::kError: return false;
  }
  return false;
}
static_assert(!may_move(QpState::kReset, QpState::kReadyToSend));

// Limits of values that are the same for all of our devices.
inline constexpr std::uint8_t kReadsMax = 128;  // max_rd_atomic and max_dest_rd_atomic
inline constexpr std::uint32_t kRateMin = 1;    // kilobits a second
inline constexpr std::uint32_t kRateMax = 100'000'000;
inline constexpr std::uint8_t kPortCount = 1;
inline constexpr std::uint16_t kPkeyCount = 1;

enum class ModifyError : std::uint8_t {
  kBadMove,     // no such transition
  kMissing,     // a required attribute is not in the mask
  kNotAllowed,  // an attribute that this transition does not take
  kBadValue,    // out of range (PSN over 24 bits, path MTU, timers, reads over the limit, port)
};

struct TypeOfAttributes {
  // NOLINTNEXTLINE(google-explicit-constructor): a type is one
  constexpr TypeOfAttributes(QpType of, Xrc extended = Xrc::kNo) : type(of), xrc(extended) {}
  QpType type;
  Xrc xrc;
};
// The table of required and optional attributes for each type and transition (11.2.4.2, table 91
// and following; annex A14.3.1 for XRC).
Result<void, ModifyError> check_attributes(TypeOfAttributes type, QpState from, QpState to,
                                           std::uint32_t mask);

// Whether the values that the mask names are possible: kBadValue.
Result<void, ModifyError> check_values(QpType type, const QpAttributes& wanted, std::uint32_t mask);

}  // namespace verbena::qp
