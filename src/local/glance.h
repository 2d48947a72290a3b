// SPDX-License-Identifier: MIT
// Where news for a queue pair would show first, for those who look without its lock: a few loads
// instead of a locked instruction, in every poll that finds nothing. Whoever holds the lock keeps
// this up to date. To the others it is a hint: what they find is looked at again with the lock
// held, and what they miss while it changes is seen by whoever changes it.
//
// The words lie in conduits. Whoever takes a conduit away shows something else first, and waits for
// those who are looking (nic::Engine).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/prefetch.h"
#include "base/ticks.h"

namespace verbena::local {

class Glance {
 public:
  using Word = std::atomic<std::uint32_t>;
  static constexpr Word kNothing{0};

  struct View {
    const Word* request = &kNothing;  // news when it is this tag; a tag is never 0
    std::uint32_t request_tag = 1;
    const Word* response = &kNothing;  // the same
    std::uint32_t response_tag = 1;
    const Word* executed = &kNothing;  // news when it is after this count
    std::uint32_t executed_known = 0;
    const Word* farewell = &kNothing;  // news when it is not 0
  };

  // Releases the places: whoever looks there finds memory that has been mapped.
  void show(const View& view) {
    request_.store(view.request, std::memory_order_release);
    request_tag_.store(view.request_tag, std::memory_order_relaxed);
    response_.store(view.response, std::memory_order_release);
    response_tag_.store(view.response_tag, std::memory_order_relaxed);
    executed_.store(view.executed, std::memory_order_release);
    executed_known_.store(view.executed_known, std::memory_order_relaxed);
    farewell_.store(view.farewell, std::memory_order_release);
  }

  // Another place where the next request will show.
  // `lines`: how many it will have if it is like the last one.
  void show_request(const Word& request, std::uint32_t tag, std::uint32_t lines) {
    request_.store(&request, std::memory_order_release);
    request_tag_.store(tag, std::memory_order_relaxed);
    request_lines_.store(lines, std::memory_order_relaxed);
  }

  // An acknowledgement of so many came along with a request, and others will: a while they are not
  // looked for elsewhere.
  void show_acknowledged(std::uint32_t executed_known) {
    executed_known_.store(executed_known, std::memory_order_relaxed);
    looks_to_skip_.store(kLooksToSkip, std::memory_order_relaxed);
  }

  // Requests that come are no news for so many ticks. Nothing rests where there are no ticks.
  void rest_from_requests(std::uint64_t how_long) {
    const std::uint64_t now = ticks();
    if (now != 0) rest_until_.store(now + how_long, std::memory_order_relaxed);
  }

  // They have been resting, within so many ticks: somebody takes a stream.
  bool has_rested(std::uint64_t within) const {
    const std::uint64_t rest_until = rest_until_.load(std::memory_order_relaxed);
    return rest_until != 0 && ticks() < rest_until + within;
  }

  // Asks for all lines of the next request: it may be there by now.
  void fetch_request() const {
    const auto* const first =
        reinterpret_cast<const std::byte*>(request_.load(std::memory_order_acquire));
    const std::uint32_t lines = request_lines_.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < lines; ++i)
      prefetch_for_reading(first + i * kUnitBytes);
  }
  // The same of the lines behind the first, which has been looked at.
  void fetch_rest_of_request() const {
    const std::uint32_t lines = request_lines_.load(std::memory_order_relaxed);
    if (lines == 1) return;
    const auto* const first =
        reinterpret_cast<const std::byte*>(request_.load(std::memory_order_acquire));
    for (std::uint32_t i = 1; i < lines; ++i)
      prefetch_for_reading(first + i * kUnitBytes);
  }
  // Of requests only.
  bool has_request() const {
    return look(request_) == request_tag_.load(std::memory_order_relaxed);
  }

  // Something else than requests and acknowledgements.
  bool has_answer_or_farewell() const {
    return (static_cast<int>(look(response_) == response_tag_.load(std::memory_order_relaxed)) |
            static_cast<int>(look(farewell_) != 0)) != 0;
  }

  bool has_news() {
    const std::uint64_t rest_until = rest_until_.load(std::memory_order_relaxed);
    if (rest_until != 0) {
      if (ticks() < rest_until) return has_other_news();
      rest_until_.store(0, std::memory_order_relaxed);
    }
    return static_cast<int>(look(request_) == request_tag_.load(std::memory_order_relaxed)) |
           static_cast<int>(has_other_news());
  }

 private:
  bool has_other_news() {
    const auto has_come = static_cast<int>(has_answer_or_farewell());
    const std::uint32_t skips = looks_to_skip_.load(std::memory_order_relaxed);
    if (skips != 0) {
      looks_to_skip_.store(skips - 1, std::memory_order_relaxed);
      return has_come != 0;
    }
    const std::uint32_t ahead = look(executed_) - executed_known_.load(std::memory_order_relaxed);
    return (has_come | static_cast<int>(static_cast<std::int32_t>(ahead) > 0)) != 0;
  }

  static constexpr std::size_t kUnitBytes = 64;
  // A microsecond or two of polls: longer than a peer takes that answers at once.
  static constexpr std::uint32_t kLooksToSkip = 64;

  using Place = std::atomic<const Word*>;
  static std::uint32_t look(const Place& place) {
    return place.load(std::memory_order_acquire)->load(std::memory_order_relaxed);
  }

  Place request_{&kNothing};
  Place response_{&kNothing};
  Place executed_{&kNothing};
  Place farewell_{&kNothing};
  std::atomic<std::uint32_t> request_tag_{1};
  std::atomic<std::uint32_t> request_lines_{1};
  std::atomic<std::uint32_t> response_tag_{1};
  std::atomic<std::uint32_t> executed_known_{0};
  std::atomic<std::uint32_t> looks_to_skip_{0};
  std::atomic<std::uint64_t> rest_until_{0};  // 0: none
};

}  // namespace verbena::local
