// SPDX-License-Identifier: MIT
// Any MAD that a peer can send: what is accepted means the same after it was written and read
// again.
#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "wire/cm.h"

using namespace verbena::wire;  // NOLINT(google-build-using-namespace): a fuzzer is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto mad = parse_cm(bytes)) {
    VERBENA_ASSERT(size == kMadBytes);
    const auto again = parse_cm(encode_cm(*mad));
    VERBENA_ASSERT(again && again->message == mad->message &&
                   again->transaction_id == mad->transaction_id);
  }
  if (const auto ip_cm = parse_ip_cm(bytes)) {
    std::array<std::byte, IpCm::kBytes> written;
    encode_ip_cm(*ip_cm, written);
    VERBENA_ASSERT(parse_ip_cm(written) == ip_cm);
  }
  return 0;
}
