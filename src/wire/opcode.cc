// SPDX-License-Identifier: MIT
#include "wire/opcode.h"

namespace verbena::wire {
namespace {

using Shapes = std::array<OpcodeShape, 256>;

constexpr std::size_t header_bytes(const OpcodeShape& shape) {
  return kBthBytes + shape.deth * kDethBytes + shape.xrceth * kXrcethBytes +
         shape.feth * kFethBytes + shape.reth * kRethBytes + shape.atomic_eth * kAtomicEthBytes +
         shape.aeth * kAethBytes + shape.atomic_ack_eth * kAtomicAckEthBytes +
         shape.immediate * kImmDtBytes + shape.ieth * kIethBytes +
         shape.cnp_reserved * kCnpReservedBytes;
}

struct Definer {
  Shapes& shapes;
  Service service;

  constexpr void operator()(Code code, OpcodeShape shape) const {
    shape.is_defined = true;
    // Responses of XRC go to the initiator's queue pair, which needs no shared receive queue.
    shape.xrceth = service == Service::kXrc && !shape.is_response;
    shape.deth = service == Service::kUd;
    shape.header_bytes = static_cast<std::uint8_t>(header_bytes(shape));
    shapes[Opcode::of(service, code).value] = shape;
  }
};

using enum Place;

// RC, UC and XRC have these.
constexpr void define_connected(const Definer& define) {
  using enum Code;
  constexpr Kind kSend = Kind::kSend;
  constexpr Kind kWrite = Kind::kWrite;
  define(kSendFirst, {.kind = kSend, .place = kFirst, .payload = Payload::kFull});
  define(kSendMiddle, {.kind = kSend, .place = kMiddle, .payload = Payload::kFull});
  define(kSendLast, {.kind = kSend, .place = kLast, .payload = Payload::kSome});
  define(kSendLastImmediate,
         {.kind = kSend, .place = kLast, .payload = Payload::kSome, .immediate = true});
  define(kSendOnly, {.kind = kSend, .place = kOnly, .payload = Payload::kAny});
  define(kSendOnlyImmediate,
         {.kind = kSend, .place = kOnly, .payload = Payload::kAny, .immediate = true});
  define(kWriteFirst, {.kind = kWrite, .place = kFirst, .payload = Payload::kFull, .reth = true});
  define(kWriteMiddle, {.kind = kWrite, .place = kMiddle, .payload = Payload::kFull});
  define(kWriteLast, {.kind = kWrite, .place = kLast, .payload = Payload::kSome});
  define(kWriteLastImmediate,
         {.kind = kWrite, .place = kLast, .payload = Payload::kSome, .immediate = true});
  define(kWriteOnly, {.kind = kWrite, .place = kOnly, .payload = Payload::kAny, .reth = true});
  define(
      kWriteOnlyImmediate,
      {.kind = kWrite, .place = kOnly, .payload = Payload::kAny, .reth = true, .immediate = true});
}

// RC and XRC have these, too.
constexpr void define_reliable(const Definer& define) {
  using enum Code;
  constexpr Kind kSend = Kind::kSend;
  constexpr Kind kRead = Kind::kReadResponse;
  define(kReadRequest, {.kind = Kind::kReadRequest, .reth = true});
  define(kReadResponseFirst, {.is_response = true,
                              .kind = kRead,
                              .place = kFirst,
                              .payload = Payload::kFull,
                              .aeth = true});
  define(kReadResponseMiddle,
         {.is_response = true, .kind = kRead, .place = kMiddle, .payload = Payload::kFull});
  define(kReadResponseLast, {.is_response = true,
                             .kind = kRead,
                             .place = kLast,
                             .payload = Payload::kSome,
                             .aeth = true});
  define(
      kReadResponseOnly,
      {.is_response = true, .kind = kRead, .place = kOnly, .payload = Payload::kAny, .aeth = true});
  define(Code::kAcknowledge, {.is_response = true, .kind = Kind::kAcknowledge, .aeth = true});
  define(Code::kAtomicAcknowledge, {.is_response = true,
                                    .kind = Kind::kAtomicAcknowledge,
                                    .aeth = true,
                                    .atomic_ack_eth = true});
  define(Code::kCompareSwap, {.kind = Kind::kCompareSwap, .atomic_eth = true});
  define(Code::kFetchAdd, {.kind = Kind::kFetchAdd, .atomic_eth = true});
  define(kSendLastInvalidate,
         {.kind = kSend, .place = kLast, .payload = Payload::kSome, .ieth = true});
  define(kSendOnlyInvalidate,
         {.kind = kSend, .place = kOnly, .payload = Payload::kAny, .ieth = true});
  define(Code::kFlush, {.kind = Kind::kFlush, .feth = true, .reth = true});
  define(Code::kAtomicWrite,
         {.kind = Kind::kAtomicWrite, .payload = Payload::kEight, .reth = true});
}

constexpr Shapes all_shapes() {
  Shapes shapes{};
  for (const Service service : {Service::kRc, Service::kUc, Service::kXrc}) {
    define_connected({shapes, service});
  }
  for (const Service service : {Service::kRc, Service::kXrc})
    define_reliable({shapes, service});
  const Definer datagram{shapes, Service::kUd};
  datagram(Code::kSendOnly, {.kind = Kind::kSend, .payload = Payload::kAny});
  datagram(Code::kSendOnlyImmediate,
           {.kind = Kind::kSend, .payload = Payload::kAny, .immediate = true});
  const Definer congestion{shapes, Service::kCnp};
  congestion(Code::kCongestionNotification,
             {.kind = Kind::kCongestionNotification, .cnp_reserved = true});
  return shapes;
}

constexpr Shapes kShapes = all_shapes();

constexpr std::size_t longest_headers() {
  std::size_t longest = 0;
  for (const OpcodeShape& shape : kShapes)
    if (shape.header_bytes > longest) longest = shape.header_bytes;
  return longest;
}
static_assert(longest_headers() == kHeadersMax);
static_assert(kShapes[0x0A].header_bytes == 28);            // RC WRITE Only
static_assert(kShapes[0xAB].header_bytes == 36);            // XRC WRITE Only with immediate
static_assert(kShapes[0x65].header_bytes == 24);            // UD SEND Only with immediate
static_assert(kShapes[0x81].header_bytes == 28);            // CNP
static_assert(may_follow(&kShapes[0x00], kShapes[0x02]));   // SEND First, SEND Last
static_assert(!may_follow(&kShapes[0x00], kShapes[0x08]));  // SEND First, WRITE Last
static_assert(!may_follow(&kShapes[0x04], kShapes[0x01]));  // SEND Only, SEND Middle
static_assert(!may_follow(nullptr, kShapes[0x01]));

struct Names {
  const char* rc;
  const char* uc;
  const char* xrc;
};

#define VERBENA_NAMES(what) \
  Names { "RC " what, "UC " what, "XRC " what }

constexpr std::array<Names, 32> kNames = {
    VERBENA_NAMES("SEND First"),
    VERBENA_NAMES("SEND Middle"),
    VERBENA_NAMES("SEND Last"),
    VERBENA_NAMES("SEND Last with Immediate"),
    VERBENA_NAMES("SEND Only"),
    VERBENA_NAMES("SEND Only with Immediate"),
    VERBENA_NAMES("RDMA WRITE First"),
    VERBENA_NAMES("RDMA WRITE Middle"),
    VERBENA_NAMES("RDMA WRITE Last"),
    VERBENA_NAMES("RDMA WRITE Last with Immediate"),
    VERBENA_NAMES("RDMA WRITE Only"),
    VERBENA_NAMES("RDMA WRITE Only with Immediate"),
    VERBENA_NAMES("RDMA READ Request"),
    VERBENA_NAMES("RDMA READ Response First"),
    VERBENA_NAMES("RDMA READ Response Middle"),
    VERBENA_NAMES("RDMA READ Response Last"),
    VERBENA_NAMES("RDMA READ Response Only"),
    VERBENA_NAMES("Acknowledge"),
    VERBENA_NAMES("ATOMIC Acknowledge"),
    VERBENA_NAMES("CmpSwap"),
    VERBENA_NAMES("FetchAdd"),
    VERBENA_NAMES(""),
    VERBENA_NAMES("SEND Last with Invalidate"),
    VERBENA_NAMES("SEND Only with Invalidate"),
    VERBENA_NAMES(""),
    VERBENA_NAMES(""),
    VERBENA_NAMES(""),
    VERBENA_NAMES(""),
    VERBENA_NAMES("FLUSH"),
    VERBENA_NAMES("ATOMIC WRITE"),
    VERBENA_NAMES(""),
    VERBENA_NAMES(""),
};
#undef VERBENA_NAMES

}  // namespace

constinit const std::array<OpcodeShape, 256> detail::opcode_shapes = kShapes;

const char* name_of(Opcode opcode) {
  if (!shape_of(opcode).is_defined) return "reserved opcode";
  const Names& names = kNames[opcode.value & 0x1Fu];
  switch (opcode.service()) {
    case Service::kRc: return names.rc;
    case Service::kUc: return names.uc;
    case Service::kXrc: return names.xrc;
    case Service::kUd:
      return opcode.code() == Code::kSendOnly ? "UD SEND Only" : "UD SEND Only with Immediate";
    case Service::kCnp: return "CNP";
  }
  return "reserved opcode";
}

}  // namespace verbena::wire
