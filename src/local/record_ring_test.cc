// SPDX-License-Identifier: MIT
#include "local/record_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>

#include "base/random.h"
#include "local/test_length.h"

namespace verbena::local {
namespace {

constexpr std::uint32_t kUnits = 64;

class Ring : public ::testing::Test {
 protected:
  RingWords words() { return {&consumed, &writer_waits}; }
  RecordHead& head_at(std::uint32_t place) {
    return *reinterpret_cast<RecordHead*>(memory + place * kUnit);
  }

  alignas(kUnit) std::byte memory[kUnits * kUnit] = {};
  std::atomic<std::uint32_t> consumed{0};
  std::atomic<std::uint32_t> writer_waits{0};
  RingWriter writer{memory, kUnits, words()};
  RingReader reader{memory, kUnits, words()};
  Unit unit;
  const std::byte* payload = nullptr;
  std::uint32_t units = 0;
};

TEST_F(Ring, IsEmptyAtFirst) {
  EXPECT_FALSE(reader.has_record());
  EXPECT_FALSE(reader.peek(unit, payload, units));
  EXPECT_FALSE(reader.is_broken());
}

TEST_F(Ring, ShowsARecordOnlyWhenItIsPublished) {
  ASSERT_NE(writer.reserve(2), nullptr);
  EXPECT_FALSE(reader.peek(unit, payload, units));
  writer.publish(2, 7, 3);
  ASSERT_TRUE(reader.peek(unit, payload, units));
  EXPECT_EQ(units, 2u);
  EXPECT_EQ(std::to_integer<int>(unit.bytes[offsetof(RecordHead, kind)]), 7);
  EXPECT_EQ(std::to_integer<int>(unit.bytes[offsetof(RecordHead, flags)]), 3);
}

TEST_F(Ring, ShowsTogetherWhatIsHeld) {
  const auto put = [&](std::uint32_t of, std::uint8_t kind) {
    ASSERT_NE(writer.reserve(of), nullptr);
    writer.publish(of, kind, 0);
  };
  const auto expect = [&](std::uint32_t of, int kind, std::uint32_t followers) {
    ASSERT_TRUE(reader.peek(unit, payload, units));
    EXPECT_EQ(units, of);
    EXPECT_EQ(std::to_integer<int>(unit.bytes[offsetof(RecordHead, kind)]), kind);
    std::uint16_t extent = 0;
    std::memcpy(&extent, unit.bytes + offsetof(RecordHead, extent), sizeof extent);
    EXPECT_EQ(followers_of(extent), followers);
    EXPECT_EQ(reader.fetch_row(extent), of);
    reader.consume(units);
  };
  for (std::uint8_t lap = 1; lap <= 20; ++lap) {
    writer.hold();
    put(1, lap);
    EXPECT_FALSE(reader.has_record());
    put(3, 2);
    put(1, 3);
    EXPECT_FALSE(reader.has_record());
    writer.release();
    // A filler of a unit or more may lie before one of them.
    if (lap < 8) {
      expect(1, lap, 4);
      expect(3, 2, 0);
      expect(1, 3, 0);
    } else {
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(reader.peek(unit, payload, units));
        EXPECT_EQ(units, i == 1 ? 3u : 1u);
        reader.consume(units);
      }
    }
    EXPECT_FALSE(reader.has_record());
    reader.give_back();
    writer.release();
    put(1, 9);
    expect(1, 9, 0);
    reader.give_back();
  }
  EXPECT_FALSE(reader.is_broken());
}

TEST_F(Ring, ShowsALongRowInParts) {
  alignas(kUnit) std::byte larger[256 * kUnit] = {};
  RingWriter to(larger, 256, words());
  RingReader from(larger, 256, words());
  to.hold();
  for (std::uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(from.has_record(), i > kFollowersMost) << i;
    ASSERT_NE(to.reserve(1), nullptr);
    to.publish(1, 1, 0);
  }
  std::uint32_t seen = 0;
  const auto look = [&] {
    for (; from.peek(unit, payload, units); ++seen)
      from.consume(units);
  };
  look();
  EXPECT_EQ(seen, kFollowersMost + 1);
  to.release();
  look();
  EXPECT_EQ(seen, 100u);
}

// Where there is no room for more, what is held is all that makes some.
TEST_F(Ring, ShowsWhatIsHeldWhenItIsFull) {
  unsigned written = 0;
  writer.hold();
  for (; writer.reserve(4); ++written)
    writer.publish(4, 1, 0);
  EXPECT_EQ(writer_waits.load(), 1u);
  writer.release();
  for (; reader.peek(unit, payload, units); --written)
    reader.consume(units);
  EXPECT_EQ(written, 0u);
  EXPECT_TRUE(reader.give_back());
  EXPECT_NE(writer.reserve(4), nullptr);
}

TEST_F(Ring, HoldsTheWriterBackUntilUnitsAreReturned) {
  unsigned written = 0;
  while (writer.reserve(4)) {
    writer.publish(4, 1, 0);
    ++written;
  }
  EXPECT_EQ(written, (kUnits - kClearAhead) / 4) << "some units are kept for cleared tags";
  EXPECT_EQ(writer_waits.load(), 1u);
  ASSERT_TRUE(reader.peek(unit, payload, units));
  reader.consume(units);
  EXPECT_EQ(writer.reserve(4), nullptr) << "consumed, but not returned";
  EXPECT_TRUE(reader.give_back()) << "the writer waits: its bell must ring";
  EXPECT_FALSE(reader.give_back()) << "once";
  EXPECT_NE(writer.reserve(4), nullptr);
  EXPECT_FALSE(writer.is_broken());
}

TEST_F(Ring, OldPayloadIsNeverTakenForARecord) {
  // A first lap whose payload looks like the tags of the second one.
  for (std::uint32_t i = 0; i < kUnits / 16; ++i) {
    std::byte* record = writer.reserve(16);
    ASSERT_NE(record, nullptr);
    for (std::uint32_t u = 1; u < 16; ++u) {
      const std::uint32_t tag = tag_of(kUnits + i * 16 + u);
      std::memcpy(record + u * kUnit, &tag, sizeof tag);
    }
    writer.publish(16, 1, 0);
    ASSERT_TRUE(reader.peek(unit, payload, units));
    reader.consume(units);
    reader.give_back();
  }
  for (std::uint32_t i = 0; i < kUnits - 1; ++i) {
    EXPECT_FALSE(reader.has_record()) << "at unit " << i << " of the second lap";
    ASSERT_NE(writer.reserve(1), nullptr);
    writer.publish(1, 1, 0);
    ASSERT_TRUE(reader.peek(unit, payload, units));
    reader.consume(units);
    reader.give_back();
  }
}

TEST_F(Ring, NorIsThatOfRecordsOfAnyLength) {
  SeededRandom random(7);
  std::uint32_t position = 0;
  for (int i = 0; i < 10'000; ++i) {
    const auto length = static_cast<std::uint32_t>(1 + random.below(kUnits / 4));
    std::byte* record = writer.reserve(length);
    ASSERT_NE(record, nullptr);
    // A filler may have gone before.
    const auto place = static_cast<std::uint32_t>((record - memory) / kUnit);
    position += (place - position) & (kUnits - 1);
    for (std::uint32_t u = 1; u < length; ++u) {
      const std::uint32_t tag = tag_of(position + kUnits + u);
      std::memcpy(record + u * kUnit, &tag, sizeof tag);
    }
    writer.publish(length, 1, 0);
    position += length;
    ASSERT_TRUE(reader.peek(unit, payload, units));
    ASSERT_EQ(units, length);
    reader.consume(units);
    reader.give_back();
    ASSERT_FALSE(reader.has_record()) << "after record " << i;
  }
  EXPECT_FALSE(reader.is_broken());
}

TEST_F(Ring, NorIsPayloadThatWasNeverPublished) {
  std::byte* record = writer.reserve(5);
  ASSERT_NE(record, nullptr);
  for (std::uint32_t u = 1; u < 5; ++u) {
    const std::uint32_t tag = tag_of(u);
    std::memcpy(record + u * kUnit, &tag, sizeof tag);
  }
  for (int i = 0; i < 10; ++i) {
    ASSERT_NE(writer.reserve(1), nullptr);
    writer.publish(1, 1, 0);
    ASSERT_TRUE(reader.peek(unit, payload, units));
    reader.consume(units);
    ASSERT_FALSE(reader.has_record()) << "after record " << i;
  }
}

TEST_F(Ring, PassesAFillerOnlyWithTheRecordBehindIt) {
  static_assert(kUnits % 3 != 0);
  for (std::uint32_t i = 0; i < kUnits / 3; ++i) {
    ASSERT_NE(writer.reserve(3), nullptr);
    writer.publish(3, 7, 0);
    EXPECT_FALSE(reader.pass_filler()) << "a record is none";
    ASSERT_TRUE(reader.peek(unit, payload, units));
    reader.consume(units);
    reader.give_back();
  }
  EXPECT_FALSE(reader.pass_filler()) << "there is nothing";
  ASSERT_NE(writer.reserve(3), nullptr);  // the filler is published, its record not yet
  ASSERT_TRUE(reader.has_record());
  EXPECT_FALSE(reader.pass_filler());
  writer.publish(3, 9, 0);
  ASSERT_TRUE(reader.pass_filler());
  const std::byte* const front = reader.front();
  ASSERT_NE(front, nullptr);
  EXPECT_EQ(std::to_integer<int>(front[offsetof(RecordHead, kind)]), 9);
  EXPECT_EQ(reader.last_lines(), 3u) << "of the last record, not of a filler";
}

TEST_F(Ring, PassesNoFillerOfAWrongLength) {
  for (std::uint32_t i = 0; i < kUnits / 3; ++i) {
    ASSERT_NE(writer.reserve(3), nullptr);
    writer.publish(3, 7, 0);
    ASSERT_TRUE(reader.peek(unit, payload, units));
    reader.consume(units);
    reader.give_back();
  }
  ASSERT_NE(writer.reserve(3), nullptr);
  writer.publish(3, 9, 0);
  head_at(kUnits / 3 * 3).extent += 1;
  EXPECT_FALSE(reader.pass_filler());
  EXPECT_FALSE(reader.peek(unit, payload, units));
  EXPECT_TRUE(reader.is_broken());
}

TEST_F(Ring, RefusesARecordThatReachesPastTheEnd) {
  for (const std::uint16_t claimed :
       {std::uint16_t{0}, std::uint16_t{kUnits + 1}, std::uint16_t{0xffff}}) {
    RingReader victim{memory, kUnits, words()};
    head_at(0).extent = claimed;
    head_at(0).kind = 1;
    head_at(0).tag.store(tag_of(0));
    EXPECT_FALSE(victim.peek(unit, payload, units));
    EXPECT_TRUE(victim.is_broken()) << claimed;
  }
}

TEST_F(Ring, RefusesACountThatRunsAheadOfTheWriterOrBack) {
  ASSERT_NE(writer.reserve(1), nullptr);
  writer.publish(1, 1, 0);
  consumed.store(1000);
  while (writer.reserve(8))
    writer.publish(8, 1, 0);
  EXPECT_TRUE(writer.is_broken());
}

// Two threads, random sizes, every byte checked.
class RingTraffic : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RingTraffic, EveryRecordArrivesOnceInOrderAndWhole) {
  const std::uint32_t ring_units = GetParam();
  const auto memory = std::make_unique<Unit[]>(ring_units);
  std::memset(memory.get(), 0, ring_units * kUnit);
  std::atomic<std::uint32_t> consumed{0};
  std::atomic<std::uint32_t> writer_waits{0};
  const RingWords words{&consumed, &writer_waits};
  const std::uint64_t records = (is_long() ? 2'000'000 : 200'000) / ring_units;

  std::thread producer([&] {
    SeededRandom random(ring_units);
    RingWriter writer(reinterpret_cast<std::byte*>(memory.get()), ring_units, words);
    for (std::uint64_t n = 0; n < records; ++n) {
      const auto units = static_cast<std::uint32_t>(1 + random.below(ring_units / 4));
      std::byte* record = nullptr;
      while (!(record = writer.reserve(units)))
        std::this_thread::yield();
      std::memcpy(record + sizeof(RecordHead), &n, sizeof n);
      std::memset(record + kUnit, static_cast<int>(n & 0xff), (units - 1) * kUnit);
      writer.publish(units, 1, 0);
    }
    EXPECT_FALSE(writer.is_broken());
  });

  RingReader reader(reinterpret_cast<std::byte*>(memory.get()), ring_units, words);
  SeededRandom random(ring_units);
  std::uint64_t damaged = 0;
  for (std::uint64_t n = 0; n < records; ++n) {
    const auto wanted = static_cast<std::uint32_t>(1 + random.below(ring_units / 4));
    Unit unit;
    const std::byte* payload = nullptr;
    std::uint32_t units = 0;
    while (!reader.peek(unit, payload, units)) {
      reader.give_back();
      std::this_thread::yield();
    }
    std::uint64_t number = 0;
    std::memcpy(&number, unit.bytes + sizeof(RecordHead), sizeof number);
    damaged += number != n || units != wanted;
    for (std::size_t i = 0; i < (units - 1) * kUnit; ++i)
      damaged += payload[i] != static_cast<std::byte>(n);
    reader.consume(units);
  }
  producer.join();
  EXPECT_EQ(damaged, 0u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RingTraffic, ::testing::Values(64u, 256u, 2048u));

}  // namespace
}  // namespace verbena::local
