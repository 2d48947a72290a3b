// SPDX-License-Identifier: MIT
// What an XRC target does with requests for shared receive queues of other processes of its domain
// (annex A14). Who has the queue has the receives, the regions and the completions: it executes.
// The target has the connection: it passes a request on in pieces, and answers its peer when the
// answers have come.
//
// Pieces are executed in order, and each is answered in order. Those for one process follow each
// other closely; before the first one for another process all answers are awaited. So the order is
// that of the connection.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "qp/operation.h"

namespace verbena::qp {

struct RelayPiece {
  std::uint32_t shared_queue = 0;
  OpKind kind = OpKind::kSend;
  bool is_first = true;
  bool is_last = true;
  Arrived arrived = {};  // with the last one
  MemoryKey key{};
  std::uint64_t address = 0;  // of the message's first byte
  std::uint32_t length = 0;   // of the message. SEND: known with the last piece
  std::uint32_t offset = 0;   // of this piece in it
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;
  Flush flush{};
  std::span<const std::byte> bytes = {};  // at most Relay::kPieceMax
};

// About the oldest piece that is not answered yet.
struct RelayReply {
  enum class Kind : std::uint8_t {
    kDone,
    kRefused,  // and none of those that follow is executed
    kBytes,    // of a READ; kDone follows them all
    kValue,    // of an atomic, before; kDone follows
  };
  Kind kind = Kind::kDone;
  Answer answer = Answer::kDone;
  std::uint32_t offset = 0;
  std::span<const std::byte> bytes = {};  // good until it is taken
  std::uint64_t value = 0;
};

// Called with the lock of the target's queue pair. Whenever a reply comes, or there is room again,
// the queue pair gets a turn.
class Relay {
 public:
  static constexpr std::uint32_t kPieceMax = 16 * 1024;
  enum class Sent : std::uint8_t {
    kSent,
    kLater,    // when there is room, or the way to that process is found, or others have answered
    kNowhere,  // nobody has this queue
  };
  virtual Sent send(const RelayPiece& piece) = 0;
  // False: the way to the process that has this queue is being looked for.
  virtual bool knows_way_to(std::uint32_t shared_queue) const = 0;
  // Pieces without an answer.
  virtual std::uint32_t outstanding() const = 0;
  // The next one, until it is taken.
  virtual std::optional<RelayReply> reply() = 0;
  virtual void take_reply() = 0;

 protected:
  ~Relay() = default;
};

}  // namespace verbena::qp
