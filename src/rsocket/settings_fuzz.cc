// SPDX-License-Identifier: MIT
// Any text in the files of /etc/rdma/rsocket: what comes of it can be built. A line of the input is
// the content of the file that it begins with.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "rsocket/settings.h"
#include "rsocket/stream.h"

using namespace verbena::rsocket;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

void expect_buildable(const Settings& settings) {
  for (const std::uint32_t bytes : {settings.receive_bytes, settings.send_bytes})
    VERBENA_ASSERT(bytes >= kBufferMin && bytes <= kBufferMax && bytes % (2 * 4096) == 0);
  for (const std::uint32_t slots : {settings.send_slots, settings.receive_slots})
    VERBENA_ASSERT(slots >= kSlotsMin && slots <= kSlotsMax);
  VERBENA_ASSERT(settings.map_slots <= kMapsMax);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  Settings settings;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string_view file = line.substr(0, space);
    const std::string_view text = line.substr(std::min(space + 1, line.size()));
    read_setting(file, text, settings);
    expect_buildable(settings);
    // What holds now says the same of itself.
    Settings again = settings;
    read_setting("mem_default", std::to_string(settings.receive_bytes) + "\n", again);
    read_setting("sqsize_default", std::to_string(settings.send_slots) + " ", again);
    read_setting("iomap_size", std::to_string(settings.map_slots), again);
    VERBENA_ASSERT(again.receive_bytes == settings.receive_bytes &&
                   again.send_slots == settings.send_slots &&
                   again.map_slots == settings.map_slots);
  }
  return 0;
}
