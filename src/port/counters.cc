// SPDX-License-Identifier: MIT
#include "port/counters.h"

#include <iterator>

namespace verbena::port {
namespace {

constexpr const char* kNames[] = {
    "sent_trains",      "sent_packets",    "sent_bytes",      "sent_uncopied",  "send_full",
    "dropped_too_long", "dropped_refused", "dropped_offload", "dropped_broken", "received_batches",
    "received_packets", "received_bytes",  "overflowed",      "truncated",      "handed_over",
    "dropped_foreign",  "dropped_nobody",  "receive_errors",  "lost",           "duplicated",
    "reordered",        "delayed",         "corrupted",       "marked",         "queue_drops",
};
static_assert(std::size(kNames) == kCountEnd);

}  // namespace

const char* to_string(Count count) {
  const auto i = static_cast<std::size_t>(count);
  return i < kCountEnd ? kNames[i] : "?";
}

}  // namespace verbena::port
