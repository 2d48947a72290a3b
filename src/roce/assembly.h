// SPDX-License-Identifier: MIT
// Puts the packets of SENDs and WRITEs together, which come in order and once: each is checked
// against what came before it (IBTA vol 1, 9.7.4.1, 9.8.2.2) and carried out. What an unreliable
// and a reliable responder have in common.
#pragma once

#include <cstdint>

#include "qp/responder.h"
#include "wire/packet.h"

namespace verbena::roce {

class Assembly {
 public:
  explicit Assembly(std::uint32_t path_mtu) : path_mtu_(path_mtu) {}

  // Whether the packet may come now, by its opcode and its length.
  bool fits(const wire::Packet& packet) const;
  // A SEND or a WRITE that fits. Refused: nothing has changed, and the same packet may come again
  // (kNotReady), or the message is over.
  Result<void, qp::Refusal> take(const wire::Packet& packet, qp::Responder& responder);
  // The same for another process (qp/relay.h): the piece that such a packet is, and what follows
  // when it was passed on.
  qp::RelayPiece piece_of(const wire::Packet& packet) const;
  void passed(const wire::Packet& packet);
  // READ requests and atomics, which are whole messages.
  void pass(const wire::Packet& packet) { last_ = packet.shape; }
  // The rest of the message will not come.
  void abandon() { last_ = nullptr; }
  bool is_inside() const { return last_ != nullptr && !last_->ends_message(); }
  // fits() and take() of what comes in the middle of a message.
  bool fits(const wire::Middle& piece) const { return fitting(piece, 1) != 0; }
  // Of so many that follow each other, how many do.
  std::size_t fitting(const wire::Middle& piece, std::size_t count) const;
  Result<void, qp::Refusal> take(const wire::Middle& piece, qp::Responder& responder);
  // take() of several, in two steps. False: they are to be taken one by one.
  bool place(wire::Kind kind, const ConstPieces& pieces, qp::Responder& responder) const;
  void placed(std::size_t bytes) { offset_ += bytes; }

 private:
  bool fits_write(const wire::Packet& packet) const;
  Result<void, qp::Refusal> take_send(const wire::Packet& packet, qp::Responder& responder);
  Result<void, qp::Refusal> take_write(const wire::Packet& packet, qp::Responder& responder);

  std::uint32_t path_mtu_;
  const wire::OpcodeShape* last_ = nullptr;
  std::uint64_t offset_ = 0;  // bytes of the message that came
  // Of a WRITE.
  std::uint64_t length_ = 0;
  std::uint64_t address_ = 0;
  MemoryKey key_{};
};

}  // namespace verbena::roce
