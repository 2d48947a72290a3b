// SPDX-License-Identifier: MIT
#include "wire/malformed.h"

namespace verbena::wire {

const char* name_of(Malformed reason) {
  switch (reason) {
    case Malformed::kIpHead: return "IP head";
    case Malformed::kFragment: return "IP fragment";
    case Malformed::kNotRoce: return "not RoCEv2";
    case Malformed::kTruncated: return "truncated";
    case Malformed::kIcrc: return "ICRC";
    case Malformed::kTransportVersion: return "transport version";
    case Malformed::kOpcode: return "reserved opcode";
    case Malformed::kUnaligned: return "no multiple of 4";
    case Malformed::kPad: return "pad count";
    case Malformed::kPayload: return "payload where none belongs";
    case Malformed::kNoPayload: return "no payload";
    case Malformed::kPayloadSize: return "payload size";
    case Malformed::kDmaLength: return "DMA length";
    case Malformed::kSyndrome: return "AETH syndrome";
    case Malformed::kFlush: return "FLUSH type";
  }
  return "unknown";
}

}  // namespace verbena::wire
