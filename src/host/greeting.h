// SPDX-License-Identifier: MIT
// What two control threads say to each other: frames on a SEQPACKET link, in the host's byte order.
//
//   who asked            who holds the slot
//   kHello  page ─────►                        who I am, which slot I want, my process page
//           ◄───── page  kWelcome              who I am, my process page
//   kReady       ─────►                        the link is up on both sides
//           ◄─────       kRefuse               instead of any of these: why not; then the end
//
// After that both send kSlots (I took another slot) and kMessage (for the layers above).
// Of all versions of this library only FrameHead and kRefuse must stay as they are: by them two
// that differ find out. Everything received is hostile, so parsing copies, and takes exact lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "host/process_page.h"
#include "host/slots.h"

namespace verbena::host {

enum class FrameType : std::uint32_t {
  kHello = 1,
  kWelcome = 2,
  kReady = 3,
  kRefuse = 4,
  kSlots = 5,
  kMessage = 6,
};

// The detail of kRefuse.
enum class RefuseReason : std::uint32_t {
  kOtherUser = 1,
  kOtherLayout = 2,
  kBusy = 3,       // try again
  kDuplicate = 4,  // we have a link already, or are about to
  kMalformed = 5,
};

struct FrameHead {
  static constexpr std::uint32_t kMagic = 0x6E625256;  // "VRbn"

  std::uint32_t magic = kMagic;
  std::uint32_t layout = kLayoutVersion;
  FrameType type{};
  std::uint32_t detail = 0;  // kRefuse: the reason; otherwise 0
};
static_assert(sizeof(FrameHead) == 16);

// The body of kHello and kWelcome, with the process page's memfd attached.
struct Greeting {
  static constexpr std::uint32_t kSendsPidfd = 1;  // our links outlive us in forked children

  ProcessId id;
  std::uint64_t nonce_address = 0;  // where, in the sender's memory, ...
  std::uint64_t nonce = 0;          // ... this value lies
  std::uint32_t flags = 0;
  std::uint32_t wanted_slot = 0;  // kHello: the slot that this link is for; kWelcome: 0
  SlotSet slots;                  // all of the sender's
};
static_assert(sizeof(Greeting) == 168);

inline constexpr std::size_t kFrameMax = sizeof(FrameHead) + 4608;
inline constexpr std::size_t kAttachmentsMax = 2;

enum class Malformed : std::uint8_t { kLength, kMagic, kLayout, kType, kContent };

struct Frame {
  FrameType type{};
  std::uint32_t detail = 0;
  std::span<const std::byte> body;
};

// kRefuse is understood from every version, the others from our own only.
Result<Frame, Malformed> parse_frame(std::span<const std::byte> bytes);
Result<Greeting, Malformed> parse_greeting(const Frame& frame);
Result<SlotSet, Malformed> parse_slots(const Frame& frame);

}  // namespace verbena::host
