// SPDX-License-Identifier: MIT
#include "raw/toeplitz.h"

#include <cstring>

#include "base/assert.h"

namespace verbena::raw {
namespace {

constexpr std::size_t kInputMax = kHashKeyBytes - sizeof(std::uint32_t);

class Input {
 public:
  void add(const void* from, std::size_t size) {
    std::memcpy(bytes_.data() + size_, from, size);
    size_ += size;
  }
  std::span<const std::uint8_t> bytes() const { return {bytes_.data(), size_}; }

 private:
  std::array<std::uint8_t, kInputMax> bytes_{};
  std::size_t size_ = 0;
};

struct Chosen {
  bool source;
  bool destination;
};

Chosen chosen_addresses(Network network, std::uint64_t fields) {
  switch (network) {
    case Network::kOther: return {};
    case Network::kIpv4:
      return {(fields & kHashSourceIpv4) != 0, (fields & kHashDestinationIpv4) != 0};
    case Network::kIpv6:
      return {(fields & kHashSourceIpv6) != 0, (fields & kHashDestinationIpv6) != 0};
  }
  return {};
}

Chosen chosen_ports(Transport transport, std::uint64_t fields) {
  switch (transport) {
    case Transport::kOther: return {};
    case Transport::kTcp:
      return {(fields & kHashSourceTcp) != 0, (fields & kHashDestinationTcp) != 0};
    case Transport::kUdp:
      return {(fields & kHashSourceUdp) != 0, (fields & kHashDestinationUdp) != 0};
  }
  return {};
}

}  // namespace

// The 32 bits of the key from each bit on that is set in the input, added without carry.
std::uint32_t toeplitz(const HashKey& key, std::span<const std::uint8_t> input) {
  VERBENA_ASSERT(input.size() <= kInputMax);
  std::uint64_t window = 0;  // its upper half: the key from the present bit on
  for (unsigned i = 0; i < 8; ++i)
    window = window << 8 | key[i];
  std::uint32_t result = 0;
  for (std::size_t i = 0; i < input.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      if (input[i] & 0x80u >> bit) result ^= static_cast<std::uint32_t>(window >> 32);
      window <<= 1;
    }
    if (i + 8 < key.size()) window |= key[i + 8];
  }
  return result;
}

std::uint32_t hash_of(const Key& frame, const HashConfig& config) {
  const std::size_t address = frame.network == Network::kIpv4 ? 4 : 16;
  const Chosen addresses = chosen_addresses(frame.network, config.fields);
  const Chosen ports = chosen_ports(frame.transport, config.fields);
  Input input;
  if (addresses.source) input.add(frame.source_ip.data(), address);
  if (addresses.destination) input.add(frame.destination_ip.data(), address);
  if (ports.source) input.add(&frame.source_port, sizeof frame.source_port);
  if (ports.destination) input.add(&frame.destination_port, sizeof frame.destination_port);
  return toeplitz(config.key, input.bytes());
}

}  // namespace verbena::raw
