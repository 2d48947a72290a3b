// SPDX-License-Identifier: MIT
#include "host/greeting.h"

#include <cstring>

namespace verbena::host {
namespace {

// Exact: every type but kMessage has one length.
bool has_right_length(FrameType type, std::size_t body) {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kWelcome: return body == sizeof(Greeting);
    case FrameType::kReady:
    case FrameType::kRefuse: return body == 0;
    case FrameType::kSlots: return body == sizeof(SlotSet);
    case FrameType::kMessage: return body <= kFrameMax - sizeof(FrameHead);
  }
  return false;
}

}  // namespace

Result<Frame, Malformed> parse_frame(std::span<const std::byte> bytes) {
  FrameHead head;
  if (bytes.size() < sizeof head) return refuse(Malformed::kLength);
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.magic != FrameHead::kMagic) return refuse(Malformed::kMagic);
  const auto body = bytes.subspan(sizeof head);
  if (head.layout != kLayoutVersion && head.type != FrameType::kRefuse) {
    return refuse(Malformed::kLayout);
  }
  if (head.type < FrameType::kHello || head.type > FrameType::kMessage) {
    return refuse(Malformed::kType);
  }
  if (!has_right_length(head.type, body.size())) return refuse(Malformed::kLength);
  if (head.detail != 0 && head.type != FrameType::kRefuse) return refuse(Malformed::kContent);
  return Frame{head.type, head.detail, body};
}

Result<Greeting, Malformed> parse_greeting(const Frame& frame) {
  Greeting greeting;
  if (frame.body.size() != sizeof greeting) return refuse(Malformed::kLength);
  std::memcpy(&greeting, frame.body.data(), sizeof greeting);
  const bool is_good = greeting.id != ProcessId{} && greeting.wanted_slot < kSlotCount &&
                       (greeting.flags & ~Greeting::kSendsPidfd) == 0 && !greeting.slots.empty();
  if (!is_good) return refuse(Malformed::kContent);
  return greeting;
}

Result<SlotSet, Malformed> parse_slots(const Frame& frame) {
  SlotSet slots;
  if (frame.body.size() != sizeof slots) return refuse(Malformed::kLength);
  std::memcpy(&slots, frame.body.data(), sizeof slots);
  if (slots.empty()) return refuse(Malformed::kContent);
  return slots;
}

}  // namespace verbena::host
