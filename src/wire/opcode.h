// SPDX-License-Identifier: MIT
// The opcodes of the Base Transport Header as facts in a table: which headers follow, how much
// payload, and what may come after what (IBTA vol 1, 9.2.1 and 9.4; FLUSH and ATOMIC WRITE: annex
// A19; CNP: annex A17).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::wire {

// Bits 7-5 of the opcode. Reliable Datagram (2) has no implementation anywhere.
enum class Service : std::uint8_t {
  kRc = 0,   // Reliable Connection
  kUc = 1,   // Unreliable Connection
  kUd = 3,   // Unreliable Datagram
  kCnp = 4,  // Congestion Notification Packet
  kXrc = 5,  // Extended Reliable Connection
};

// Bits 4-0 of the opcode, the same for all services.
enum class Code : std::uint8_t {
  kSendFirst = 0x00,
  kSendMiddle = 0x01,
  kSendLast = 0x02,
  kSendLastImmediate = 0x03,
  kSendOnly = 0x04,
  kSendOnlyImmediate = 0x05,
  kWriteFirst = 0x06,
  kWriteMiddle = 0x07,
  kWriteLast = 0x08,
  kWriteLastImmediate = 0x09,
  kWriteOnly = 0x0A,
  kWriteOnlyImmediate = 0x0B,
  kReadRequest = 0x0C,
  kReadResponseFirst = 0x0D,
  kReadResponseMiddle = 0x0E,
  kReadResponseLast = 0x0F,
  kReadResponseOnly = 0x10,  // answers FLUSH and ATOMIC WRITE, too: then without payload
  kAcknowledge = 0x11,
  kAtomicAcknowledge = 0x12,
  kCompareSwap = 0x13,
  kFetchAdd = 0x14,
  kSendLastInvalidate = 0x16,
  kSendOnlyInvalidate = 0x17,
  kFlush = 0x1C,
  kAtomicWrite = 0x1D,
  kCongestionNotification = 0x01,  // of Service::kCnp
};

struct Opcode {
  std::uint8_t value = 0;
  static constexpr Opcode of(Service service, Code code) {
    return {static_cast<std::uint8_t>(static_cast<unsigned>(service) << 5 |
                                      static_cast<unsigned>(code))};
  }
  constexpr Service service() const { return static_cast<Service>(value >> 5); }
  constexpr Code code() const { return static_cast<Code>(value & 0x1F); }
  friend constexpr bool operator==(Opcode, Opcode) = default;
};
inline constexpr Opcode kCnp = Opcode::of(Service::kCnp, Code::kCongestionNotification);

enum class Kind : std::uint8_t {
  kSend,
  kWrite,
  kReadRequest,
  kReadResponse,
  kAcknowledge,
  kAtomicAcknowledge,
  kCompareSwap,
  kFetchAdd,
  kFlush,
  kAtomicWrite,
  kCongestionNotification,
};

// Where in its message a packet stands.
enum class Place : std::uint8_t { kOnly, kFirst, kMiddle, kLast };

enum class Payload : std::uint8_t {
  kNone,
  kFull,   // exactly the path MTU: First and Middle
  kSome,   // 1 byte to the path MTU: Last
  kAny,    // 0 to the path MTU: Only
  kEight,  // ATOMIC WRITE
};

// The size of each header in bytes (9.2 to 9.4).
inline constexpr std::size_t kBthBytes = 12;
inline constexpr std::size_t kDethBytes = 8;
inline constexpr std::size_t kXrcethBytes = 4;
inline constexpr std::size_t kRethBytes = 16;
inline constexpr std::size_t kAtomicEthBytes = 28;
inline constexpr std::size_t kFethBytes = 4;
inline constexpr std::size_t kAethBytes = 4;
inline constexpr std::size_t kAtomicAckEthBytes = 8;
inline constexpr std::size_t kImmDtBytes = 4;
inline constexpr std::size_t kIethBytes = 4;
inline constexpr std::size_t kCnpReservedBytes = 16;
inline constexpr std::size_t kIcrcBytes = 4;

inline constexpr std::size_t kHeadersMax = kBthBytes + kXrcethBytes + kAtomicEthBytes;
inline constexpr std::size_t kPathMtuMin = 256;
inline constexpr std::size_t kPathMtuMax = 4096;
// The longest UDP payload there is: XRC WRITE Only with immediate.
inline constexpr std::size_t kDatagramMax =
    kBthBytes + kXrcethBytes + kRethBytes + kImmDtBytes + kPathMtuMax + kIcrcBytes;

// What a packet with an opcode looks like. The headers stand in the order of the members.
struct OpcodeShape {
  bool is_defined = false;
  bool is_response = false;  // from the responder; all else is a request
  Kind kind{};
  Place place = Place::kOnly;
  Payload payload = Payload::kNone;
  bool deth : 1 = false;
  bool xrceth : 1 = false;
  bool feth : 1 = false;
  bool reth : 1 = false;
  bool atomic_eth : 1 = false;
  bool aeth : 1 = false;
  bool atomic_ack_eth : 1 = false;
  bool immediate : 1 = false;
  bool ieth : 1 = false;
  bool cnp_reserved : 1 = false;
  std::uint8_t header_bytes = 0;  // BTH and all of these

  constexpr bool starts_message() const { return place == Place::kOnly || place == Place::kFirst; }
  constexpr bool ends_message() const { return place == Place::kOnly || place == Place::kLast; }
  // Takes a posted receive at the responder: SEND, and WRITE with immediate at its end.
  constexpr bool consumes_receive() const {
    return kind == Kind::kSend || (kind == Kind::kWrite && immediate);
  }
};

namespace detail {
// NOLINTNEXTLINE(readability-identifier-naming): made when the program starts
extern const std::array<OpcodeShape, 256> opcode_shapes;
}  // namespace detail

// What stands in the table; `is_defined` is false for reserved opcodes.
inline const OpcodeShape& shape_of(Opcode opcode) { return detail::opcode_shapes[opcode.value]; }

// "RC SEND First", "CNP"; "reserved opcode" for the others. For traces.
const char* name_of(Opcode opcode);

// Whether `next` may come after `before` in one direction of a queue pair: a message of several
// packets is finished before another begins (9.7.4.1.2, and for responses 9.7.5.1.3). `before` is
// null at the start. Acknowledgements and atomic responses are messages of one packet; an ACK or a
// NAK may also end a READ response early, which the requester sees for itself.
constexpr bool may_follow(const OpcodeShape* before, const OpcodeShape& next) {
  const bool is_inside = before != nullptr && !before->ends_message();
  return is_inside ? !next.starts_message() && next.kind == before->kind : next.starts_message();
}

}  // namespace verbena::wire
