// SPDX-License-Identifier: MIT
#include "port/handover.h"

#include <cstring>

namespace verbena::port {
namespace {

// The head of a message, in the order of the host.
struct Head {
  std::uint8_t version = 0;
  std::uint8_t ecn = 0;
  std::uint16_t source_port = 0;
  std::uint16_t segment = 0;
  std::uint16_t length = 0;
  std::uint32_t interface = 0;
  std::uint32_t reserved = 0;
  Gid from;
  Gid to;
};
static_assert(sizeof(Head) == kHandOverHead);

constexpr std::uint8_t kVersion = 1;

}  // namespace

std::size_t pack(const Received& packet, std::span<std::byte> into) {
  const std::size_t size = sizeof(Head) + packet.payload.size();
  if (packet.payload.size() > UINT16_MAX || size > into.size()) return 0;
  const Head head{.version = kVersion,
                  .ecn = static_cast<std::uint8_t>(packet.ecn),
                  .source_port = packet.source_port,
                  .segment = packet.segment,
                  .length = static_cast<std::uint16_t>(packet.payload.size()),
                  .interface = packet.interface,
                  .from = packet.from,
                  .to = packet.to};
  std::memcpy(into.data(), &head, sizeof head);
  std::memcpy(into.data() + sizeof head, packet.payload.data(), packet.payload.size());
  return size;
}

Result<Received, HandOverError> unpack(std::span<const std::byte> message) {
  Head head;
  if (message.size() < sizeof head) return refuse(HandOverError::kTruncated);
  std::memcpy(&head, message.data(), sizeof head);
  if (head.version != kVersion) return refuse(HandOverError::kVersion);
  if (head.length != message.size() - sizeof head) return refuse(HandOverError::kLength);
  if (head.ecn > 3 || head.reserved != 0) return refuse(HandOverError::kContent);
  return Received{.payload = message.subspan(sizeof head),
                  .from = head.from,
                  .to = head.to,
                  .interface = head.interface,
                  .source_port = head.source_port,
                  .segment = head.segment,
                  .ecn = static_cast<Ecn>(head.ecn)};
}

}  // namespace verbena::port
