// SPDX-License-Identifier: MIT
// A conduit: one direction of a connection between two queue pairs of this host, in memory that
// both processes map.
//
// The responder makes it and offers it to the requester. Requests go one way in a ring; answers
// that carry something (READ data, atomics, refusals) come back in a second ring, so that a flood
// of requests can never keep an answer from fitting; plain acknowledgements are a count. Every
// connection has a conduit of its own and a random id, so nothing of an earlier connection can be
// mistaken for this one.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/types.h"
#include "host/process_page.h"
#include "host/shared_memory.h"
#include "local/record_ring.h"

namespace verbena::local {

struct ConduitHeader {
  static constexpr std::uint64_t kMagic = 0x01'74'69'75'64'6E'6F'43;  // "Conduit\1" in memory

  // How much the requester is about to write by pwritev: the length of an iovec whose address is
  // the requester's own, so it has to be the first word of a page (revocable_piece.h). Taken back
  // like `reach`, below.
  std::atomic<std::uint64_t> small_length;
  std::uint64_t magic;
  std::uint64_t id;
  std::uint32_t layout_version;
  std::uint32_t request_units;
  std::uint32_t response_units;
  std::atomic<std::uint32_t> ends_gone;

  // Written by the requester.
  alignas(64) std::atomic<std::uint32_t> responses_consumed;
  std::atomic<std::uint32_t> request_writer_waits;
  std::atomic<std::uint32_t> requester_closed;

  // Written by the responder. `executed` counts the operations that are done: the acknowledgement.
  // It has a line of its own, since each look of the requester at it makes the responder's next
  // store dear; what it looks at all the time hardly ever changes.
  alignas(64) std::atomic<std::uint32_t> executed;
  alignas(64) std::atomic<std::uint32_t> responder_closed;
  std::atomic<std::uint32_t> response_writer_waits;
  // Written by the responder, and looked at by a requester that needs room.
  alignas(64) std::atomic<std::uint32_t> requests_consumed;

  // Where in the responder the requester is about to write or read by process_vm_writev or readv:
  // two iovecs, read by the kernel from here. The responder takes the right back from a requester
  // that was stopped just before the call by setting the lengths to 0.
  struct Reach {
    std::atomic<std::uint64_t> address;
    std::atomic<std::uint64_t> length;
  };
  alignas(64) Reach reach[2];

  // Written by the responder: identities (published.h) of regions of the requester that it has
  // mapped, each at the place of its key. Payload in these need not travel in the ring.
  static constexpr std::uint32_t kBorrowed = 8;
  alignas(64) std::atomic<std::uint64_t> borrowed[kBorrowed];
};
static_assert(sizeof(ConduitHeader) == 448);
static_assert(offsetof(ConduitHeader, small_length) == 0);
static_assert(sizeof(ConduitHeader::Reach) == sizeof(iovec));

inline constexpr std::uint32_t kRequestUnits = 2048;   // 128 KiB
inline constexpr std::uint32_t kResponseUnits = 2048;  // 128 KiB
inline constexpr std::size_t kRingsOffset = 4096;
inline constexpr std::size_t kConduitSize =
    kRingsOffset + (std::size_t{kRequestUnits} + kResponseUnits) * kUnit;

// The largest payload of one record: a quarter of the ring less its head, in whole pages.
inline constexpr std::uint32_t kPieceMax = 16 * 1024;
static_assert(units_for(kPieceMax) <= kRequestUnits / 4);
// What fits into a request's first unit.
inline constexpr std::uint32_t kInlineMax = 16;
// From this length on payload is lent rather than copied into the ring, where the responder maps
// the requester's memory: it is copied once. So much in one record.
inline constexpr std::uint32_t kLentMin = 512;
inline constexpr std::uint32_t kLentMax = 256 * 1024;

// So many SENDs are one record at most, of so many bytes each.
inline constexpr std::uint32_t kRowMost = 32;
inline constexpr std::uint32_t kRowBytesMost = 32;

enum class RequestKind : std::uint8_t {
  kSend = 1,
  kWrite = 2,
  kRead = 3,
  kCompareSwap = 4,
  kFetchAdd = 5,
  kFlush = 6,        // `flush` says of what
  kAtomicWrite = 7,  // eight bytes, stored at once
  kSendRow = 8,      // SENDs of one length, `row` of them, whose payload follows without gaps
};
enum RequestFlag : std::uint8_t {
  kFirst = 1,
  kLast = 2,
  kWithImmediate = 4,
  kWithInvalidate = 8,
  kSolicitedEvent = 16,
  kNamesSource = 32,  // `source` says where the payload lies in the requester's memory
  kLent = 64,         // and there it is to be taken from: it does not follow
  kRelayed = 128,     // by an XRC target: each record has an index of its own, and is acknowledged;
                      // only the last one of a SEND knows the total length
};
inline constexpr std::uint32_t kUnknownLength = 0xFFFFFFFF;

enum FlushWhat : std::uint32_t { kGlobalVisibility = 1, kPersistence = 2, kWholeRegion = 4 };

// How many requests of a conduit its responder has executed.
struct Acknowledged {
  std::uint32_t executed;
  std::uint32_t conduit;  // the lower half of its id; 0: nothing is said
};

// What the sender does about answers (answer_pace.h).
enum PaceHint : std::uint32_t { kNoPace = 0, kMeasuresPace = 1 };

// Where payload lies in the requester's memory.
struct Source {
  std::uint64_t address;  // by its region
  std::uint32_t key;
  std::uint32_t reserved;
};

struct RequestRecord {
  RecordHead head;
  std::uint32_t index;         // of the operation, among those that take the ring
  std::uint32_t epoch;         // how often the requester went back
  std::uint32_t total_length;  // of the message, or kUnknownLength
  std::uint32_t piece_length;  // of this record's payload
  union {
    std::uint64_t remote_address;  // of the message's first byte
    // Of SENDs. What goes along with an answer need not be looked for elsewhere.
    Acknowledged acknowledged;
  };
  union {
    std::uint32_t remote_key;
    std::uint32_t pace;  // of SENDs: a PaceHint
  };
  union {
    std::uint32_t immediate;
    std::uint32_t row;  // of kSendRow: how many; their indices follow each other
  };
  std::uint32_t offset;        // of this piece in the message
  std::uint32_t shared_queue;  // XRC
  union {
    std::byte inline_payload[kInlineMax];  // when piece_length <= kInlineMax
    struct {
      std::uint64_t compare_add;
      std::uint64_t swap;
    } atomic;
    struct {
      std::uint32_t length;
      std::uint32_t what;  // FlushWhat
      std::uint64_t reserved;
    } flush;
    Source source;
  };
};
static_assert(sizeof(RequestRecord) == kUnit);

enum class ResponseKind : std::uint8_t {
  kData = 1,     // a piece of a READ
  kValue = 2,    // of an atomic, before
  kRefusal = 3,  // with a qp::Answer
  kNotLent = 4,  // lent payload was not found: once more, in the ring
};

struct ResponseRecord {
  RecordHead head;
  std::uint32_t index;
  std::uint32_t offset;
  std::uint32_t piece_length;
  std::uint8_t answer;
  std::uint8_t rnr_timer;
  std::uint16_t reserved;
  std::uint64_t value;
  std::byte unused[32];
};
static_assert(sizeof(ResponseRecord) == kUnit);

// One datagram; its payload follows. GIDs in network order.
struct DatagramRecord {
  RecordHead head;
  std::uint32_t source_qp;
  std::uint32_t destination_qp;
  std::uint32_t qkey;
  std::uint32_t length;
  std::uint32_t immediate;
  std::uint8_t traffic_class;
  std::uint8_t hop_limit;
  std::uint16_t reserved;
  Gid source;
  Gid destination;
};
static_assert(sizeof(DatagramRecord) == kUnit);
inline constexpr std::uint8_t kDatagram = 1;
inline constexpr std::uint32_t kDatagramMax = 4096;

// Memory for some conduits between the same two processes: making, passing and mapping it costs far
// more than all else of a connection. Copies are references, good on any thread; it is unmapped
// with the last one.
class ConduitFile {
 public:
  static constexpr std::uint32_t kMost = 16;  // conduits
  static constexpr std::size_t bytes_for(std::uint32_t conduits) { return conduits * kConduitSize; }

  ConduitFile() = default;
  explicit ConduitFile(host::SharedMemory memory);
  ConduitFile(const ConduitFile& other);
  ConduitFile(ConduitFile&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  ConduitFile& operator=(ConduitFile other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~ConduitFile();

  explicit operator bool() const { return shared_ != nullptr; }
  std::uint32_t conduits() const;
  // Null: there is no such one.
  std::byte* at(std::uint32_t index) const;
  // False in a forked child, which has nothing there.
  bool is_ours() const;

 private:
  struct Shared;
  Shared* shared_ = nullptr;
};

// A mapped conduit. Which end we are is settled by which of the two pairs of rings is used. Its
// pages are given back when both ends have gone.
class Conduit {
 public:
  Conduit() = default;
  // Ours, new: the memory is zero.
  static Conduit prepare(const ConduitFile& file, std::uint32_t index, std::uint64_t id);
  static Conduit prepare(host::SharedMemory memory, std::uint64_t id) {
    return prepare(ConduitFile(std::move(memory)), 0, id);
  }
  // A peer's: false content gives an empty conduit.
  static Conduit accept(const ConduitFile& file, std::uint32_t index, std::uint64_t id);
  static Conduit accept(host::SharedMemory memory, std::uint64_t id) {
    return accept(ConduitFile(std::move(memory)), 0, id);
  }
  Conduit(Conduit&& other) noexcept { swap(other); }
  Conduit& operator=(Conduit&& other) noexcept {
    Conduit(std::move(other)).swap(*this);
    return *this;
  }
  ~Conduit();

  explicit operator bool() const { return at_ != nullptr; }
  std::uint64_t id() const { return id_; }
  // Not of an empty one.
  ConduitHeader& header() const { return *reinterpret_cast<ConduitHeader*>(at_); }

  RingWriter request_writer() const { return {requests(), kRequestUnits, request_words()}; }
  RingReader request_reader() const { return {requests(), kRequestUnits, request_words()}; }
  RingWriter response_writer() const { return {responses(), kResponseUnits, response_words()}; }
  RingReader response_reader() const { return {responses(), kResponseUnits, response_words()}; }

 private:
  Conduit(const ConduitFile& file, std::uint32_t index, std::uint64_t id)
      : file_(file), at_(file.at(index)), id_(id) {}
  void swap(Conduit& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(at_, other.at_);
    std::swap(id_, other.id_);
  }
  std::byte* requests() const { return at_ + kRingsOffset; }
  std::byte* responses() const { return requests() + std::size_t{kRequestUnits} * kUnit; }
  RingWords request_words() const {
    return {&header().requests_consumed, &header().request_writer_waits};
  }
  RingWords response_words() const {
    return {&header().responses_consumed, &header().response_writer_waits};
  }

  ConduitFile file_;
  std::byte* at_ = nullptr;
  std::uint64_t id_ = 0;
};

}  // namespace verbena::local
