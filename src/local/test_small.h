// SPDX-License-Identifier: MIT
// Two ends that send each other small messages by the short way. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "local/test_pair.h"

namespace verbena::local {

// kTiny: first by the shortest way, as nic::Qp does it.
enum class Ways : std::uint8_t { kTiny, kSmallOnly };

class Small : public ::testing::TestWithParam<Ways> {
 protected:
  Small() : a(qp::QpType::kRc, kA), b(qp::QpType::kRc, kB) {
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
    a_key = a.add(bytes.data(), bytes.size(), memory::kLocalWrite);
    b_key = b.add(taken.data(), taken.size(), memory::kLocalWrite);
    a.takes_small = b.takes_small = false;
    a.ready(kB);
    b.ready(kA);
    requests_to_b = connect(a, b);
  }
  Sge sge(End& end, std::uint32_t length, std::size_t at = 0) {
    const auto* const memory = &end == &a ? bytes.data() : taken.data();
    return {reinterpret_cast<std::uint64_t>(memory + at), length, &end == &a ? a_key : b_key};
  }
  bool has_tiny() const { return GetParam() == Ways::kTiny; }
  // As nic::Qp does it.
  bool send(End& end, std::uint32_t length, bool measures_pace = false, std::size_t at = 0) {
    qp::SendWindow& window = end.pair.window();
    if (!window.is_open()) return false;
    const qp::SmallRequest request{.wr_id = 7, .sge = sge(end, length, at)};
    const auto* const from = reinterpret_cast<const std::byte*>(request.sge.address);
    const bool is_first_out = window.oldest() == window.open_index();
    const bool is_tiny = has_tiny() && length - 1 < kTinyMax &&
                         end.carrier.send_tiny({.index = window.open_index(),
                                                .from = from,
                                                .length = length,
                                                .is_first_out = is_first_out,
                                                .measures_pace = measures_pace});
    const bool sent = is_tiny || end.carrier.send_at_once({.index = window.open_index(),
                                                           .from = from,
                                                           .source = request.sge,
                                                           .is_first_out = is_first_out,
                                                           .measures_pace = measures_pace});
    if (!sent) return false;
    tiny_sent += is_tiny;
    window.write_down(0, request.wr_id, request.flags, request.sge);
    window.issued_at_once();
    return true;
  }
  void receive(End& end, std::uint32_t length = 64, std::size_t at = 0) {
    const Sge place = sge(end, length, at);
    EXPECT_TRUE(end.pair.post_receive(5, {&place, 1}).has_value());
  }
  std::uint32_t take(End& end, std::uint32_t most = 1) {
    const bool is_tiny =
        has_tiny() && most == 1 && end.carrier.take_tiny(end.pair.responder(), end.pair.window());
    tiny_taken += is_tiny;
    return is_tiny ? 1 : end.carrier.take_small(end.pair.responder(), end.pair.window(), most, now);
  }
  // The first message in RTS is like any other; the general way sees to the rest.
  void begin() {
    for (End* const each : {&a, &b}) {
      receive(*each);
      ASSERT_TRUE(send(each == &a ? b : a, 1));
      each->turn(now);
    }
    a.turn(now);
    b.turn(now);
    ASSERT_EQ(a.poll().size(), 2u);
    ASSERT_EQ(b.poll().size(), 2u);
  }

  std::byte* requests_to_b;
  std::uint32_t tiny_sent = 0;
  std::uint32_t tiny_taken = 0;
  std::array<std::uint8_t, 512> bytes{};
  std::array<std::uint8_t, 512> taken{};
  End a, b;
  MemoryKey a_key, b_key;
  Instant now = Instant::at(1'000'000'000);
};

}  // namespace verbena::local
