// SPDX-License-Identifier: MIT
#include "rsocket/stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "base/test_seed.h"
#include "rsocket/settings.h"

namespace verbena::rsocket {
namespace {

constexpr std::uint32_t kBuffer = 64;
constexpr std::uint16_t kCredits = 8;
constexpr std::uint32_t kMaps = 2;

// One end: its memory, and its stream.
struct End {
  std::string buffer = std::string(kBuffer, '\0');
  struct Notes {
    PeerNotes notes;
    std::array<MappedPlace, kMaps> maps;
  } notes{};
  Stream stream{{.receive_bytes = kBuffer,
                 .credits = kCredits,
                 .buffer_address = reinterpret_cast<std::uintptr_t>(buffer.data()),
                 .buffer_key = 1,
                 .notes_address = reinterpret_cast<std::uintptr_t>(&notes),
                 .notes_key = 2,
                 .notes = &notes.notes,
                 .maps = notes.maps}};

  std::span<const std::byte> hello() {
    greeting = stream.hello();
    return std::as_bytes(std::span(&greeting, 1));
  }
  Hello greeting;
};

// Both ends, and a NIC that executes at once. Nothing may go beyond what a key opens.
struct Pair {
  End one;
  End two;

  Pair() {
    EXPECT_TRUE(one.stream.begin(two.hello()));
    EXPECT_TRUE(two.stream.begin(one.hello()));
  }
  static void execute(const Write& write, const void* bytes, End& target) {
    if (write.length > 0) {
      const bool is_data = write.key == 1;
      auto* const begin = is_data ? reinterpret_cast<std::byte*>(target.buffer.data())
                                  : reinterpret_cast<std::byte*>(&target.notes);
      const std::size_t size = is_data ? kBuffer : sizeof target.notes;
      auto* const at = reinterpret_cast<std::byte*>(write.address);
      ASSERT_GE(at, begin);
      ASSERT_LE(at + write.length, begin + size);
      std::memcpy(at, bytes, write.length);
    }
    if (write.immediate) {
      ASSERT_TRUE(target.stream.received(*write.immediate));
    }
  }
  static void tell(End& from, End& to) {
    while (const auto write = from.stream.next_control())
      execute(*write, write->body.data(), to);
  }
  static std::size_t send(End& from, End& to, std::string_view bytes) {
    const auto write = from.stream.send(static_cast<std::uint32_t>(bytes.size()));
    if (!write) return 0;
    execute(*write, bytes.data(), to);
    return write->length;
  }
  static std::string read(End& end, std::uint32_t most) {
    std::string read;
    const std::uint32_t bytes = std::min(most, end.stream.readable());
    for (std::uint32_t i = 0; i < bytes; ++i)
      read += end.buffer[(end.stream.read_offset() + i) % kBuffer];
    end.stream.consumed(bytes);
    return read;
  }
};

TEST(Stream, BringsEveryByteInOrderWhateverTheSizes) {
  Pair pair;
  std::mt19937 generator(static_cast<std::uint32_t>(test_seed()));
  const auto random = [&generator] { return static_cast<std::uint32_t>(generator()); };
  std::string sent;
  std::string got;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (unsigned n = random() % 90; n > 0; --n)
      bytes += static_cast<char>(random());
    sent += bytes.substr(0, Pair::send(pair.one, pair.two, bytes));
    if (random() % 2 == 0) Pair::tell(pair.two, pair.one);
    if (random() % 2 == 0) got += Pair::read(pair.two, random() % 90);
  }
  Pair::tell(pair.two, pair.one);
  got += Pair::read(pair.two, kBuffer);
  EXPECT_EQ(got, sent);
  EXPECT_GT(sent.size(), 100'000U);
}

TEST(Stream, SendsNoMoreThanThereIsRoomOrCredit) {
  Pair pair;
  Pair::tell(pair.two, pair.one);
  EXPECT_EQ(Pair::send(pair.one, pair.two, std::string(100, 'a')), kBuffer / 2);
  EXPECT_EQ(Pair::send(pair.one, pair.two, std::string(100, 'b')), kBuffer / 2);
  EXPECT_EQ(Pair::send(pair.one, pair.two, "c"), 0U);

  Pair small;
  for (int i = 0; i < kCredits; ++i)
    EXPECT_EQ(Pair::send(small.one, small.two, "x"), 1U);
  EXPECT_EQ(Pair::send(small.one, small.two, "x"), 0U);
  Pair::tell(small.two, small.one);
  EXPECT_EQ(Pair::send(small.one, small.two, "x"), 1U);
}

TEST(Stream, RefusesWhatThePeerHasNoRightTo) {
  Pair pair;
  EXPECT_FALSE(pair.one.stream.received(immediate_of(Op::kData, kBuffer / 2 + 1)));
  EXPECT_TRUE(pair.one.stream.received(immediate_of(Op::kData, kBuffer / 2)));
  EXPECT_FALSE(pair.one.stream.received(immediate_of(Op::kData, 1)));
  EXPECT_EQ(pair.one.stream.readable(), kBuffer / 2);
  for (const std::uint32_t operation : {1U, 2U, 3U, 5U})
    EXPECT_FALSE(pair.one.stream.received(operation << 29));
  EXPECT_FALSE(pair.one.stream.received(immediate_of(Op::kControl, 3)));
}

TEST(Stream, RefusesAHelloThatMakesNoSense) {
  End one;
  End two;
  EXPECT_FALSE(one.stream.begin(two.hello().first(39)));
  EXPECT_FALSE(one.stream.begin({}));
  Hello other = two.stream.hello();
  other.version = 2;
  EXPECT_FALSE(one.stream.begin(std::as_bytes(std::span(&other, 1))));
  other = two.stream.hello();
  other.targets.length = be32(0);
  EXPECT_FALSE(one.stream.begin(std::as_bytes(std::span(&other, 1))));
  other.targets.length = be32(0xffffffff);
  EXPECT_FALSE(one.stream.begin(std::as_bytes(std::span(&other, 1))));
  EXPECT_FALSE(one.stream.is_connected());
}

TEST(Stream, SurvivesAnyImmediateAndAnyNotes) {
  std::mt19937 generator(static_cast<std::uint32_t>(test_seed()));
  const auto random = [&generator] { return static_cast<std::uint32_t>(generator()); };
  for (int round = 0; round < 2'000; ++round) {
    Pair pair;
    for (int i = 0; i < 40; ++i) {
      auto* const notes = reinterpret_cast<unsigned char*>(&pair.one.notes);
      notes[random() % sizeof pair.one.notes] = static_cast<unsigned char>(random());
      if (!pair.one.stream.received(random())) break;
      while (pair.one.stream.next_control()) {
      }
      pair.one.stream.send(random());
      pair.one.stream.send_mapped(random(), random());
      EXPECT_LE(pair.one.stream.readable(), kBuffer);
      pair.one.stream.consumed(pair.one.stream.readable());
    }
  }
}

TEST(Stream, WritesOnlyIntoWhatIsMapped) {
  Pair pair;
  std::string memory(100, '\0');
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  EXPECT_FALSE(pair.two.stream.send_mapped(1000, 1));
  const auto index = pair.one.stream.map({1000, {address, 7, 100}});
  ASSERT_TRUE(index);
  EXPECT_FALSE(pair.one.stream.may_send());  // what follows tells that the map is there
  Pair::tell(pair.one, pair.two);
  EXPECT_TRUE(pair.one.stream.may_send());
  EXPECT_FALSE(pair.two.stream.send_mapped(999, 1));
  EXPECT_FALSE(pair.two.stream.send_mapped(1100, 1));
  const auto write = pair.two.stream.send_mapped(1090, 50);
  ASSERT_TRUE(write);
  EXPECT_EQ(write->address, address + 90);
  EXPECT_EQ(write->length, 10U);
  EXPECT_EQ(write->key, 7U);
  EXPECT_FALSE(write->immediate);

  EXPECT_TRUE(pair.one.stream.map({5000, {address, 8, 100}}));
  EXPECT_FALSE(pair.one.stream.map({6000, {address, 9, 100}}));  // the peer has room for two
  pair.one.stream.unmap(*index);
  Pair::tell(pair.one, pair.two);
  EXPECT_FALSE(pair.two.stream.send_mapped(1090, 50));
  EXPECT_TRUE(pair.two.stream.send_mapped(5000, 50));
}

TEST(Stream, EndsInHalves) {
  Pair pair;
  Pair::tell(pair.two, pair.one);
  Pair::send(pair.one, pair.two, "last");
  pair.one.stream.shut_down(Half::kWriting);
  Pair::tell(pair.one, pair.two);
  EXPECT_FALSE(pair.one.stream.is_writable());
  EXPECT_FALSE(pair.two.stream.is_readable());
  EXPECT_TRUE(pair.two.stream.is_connected());
  EXPECT_EQ(Pair::read(pair.two, 10), "last");
  EXPECT_EQ(Pair::send(pair.two, pair.one, "back"), 4U);
  pair.two.stream.shut_down(Half::kWriting);
  Pair::tell(pair.two, pair.one);
  EXPECT_FALSE(pair.two.stream.is_connected());
  EXPECT_FALSE(pair.one.stream.is_connected());
  EXPECT_EQ(Pair::read(pair.one, 10), "back");
}

TEST(Hello, CountsMapsInEightBits) {
  EXPECT_EQ(scale_of(0), 0);
  EXPECT_EQ(unscaled(scale_of(128)), 128U);
  EXPECT_EQ(unscaled(scale_of(300)), 256U);
  EXPECT_EQ(unscaled(scale_of(kMapsMax)), kMapsMax);
}

TEST(Settings, KeepsToWhatCanBeBuilt) {
  EXPECT_EQ(buffer_size(0) % 8192, 0U);
  EXPECT_EQ(buffer_size(UINT64_MAX), kBufferMax);
  EXPECT_EQ(slot_count(1), kSlotsMin);
  EXPECT_EQ(read_settings("/nonexistent").receive_slots, 384U);
}

}  // namespace
}  // namespace verbena::rsocket
