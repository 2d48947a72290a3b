// SPDX-License-Identifier: MIT
// A million connections, ten thousand of them open at once: what is needed for the first fifty
// thousand is enough for all.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <deque>

#include "cm/test_world.h"

namespace verbena::cm {
namespace {

constexpr unsigned kOpen = 10'000;
// A tenth of them where each takes ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
constexpr bool kIsSlow = true;
#elif defined(__has_feature)
constexpr bool kIsSlow = __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
constexpr bool kIsSlow = false;
#endif
constexpr unsigned kConnections = kIsSlow ? 100'000 : 1'000'000;
constexpr unsigned kSettled = 50'000;  // so many have been enough for all memory that it takes
constexpr Duration kBetween = Duration::microseconds(100);  // 10,000 a second

class Crowd {
 public:
  Crowd() { EXPECT_TRUE(b_.listen({.service_id = kService})); }

  void connect_one() {
    const wire::Req req = request_for(host_gid(1), host_gid(2), {2 + next_qp_++ % 0xFF'0000});
    const auto id = a_.connect({.local = host_gid(1), .remote = host_gid(2)}, req, 0, now_);
    ASSERT_TRUE(id);
    settle();
    open_.push_back(*id);
    if (open_.size() > kOpen) {
      ASSERT_TRUE(a_.disconnect(open_.front(), {}, now_));
      open_.pop_front();
      settle();
    }
    now_ = now_ + kBetween;
    a_.advance(now_);
    b_.advance(now_);
  }
  std::size_t memory() const { return a_.memory_bytes() + b_.memory_bytes(); }
  unsigned established() const { return established_; }
  unsigned ended() const { return ended_; }
  const Engine& a() const { return a_; }

 private:
  void settle() {
    for (bool is_busy = true; is_busy;) {
      const bool first = turn(a_, b_);
      is_busy = turn(b_, a_) || first;
    }
  }
  bool turn(Engine& from, Engine& to) {
    bool is_busy = false;
    while (from.next_mad(mad_)) {
      to.receive({.local = mad_.route.remote, .remote = mad_.route.local}, mad_.bytes, now_);
      is_busy = true;
    }
    while (from.next_event(event_)) {
      hear(from, event_);
      is_busy = true;
    }
    return is_busy;
  }
  void hear(Engine& engine, const Event& event) {
    if (event.kind == EventKind::kRequest) {
      EXPECT_TRUE(engine.accept(event.id, {.local_qp = {2 + next_qp_ % 0xFF'0000}}, now_));
    } else if (event.kind == EventKind::kReply) {
      EXPECT_TRUE(engine.confirm(event.id, {}, now_));
    } else if (event.kind == EventKind::kEstablished) {
      ++established_;
    } else if (event.kind == EventKind::kDisconnected) {
      ++ended_;
      engine.release(event.id, now_);
    }
  }

  SeededRandom random_{1};
  Engine a_{{.slot = {1}}, random_};
  Engine b_{{.slot = {2}}, random_};
  Instant now_;
  std::uint32_t next_qp_ = 0;
  std::deque<CommId> open_;
  unsigned established_ = 0;
  unsigned ended_ = 0;
  Mad mad_;
  Event event_;
};

TEST(CmMillion, NothingGrowsAfterTheFirstFiftyThousand) {
  const auto begin = std::chrono::steady_clock::now();
  Crowd crowd;
  std::size_t memory = 0;
  for (unsigned i = 0; i < kConnections && !HasFailure(); ++i) {
    crowd.connect_one();
    if (i == kSettled) memory = crowd.memory();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%u connections in %.1f s; %.1f MiB for two engines, %zu connections known\n",
              kConnections, took.count(), static_cast<double>(crowd.memory()) / (1 << 20),
              crowd.a().connections());
  EXPECT_EQ(crowd.established(), kConnections);
  EXPECT_EQ(crowd.ended(), 2 * (kConnections - kOpen));
  EXPECT_EQ(crowd.memory(), memory);
}

}  // namespace
}  // namespace verbena::cm
