// SPDX-License-Identifier: MIT
// What a hostile peer process writes into conduits, by the bytes of a fuzzer. For tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/test_input.h"
#include "local/conduit.h"

namespace verbena::local {

// The same memory for every input, mapped twice: making it takes longer than all the rest.
struct HostileFile {
  ConduitFile ours;
  ConduitFile theirs;
  static HostileFile make() {
    auto created = host::SharedMemory::create(kConduitSize, host::Backing::kWhenTouched);
    VERBENA_ASSERT(created.has_value());
    auto again = host::SharedMemory::adopt(created->fd, kConduitSize);
    VERBENA_ASSERT(again.has_value());
    return {ConduitFile(std::move(created->memory)), ConduitFile(std::move(*again))};
  }
  std::byte* begin() const { return theirs.at(0); }
};

// Into the header, or anywhere.
inline void scribble(const HostileFile& file, TestInput& input) {
  const std::uint32_t at = input.take<std::uint32_t>() % (kConduitSize - 64);
  const std::size_t place = input.one_in(2) ? at % sizeof(ConduitHeader) : at;
  input.fill(file.begin() + place, 1u + input.below(32));
}

// That, or something near, or anything.
inline std::uint32_t wild(TestInput& input, std::uint32_t sensible) {
  const std::uint8_t code = input.take();
  if (code == 0xFF) return input.take<std::uint32_t>();
  return code >= 0xF0 ? sensible + code - 0xF8 : sensible;
}

// A counter or a mark of a conduit that we answer (`in`), or of one that we ask by (`out`).
inline void write_counter(const HostileFile& in, const HostileFile& out, TestInput& input) {
  auto& inbound = *reinterpret_cast<ConduitHeader*>(in.begin());
  auto& outbound = *reinterpret_cast<ConduitHeader*>(out.begin());
  const std::uint32_t value = wild(input, input.below(16));
  switch (input.below(6)) {
    case 0: outbound.executed = value; break;
    case 1: outbound.requests_consumed = value; break;
    case 2: outbound.responder_closed = value; break;
    case 3: inbound.responses_consumed = value; break;
    case 4: inbound.requester_closed = value; break;
    default: inbound.reach[0].length = value; break;
  }
}

// To one of the first requests, or to none.
inline void take_response(ResponseRecord& record, TestInput& input) {
  record.index = wild(input, input.below(16));
  record.offset = wild(input, 0);
  record.piece_length = wild(input, input.take());
  record.answer = input.below(8);
  record.rnr_timer = input.take();
  record.value = input.take();
}

inline std::byte* request_ring(std::byte* conduit) { return conduit + kRingsOffset; }
inline std::byte* response_ring(std::byte* conduit) {
  return conduit + kRingsOffset + std::size_t{kRequestUnits} * kUnit;
}

// Records where a decent peer would write the next one.
class HostileWriter {
 public:
  template <class Record>
  void publish(Record& record, std::byte* ring, TestInput& input) {
    const std::uint32_t units = 1 + input.below(4);
    if ((position_ & (kRequestUnits - 1)) + units > kRequestUnits) position_ = 0;
    std::byte* const at = ring + std::size_t{position_ & (kRequestUnits - 1)} * kUnit;
    record.head.extent =
        static_cast<std::uint16_t>(input.one_in(8) ? input.take<std::uint16_t>() : units);
    record.head.kind =
        input.one_in(8) ? input.take() : static_cast<std::uint8_t>(1 + input.below(8));
    record.head.flags = input.one_in(3) ? input.take() : kFirst | kLast;
    record.head.tag = tag_of(position_);
    std::memcpy(at, static_cast<const void*>(&record), sizeof record);
    position_ += units;
  }

 private:
  std::uint32_t position_ = 0;
};

}  // namespace verbena::local
