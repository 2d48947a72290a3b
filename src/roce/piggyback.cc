// SPDX-License-Identifier: MIT
#include "roce/piggyback.h"

#include <cstring>

#include "wire/headers.h"

namespace verbena::roce {
namespace {

struct Layout {
  std::uint8_t zero = 0;
  wire::be24 psn;
  wire::Aeth aeth;
};
static_assert(sizeof(Layout) == kPiggybackBytes);

}  // namespace

void encode(const Piggyback& along, std::span<std::byte, kPiggybackBytes> to) {
  const Layout layout{
      .psn = wire::be24(along.psn.value()),
      .aeth = {.syndrome = wire::Syndrome::ack().value(), .msn = wire::be24(along.msn.value())}};
  std::memcpy(to.data(), &layout, sizeof layout);
}

std::optional<Piggyback> piggyback_of(const wire::Packet& packet) {
  const wire::OpcodeShape& shape = *packet.shape;
  const bool is_whole = shape.starts_message() && shape.ends_message();
  if (shape.kind != wire::Kind::kSend || !is_whole) return std::nullopt;
  return piggyback_in(packet.payload);
}

std::optional<Piggyback> piggyback_in(std::span<const std::byte> payload) {
  if (payload.size() < kPiggybackBytes) return std::nullopt;
  Layout layout;
  std::memcpy(&layout, payload.last<kPiggybackBytes>().data(), sizeof layout);
  const wire::Syndrome syndrome(layout.aeth.syndrome);
  if (layout.zero != 0 || !syndrome.is_ack() || !syndrome.is_defined()) return std::nullopt;
  return Piggyback{.psn = wire::Psn(layout.psn.value()), .msn = wire::Msn(layout.aeth.msn.value())};
}

}  // namespace verbena::roce
