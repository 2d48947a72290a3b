// SPDX-License-Identifier: MIT
// How large a session is, and what it is like, from its seed; the same on both sides.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "workload/generator.h"

namespace chaos {

namespace workload = verbena::workload;
using verbena::SeededRandom;
using workload::Service;

constexpr std::array kServices{Service::kReliable, Service::kUnreliable, Service::kDatagrams,
                               Service::kExtended};
constexpr const char* to_string(Service service) {
  switch (service) {
    case Service::kReliable: return "rc";
    case Service::kUnreliable: return "uc";
    case Service::kDatagrams: return "ud";
    case Service::kExtended: return "xrc";
  }
  return "";
}
constexpr std::optional<Service> service_of(std::string_view name) {
  for (const Service service : kServices)
    if (name == to_string(service)) return service;
  return std::nullopt;
}

struct Shape {
  static constexpr std::uint32_t kDepthMax = 16;
  static constexpr std::uint32_t kQueues = 2;   // shared receive queues of XRC
  static constexpr std::uint32_t kWindows = 3;  // memory windows that the peer may take away
  static constexpr std::uint32_t kInlineMax = 64;
  static constexpr std::uint32_t kDatagramMax = 2048;

  std::uint32_t message_max;
  std::uint32_t depth;  // work requests under way, receives posted, places in the window
  bool has_windows;
  bool posts_late;  // receives: whoever sends is told to wait
  workload::Habits habits;

  static Shape of(std::uint64_t seed, std::uint32_t requests, Service service) {
    SeededRandom random(seed);
    static constexpr std::uint32_t kSizes[] = {64, 1024, 4096, 4096, 32768, 131072};
    const auto below = [&](std::uint32_t bound) {
      return static_cast<std::uint32_t>(random.below(bound));
    };
    Shape shape{};
    shape.message_max = kSizes[below(6)];
    if (service == Service::kDatagrams && shape.message_max > kDatagramMax)
      shape.message_max = kDatagramMax;
    shape.depth = 2 + below(kDepthMax - 1);
    shape.has_windows = service == Service::kReliable && random.one_in(3);
    shape.posts_late = random.one_in(6);
    shape.habits = {.service = service,
                    .requests = 1 + below(requests * 2),
                    .length_max = shape.message_max,
                    .inline_max = kInlineMax,
                    .pieces_max = workload::Request::kPiecesMax,
                    .places = shape.depth,
                    .queues = service == Service::kExtended ? kQueues : 1,
                    .unsignaled = true,
                    .fences = true,
                    .invalidates = shape.has_windows,
                    .bad_requests = is_reliable(service) && random.one_in(8)};
    // What carries its own number can be told apart where messages may be lost.
    if (!is_reliable(service)) shape.habits.length_min = sizeof(std::uint32_t);
    return shape;
  }
};

// What one side sends: of each seed two, by role.
inline workload::Generator requests_of(std::uint64_t seed, unsigned role, const Shape& shape) {
  return {seed * 2 + role + 17, shape.habits};
}
// The number of its first packet, often just before the numbers start again.
inline std::uint32_t first_psn(std::uint64_t seed, unsigned role) {
  SeededRandom random(seed * 2 + role + 71);
  const auto number = static_cast<std::uint32_t>(random.next() >> 40);
  return random.one_in(2) ? 0xFFFFFF - number % 60 : number;
}
// The same where packets may be late and queue pairs are used again. Nothing in a packet says of
// which session it is: one of the last session that fits into the numbers of this one is taken for
// this one's. Programs draw their numbers from all 2^24, and CM lets a queue pair rest; here each
// session has numbers of its own, until thousands have passed.
inline std::uint32_t psn_apart(std::uint32_t session, std::uint32_t requests) {
  constexpr std::uint32_t kPackets = 131072 / 1024;  // of a request
  constexpr std::uint32_t kMore = 4;                 // requests, and what comes before its turn
  return session * (requests * 2 + kMore) * kPackets & 0xFFFFFF;
}

}  // namespace chaos
