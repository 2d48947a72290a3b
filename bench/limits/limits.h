// SPDX-License-Identifier: MIT
// What the machine itself allows, measured as barely as possible: no library can be faster.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace verbena::bench {

// How many cache lines two cores play with.
enum class Lines : std::uint8_t {
  kOne,  // both write the same one in turn
  kTwo,  // each writes its own and reads the other's, as the two ends of ib_write_lat do
};

// Two processes on two cores, one store each in turn, nothing between them but the line: the ticks
// of each round, there and back. Nothing when the other process or the pinning failed.
std::optional<std::vector<std::uint64_t>> line_rounds(Lines lines, int core, int other_core,
                                                      std::uint64_t rounds);

// How two processes play with packets.
enum class Packets : std::uint8_t {
  kPlain,  // one, from a connected socket to another
  // As RoCEv2 needs it with any peer: one socket for all peers, which hears whom a packet is for
  // and how it was marked, and each message takes the acknowledgement of the last one along
  // (UDP_SEGMENT).
  kTrain,
};

// The same by UDP over the loopback interface, in packets as long as a SEND of 2 bytes over RoCEv2:
// both processes look for packets all the time.
std::optional<std::vector<std::uint64_t>> udp_rounds(Packets packets, int core, int other_core,
                                                     std::uint64_t rounds);

// Packets of one size by UDP over the loopback interface, in trains as long as the system takes
// them (UDP_SEGMENT, UDP_GRO), a few on their way and each confirmed: what there is between two
// sockets for a protocol on top of them, with nothing looked at and nothing copied twice.
struct Stream {
  std::uint64_t bytes = 0;
  std::uint64_t ticks = 0;
};
// Nothing where the system has no trains, the other process or the pinning failed. `packet`: at
// most 65507 bytes.
std::optional<Stream> udp_stream(int core, int other_core, std::uint64_t packet,
                                 std::uint64_t trains);

// The ticks that `times` copies of `size` bytes take, always from the same place to the same place,
// as perftest and ucx_perftest use their buffers. Nothing when there is no memory.
std::optional<std::uint64_t> copy_ticks(std::uint64_t size, std::uint64_t times);

// From here on the calling thread stays on this core.
bool pin(int core);

}  // namespace verbena::bench
