// SPDX-License-Identifier: MIT
// The messages of the communication management protocol (IBTA vol 1, chapter 12), decoded into host
// order, and the private data by which RDMA over IP says who connects to whom (annex A11).
//
// Each message declares its fields once, by the byte, bit and width of its table; cm.cc has the
// tables. Reserved fields are sent as zeros and ignored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "base/result.h"
#include "base/types.h"
#include "wire/mad.h"

namespace verbena::wire {

// 12.5, table of attributes.
enum class CmAttribute : std::uint16_t {
  kReq = 0x10,
  kMra = 0x11,
  kRej = 0x12,
  kRep = 0x13,
  kRtu = 0x14,
  kDreq = 0x15,
  kDrep = 0x16,
  kSidrReq = 0x17,
  kSidrRep = 0x18,
  kLap = 0x19,
  kApr = 0x1A,
};

// 12.6.7.2. Numbers that are not here are carried as they are.
enum class RejReason : std::uint16_t {
  kNoQp = 1,
  kNoEec = 2,
  kNoResources = 3,
  kTimeout = 4,
  kUnsupportedRequest = 5,
  kInvalidCommId = 6,
  kInvalidCommInstance = 7,
  kInvalidServiceId = 8,
  kInvalidTransportType = 9,
  kStaleConnection = 10,
  kRdcDoesNotExist = 11,
  kPrimaryGid = 12,
  kPrimaryLid = 13,
  kInvalidPrimarySl = 14,
  kInvalidPrimaryTrafficClass = 15,
  kInvalidPrimaryHopLimit = 16,
  kInvalidPrimaryRate = 17,
  kAlternateGid = 18,
  kAlternateLid = 19,
  kInvalidAlternateSl = 20,
  kInvalidAlternateTrafficClass = 21,
  kInvalidAlternateHopLimit = 22,
  kInvalidAlternateRate = 23,
  kCmRedirect = 24,
  kPortRedirect = 25,
  kInvalidMtu = 26,
  kInsufficientResponderResources = 27,
  kConsumer = 28,
  kRnrRetryCount = 29,
  kDuplicateCommId = 30,
  kInvalidClassVersion = 31,
  kInvalidPrimaryFlowLabel = 32,
  kInvalidAlternateFlowLabel = 33,
  kVendorOptionNotSupported = 35,  // of Ece
};

// REQ's, with the extended ones (annex A14) behind the others.
enum class TransportType : std::uint8_t { kRc = 0, kUc = 1, kRd = 2, kExtended = 3 };
// Which message an MRA or a REJ is about: 12.6.6.1, 12.6.7.1.
enum class MraOf : std::uint8_t { kReq = 0, kRep = 1, kLap = 2 };
enum class RejOf : std::uint8_t { kReq = 0, kRep = 1, kOther = 2 };
// 12.11.2.1.
enum class SidrStatus : std::uint8_t {
  kValid = 0,
  kUnsupportedServiceId = 1,
  kRejected = 2,
  kNoQp = 3,
  kRedirect = 4,
  kUnsupportedVersion = 5,
};

inline constexpr std::uint16_t kPermissiveLid = 0xFFFF;  // Ethernet has no LIDs (A16.7.3)

// One way between two ports, in REQ.
struct CmPath {
  std::uint16_t local_lid = kPermissiveLid;
  std::uint16_t remote_lid = kPermissiveLid;
  Gid local_gid{};
  Gid remote_gid{};
  std::uint32_t flow_label = 0;  // 20 bits
  std::uint8_t packet_rate = 0;  // 6 bits
  std::uint8_t traffic_class = 0;
  std::uint8_t hop_limit = 0;
  std::uint8_t sl = 0;  // 4 bits
  bool subnet_local = false;
  std::uint8_t ack_timeout = 0;  // 5 bits
  friend constexpr bool operator==(const CmPath&, const CmPath&) = default;
};

// What vendors of NICs agree on beyond the specification (enhanced connection establishment), in
// REQ and REP: whose meaning it has, and what. The options travel as the MAD's attribute modifier.
struct Ece {
  std::uint32_t vendor_id = 0;  // 24 bits; 0: none
  std::uint32_t options = 0;
  friend constexpr bool operator==(const Ece&, const Ece&) = default;
};

// Request for communication (12.6.5).
struct Req {
  static constexpr CmAttribute kAttribute = CmAttribute::kReq;
  std::uint32_t local_comm_id = 0;
  Ece ece{};
  std::uint64_t service_id = 0;
  std::uint64_t local_ca_guid = 0;
  std::uint32_t local_qkey = 0;
  QpNum local_qp{};
  std::uint8_t responder_resources = 0;
  std::uint32_t local_eecn = 0;
  std::uint8_t initiator_depth = 0;
  std::uint32_t remote_eecn = 0;
  std::uint8_t remote_cm_response_timeout = 0;  // 5 bits
  TransportType transport_type = TransportType::kRc;
  bool end_to_end_flow_control = false;
  std::uint32_t starting_psn = 0;              // with which the other side begins to send
  std::uint8_t local_cm_response_timeout = 0;  // 5 bits
  std::uint8_t retry_count = 0;                // 3 bits
  std::uint16_t pkey = 0xFFFF;
  std::uint8_t path_mtu = 0;  // enum ibv_mtu, 4 bits
  bool rdc_exists = false;
  std::uint8_t rnr_retry_count = 0;  // 3 bits
  std::uint8_t max_cm_retries = 0;   // 4 bits
  bool srq = false;
  std::uint8_t extended_transport = 0;  // 3 bits; 1: XRC
  CmPath primary{};
  CmPath alternate{.local_lid = 0, .remote_lid = 0};  // all zeros: there is none
  std::array<std::byte, 92> private_data{};
  friend constexpr bool operator==(const Req&, const Req&) = default;
};

// Message receipt acknowledgement (12.6.6).
struct Mra {
  static constexpr CmAttribute kAttribute = CmAttribute::kMra;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  MraOf message = MraOf::kReq;
  std::uint8_t service_timeout = 0;  // 5 bits
  std::array<std::byte, 222> private_data{};
  friend constexpr bool operator==(const Mra&, const Mra&) = default;
};

// Reject (12.6.7).
struct Rej {
  static constexpr CmAttribute kAttribute = CmAttribute::kRej;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  RejOf message = RejOf::kReq;
  std::uint8_t info_length = 0;  // 7 bits; of `info`. Hostile: at most 72 count
  RejReason reason = RejReason::kConsumer;
  std::array<std::byte, 72> info{};
  std::array<std::byte, 148> private_data{};
  friend constexpr bool operator==(const Rej&, const Rej&) = default;
};

// Reply to a request for communication (12.6.8).
struct Rep {
  static constexpr CmAttribute kAttribute = CmAttribute::kRep;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  Ece ece{};
  std::uint32_t local_qkey = 0;
  QpNum local_qp{};
  std::uint32_t local_eecn = 0;
  std::uint32_t starting_psn = 0;  // with which the other side begins to send
  std::uint8_t responder_resources = 0;
  std::uint8_t initiator_depth = 0;
  std::uint8_t target_ack_delay = 0;   // 5 bits
  std::uint8_t failover_accepted = 0;  // 2 bits
  bool end_to_end_flow_control = false;
  std::uint8_t rnr_retry_count = 0;  // 3 bits
  bool srq = false;
  std::uint64_t local_ca_guid = 0;
  std::array<std::byte, 196> private_data{};
  friend constexpr bool operator==(const Rep&, const Rep&) = default;
};

// Ready to use (12.6.9).
struct Rtu {
  static constexpr CmAttribute kAttribute = CmAttribute::kRtu;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  std::array<std::byte, 224> private_data{};
  friend constexpr bool operator==(const Rtu&, const Rtu&) = default;
};

// Request for communication release (12.6.10).
struct Dreq {
  static constexpr CmAttribute kAttribute = CmAttribute::kDreq;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  QpNum remote_qp{};
  std::array<std::byte, 220> private_data{};
  friend constexpr bool operator==(const Dreq&, const Dreq&) = default;
};

// Reply to a request for communication release (12.6.11).
struct Drep {
  static constexpr CmAttribute kAttribute = CmAttribute::kDrep;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  std::array<std::byte, 224> private_data{};
  friend constexpr bool operator==(const Drep&, const Drep&) = default;
};

// Load alternate path (12.8.1).
struct Lap {
  static constexpr CmAttribute kAttribute = CmAttribute::kLap;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  QpNum remote_qp{};
  std::uint8_t remote_cm_response_timeout = 0;  // 5 bits
  CmPath alternate{};
  std::array<std::byte, 168> private_data{};
  friend constexpr bool operator==(const Lap&, const Lap&) = default;
};

// Alternate path response (12.8.2).
struct Apr {
  static constexpr CmAttribute kAttribute = CmAttribute::kApr;
  std::uint32_t local_comm_id = 0;
  std::uint32_t remote_comm_id = 0;
  std::uint8_t info_length = 0;  // of `info`. Hostile: at most 72 count
  std::uint8_t status = 0;
  std::array<std::byte, 72> info{};
  std::array<std::byte, 148> private_data{};
  friend constexpr bool operator==(const Apr&, const Apr&) = default;
};

// Service id resolution request (12.11.1).
struct SidrReq {
  static constexpr CmAttribute kAttribute = CmAttribute::kSidrReq;
  std::uint32_t request_id = 0;
  std::uint16_t pkey = 0xFFFF;
  std::uint64_t service_id = 0;
  std::array<std::byte, 216> private_data{};
  friend constexpr bool operator==(const SidrReq&, const SidrReq&) = default;
};

// Service id resolution response (12.11.2).
struct SidrRep {
  static constexpr CmAttribute kAttribute = CmAttribute::kSidrRep;
  std::uint32_t request_id = 0;
  SidrStatus status = SidrStatus::kValid;
  std::uint8_t info_length = 0;  // of `info`. Hostile: at most 72 count
  QpNum qp{};
  std::uint64_t service_id = 0;
  std::uint32_t qkey = 0;
  std::array<std::byte, 72> info{};
  std::array<std::byte, 136> private_data{};
  friend constexpr bool operator==(const SidrRep&, const SidrRep&) = default;
};

using CmMessage = std::variant<Req, Mra, Rej, Rep, Rtu, Dreq, Drep, Lap, Apr, SidrReq, SidrRep>;

struct CmMad {
  std::uint64_t transaction_id = 0;
  CmMessage message;
};

// Why a MAD on queue pair 1 is none for us.
enum class MalformedMad : std::uint8_t {
  kLength,     // not 256 bytes
  kVersion,    // of the base or of the class
  kClass,      // not communication management; another manager may want it
  kMethod,     // not Send
  kAttribute,  // no message that we know
};
const char* name_of(MalformedMad reason);
const char* name_of(CmAttribute attribute);

Result<CmMad, MalformedMad> parse_cm(std::span<const std::byte> payload);
std::array<std::byte, kMadBytes> encode_cm(const CmMad& mad);
CmAttribute attribute_of(const CmMessage& message);

// RDMA IP CM (annex A11): what stands at the front of a REQ's or SIDR_REQ's private data when the
// service id is one of `service_id_of`; the consumer has the rest.
struct IpCm {
  static constexpr std::size_t kBytes = 36;
  std::uint16_t source_port = 0;
  Gid source{};  // IPv4 as IPv4-mapped
  Gid destination{};
  friend constexpr bool operator==(const IpCm&, const IpCm&) = default;
};

// Nothing when the version is not 0.0, or IP's neither 4 nor 6.
std::optional<IpCm> parse_ip_cm(std::span<const std::byte> private_data);
void encode_ip_cm(const IpCm& ip_cm, std::span<std::byte, IpCm::kBytes> to);

// A11.2: 0x0000000001 in front, then the IP protocol number (TCP's 6 for connections, UDP's 17 for
// datagrams) and the port.
constexpr std::uint64_t service_id_of(std::uint8_t protocol, std::uint16_t port) {
  return std::uint64_t{1} << 24 | std::uint64_t{protocol} << 16 | port;
}

}  // namespace verbena::wire
