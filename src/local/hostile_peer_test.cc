// SPDX-License-Identifier: MIT
// A peer that writes whatever it likes into the memory it shares with us: records with wild fields,
// wild counters, noise. We may break the connection off; we may not crash, hang, or touch memory
// that the peer was not granted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "local/test_pair.h"

namespace verbena::local {
namespace {

constexpr QpNum kVictim{0x4005};
constexpr QpNum kAttacker{0x8007};
constexpr std::uint32_t kGranted =
    memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
constexpr std::size_t kPage = 4096;

// Three pages; only the one in the middle is a region. Also one region that grants nothing to
// peers.
struct Guarded {
  alignas(kPage) std::byte memory[3 * kPage];
  alignas(kPage) std::byte secret[kPage];

  Guarded() {
    std::fill(std::begin(memory), std::end(memory), std::byte{0x5a});
    std::fill(std::begin(secret), std::end(secret), std::byte{0xa5});
  }
  std::byte* middle() { return memory + kPage; }
  bool is_untouched_around() const {
    const auto is = [](std::byte value) { return [value](std::byte b) { return b == value; }; };
    return std::all_of(memory, memory + kPage, is(std::byte{0x5a})) &&
           std::all_of(memory + 2 * kPage, memory + 3 * kPage, is(std::byte{0x5a})) &&
           std::all_of(std::begin(secret), std::end(secret), is(std::byte{0xa5}));
  }
};

// A value near something that matters.
std::uint64_t wild(SeededRandom& random, std::uint64_t sensible) {
  switch (random.below(8)) {
    case 0: return 0;
    case 1: return ~std::uint64_t{0};
    case 2: return sensible + 1;
    case 3: return sensible - 1;
    case 4: return std::uint64_t{1} << random.below(64);
    case 5: return random.next();
    default: return sensible;
  }
}

class Hostile : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  Hostile() : victim(qp::QpType::kRc, kVictim) {
    region = victim.add(guarded->middle(), kPage, kGranted);
    secret = victim.add(guarded->secret, kPage, memory::kLocalWrite);
    victim.ready(kAttacker);
    SharedConduit inbound = make_conduit(1);
    SharedConduit outbound = make_conduit(2);
    requests_shared = std::move(inbound.second);
    responses_shared = std::move(outbound.second);
    victim.carrier.offer(std::move(inbound.first), {&victim.doorbell, 5});
    victim.carrier.attach(std::move(outbound.first));
    requests = requests_shared.request_writer();
    responses = responses_shared.response_writer();
  }

  void write_request(SeededRandom& random) {
    const auto units = static_cast<std::uint32_t>(1 + random.below(4));
    auto* record = reinterpret_cast<RequestRecord*>(requests.reserve(units));
    if (!record) return;
    const std::uint64_t length = random.below(200);
    record->index = static_cast<std::uint32_t>(wild(random, index));
    record->epoch = static_cast<std::uint32_t>(random.below(2));
    record->total_length = static_cast<std::uint32_t>(wild(random, length));
    record->piece_length = static_cast<std::uint32_t>(wild(random, length));
    record->offset = static_cast<std::uint32_t>(wild(random, 0));
    record->remote_address =
        wild(random, reinterpret_cast<std::uint64_t>(guarded->middle()) + random.below(kPage));
    record->remote_key =
        static_cast<std::uint32_t>(random.one_in(4) ? secret.value : wild(random, region.value));
    record->atomic.compare_add = random.next();
    const auto kind =
        static_cast<std::uint8_t>(random.one_in(20) ? random.next() : 1 + random.below(5));
    const auto flags = static_cast<std::uint8_t>(random.one_in(4) ? random.next() : kFirst | kLast);
    requests.publish(units, kind, flags);
    ++index;
  }

  void write_response(SeededRandom& random) {
    const auto units = static_cast<std::uint32_t>(1 + random.below(4));
    auto* record = reinterpret_cast<ResponseRecord*>(responses.reserve(units));
    if (!record) return;
    record->index = static_cast<std::uint32_t>(wild(random, random.below(16)));
    record->offset = static_cast<std::uint32_t>(wild(random, 0));
    record->piece_length = static_cast<std::uint32_t>(wild(random, random.below(300)));
    record->answer = static_cast<std::uint8_t>(random.below(8));
    record->rnr_timer = static_cast<std::uint8_t>(random.next());
    record->value = random.next();
    responses.publish(units, static_cast<std::uint8_t>(random.below(5)), 0);
    if (random.one_in(4)) {
      responses_shared.header().executed.store(
          static_cast<std::uint32_t>(wild(random, random.below(16))));
    }
  }

  void post_work(SeededRandom& random) {
    const auto kind = static_cast<queues::SendOpcode>(random.below(8));
    const std::uint32_t length = kind >= queues::SendOpcode::kCompareSwap
                                     ? 8
                                     : static_cast<std::uint32_t>(random.below(kPage));
    const Sge sge{reinterpret_cast<std::uint64_t>(guarded->middle()), length, region};
    qp::SendRequest r;
    r.opcode = kind;
    r.remote_address = 0x1000;
    r.sges = {&sge, 1};
    if (victim.pair.post_send(r)) ++posted;
  }

  // Every posted request ends once, whatever the peer does.
  void expect_all_end() {
    qp::QpAttributes attributes;
    attributes.state = qp::QpState::kError;
    ASSERT_TRUE(victim.pair.modify(attributes, qp::kState));
    victim.turn(now);
    for (;;) {
      const auto some = victim.poll();
      if (some.empty()) break;
      completed += std::count_if(some.begin(), some.end(), [](const queues::Completion& c) {
        return c.kind < queues::CompletionKind::kReceive;
      });
    }
    EXPECT_EQ(completed, posted);
  }

  std::unique_ptr<Guarded> guarded = std::make_unique<Guarded>();
  End victim;
  MemoryKey region;
  MemoryKey secret;
  Conduit requests_shared;
  Conduit responses_shared;
  RingWriter requests;
  RingWriter responses;
  std::uint32_t index = 0;
  std::int64_t posted = 0;
  std::int64_t completed = 0;
  Instant now = Instant::at(1'000'000'000);
};

TEST_P(Hostile, RecordsWithWildFields) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  SeededRandom random(GetParam());
  for (int step = 0; step < 300; ++step) {
    now = now + Duration::microseconds(100);
    if (random.one_in(3)) post_work(random);
    if (random.one_in(2)) write_request(random);
    if (random.one_in(2)) write_response(random);
    if (random.one_in(5)) {
      const Sge sge{reinterpret_cast<std::uint64_t>(guarded->middle()), 128, region};
      static_cast<void>(victim.pair.post_receive(1, {&sge, 1}));
    }
    victim.turn(now);
  }
  EXPECT_TRUE(guarded->is_untouched_around());
  expect_all_end();
}

TEST_P(Hostile, NoiseInTheWholeConduit) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  SeededRandom random(GetParam());
  const auto scribble = [&](const Conduit& conduit) {
    auto* memory = reinterpret_cast<std::byte*>(&conduit.header());
    const bool in_header = random.one_in(2);
    const std::size_t place =
        in_header ? random.below(sizeof(ConduitHeader)) : kRingsOffset + random.below(8192);
    const std::uint64_t value = random.next();
    std::memcpy(memory + place / 8 * 8, &value, sizeof value);
  };
  for (int step = 0; step < 300; ++step) {
    now = now + Duration::microseconds(100);
    if (random.one_in(3)) post_work(random);
    if (random.one_in(2)) write_request(random);
    if (random.one_in(2)) write_response(random);
    for (int i = 0; i < 4; ++i)
      scribble(random.one_in(2) ? requests_shared : responses_shared);
    victim.turn(now);
  }
  EXPECT_TRUE(guarded->is_untouched_around());
  expect_all_end();
}

// Payload that is said to be lent and to lie nowhere: nothing that lies behind the record in our
// memory is taken for it.
class HostileLender : public Hostile {};

TEST_P(HostileLender, LentPayloadWithoutASourceIsNotTaken) {
  auto* const record = reinterpret_cast<RequestRecord*>(requests.reserve(2));
  ASSERT_TRUE(record);
  record->index = 0;
  record->epoch = 0;
  record->total_length = record->piece_length = static_cast<std::uint32_t>(GetParam());
  record->offset = 0;
  record->remote_address = reinterpret_cast<std::uint64_t>(guarded->middle());
  record->remote_key = region.value;
  const auto before = std::vector<std::byte>(guarded->middle(), guarded->middle() + kPage);
  requests.publish(2, static_cast<std::uint8_t>(RequestKind::kWrite), kFirst | kLast | kLent);
  victim.turn(now);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), guarded->middle()));
  EXPECT_TRUE(guarded->is_untouched_around());
}

INSTANTIATE_TEST_SUITE_P(Lengths, HostileLender,
                         ::testing::Values(std::uint64_t{1}, kPage, std::uint64_t{kLentMax}));
INSTANTIATE_TEST_SUITE_P(Seeds, Hostile, ::testing::Range(std::uint64_t{1}, std::uint64_t{201}));

}  // namespace
}  // namespace verbena::local
