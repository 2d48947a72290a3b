// SPDX-License-Identifier: MIT
#include "port/group_message.h"

#include <cstring>

namespace verbena::port {

Result<GroupMessage, GroupMalformed> parse_group_message(std::span<const std::byte> bytes) {
  GroupMessage message;
  if (bytes.size() != sizeof message) return refuse(GroupMalformed::kLength);
  std::memcpy(&message, bytes.data(), sizeof message);
  constexpr std::uint32_t kVersionMask = 0xFF;
  if ((message.magic ^ GroupMessage::kMagic) & ~kVersionMask) {
    return refuse(GroupMalformed::kMagic);
  }
  if (message.magic != GroupMessage::kMagic) return refuse(GroupMalformed::kVersion);
  const bool known = message.says >= GroupSays::kAsk && message.says <= GroupSays::kNotServing;
  if (!known || message.reserved != 0 || message.slot >= kSlotCount ||
      message.position >= kSlotCount || message.count > kSlotCount) {
    return refuse(GroupMalformed::kContent);
  }
  return message;
}

}  // namespace verbena::port
