// SPDX-License-Identifier: MIT
#include "port/page_sender.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "host/raw_memory.h"
#include "port/connected_ids.h"
#include "port/test_udp_port.h"

namespace verbena::port {
namespace {

// Whole packets of one size, in pages of their own.
class Pages {
 public:
  Pages()
      : bytes_(static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
               kBytes) {}
  ~Pages() { munmap(bytes_.data(), kBytes); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  Train train(const Route& route, Lane* lane, std::uint32_t size, std::uint32_t count,
              std::uint32_t first = 0) {
    for (std::uint32_t i = 0; i < count; ++i)
      write_packet(bytes_.subspan(std::size_t{i} * size, size), route.slot, first + i);
    return {route, bytes_.first(std::size_t{count} * size), size, 0, lane};
  }
  void overwrite(std::size_t from = 0) { std::ranges::fill(bytes_.subspan(from), std::byte{0xEE}); }
  bool renew() { return madvise(bytes_.data(), kBytes, MADV_DONTNEED) == 0; }

 private:
  static constexpr std::size_t kBytes = 64 << 10;
  std::span<std::byte> bytes_;
};

constexpr std::uint32_t kSize = 4112;
constexpr std::uint32_t kCount = 15;

// The parameter: IPv4.
class PageSenderTest : public UdpPortTest {
 protected:
  void SetUp() override {
    if (!PageSender::is_possible()) GTEST_SKIP() << "this system sends no pages";
    UdpPortTest::SetUp();
    lane = port.open_pages(route);
    ASSERT_NE(lane, nullptr);
  }
  std::uint64_t uncopied() { return port.counters()[Count::kSentUncopied]; }
  void expect_packets(std::uint32_t first, std::uint32_t count) {
    const auto came = drain(port, count);
    ASSERT_EQ(came.size(), count);
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(came[i].bytes, make_packet(kFive, kSize, first + i)) << i;
      EXPECT_EQ(came[i].head.source_port, port.source_port(route));
      EXPECT_EQ(came[i].head.from, route.from);
      EXPECT_EQ(came[i].head.segment, i) << "it came as one train";
    }
  }
  // Those that page senders have made, among all of the process: pipes, and the second socket with
  // this port.
  std::vector<int> pipes() const {
    std::vector<int> found;
    for (int fd = 3; fd < 4096; ++fd)
      if (fcntl(fd, F_GETPIPE_SZ) > 0) found.push_back(fd);
    return found;
  }
  Pages pages;
  std::unique_ptr<PageSender> lane;
};
INSTANTIATE_TEST_SUITE_P(Families, PageSenderTest, ::testing::Bool(),
                         [](const auto& family) { return family.param ? "Ipv4" : "Ipv6"; });

TEST_P(PageSenderTest, ATrainThatIsKeptArrivesLikeAnyOther) {
  for (std::uint32_t round = 0; round < 5; ++round) {
    const Train train = pages.train(route, lane.get(), kSize, kCount, 100 * round);
    ASSERT_EQ(port.send({&train, 1}, {}), 1u);
    EXPECT_EQ(uncopied(), round + 1);
    expect_packets(100 * round, kCount);
  }
  EXPECT_EQ(port.counters()[Count::kSentTrains], 5u);
  EXPECT_EQ(port.counters()[Count::kSentPackets], 5u * kCount);
  EXPECT_EQ(port.counters()[Count::kSentBytes], std::uint64_t{5} * kCount * kSize);
}

TEST_P(PageSenderTest, PacketsOfOtherLengthsAreDividedAnew) {
  for (const std::uint32_t size : {1040U, 4112U, 2064U, 1040U}) {
    const std::uint32_t count = std::min(65'000 / size, 64U);
    const Train train = pages.train(route, lane.get(), size, count);
    ASSERT_EQ(port.send({&train, 1}, {}), 1u);
    const auto came = drain(port, count);
    ASSERT_EQ(came.size(), count);
    for (std::uint32_t i = 0; i < count; ++i)
      EXPECT_EQ(came[i].bytes, make_packet(kFive, size, i));
  }
  EXPECT_EQ(uncopied(), 4u);
}

TEST_P(PageSenderTest, TheBytesAreReadWhenTheyAreReceived) {
  const Train train = pages.train(route, lane.get(), kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  pages.overwrite(kSize / 2);
  const auto came = drain(port, 1);
  if (!came.empty() && came[0].bytes == make_packet(kFive, kSize, 0))
    GTEST_SKIP() << "this system copies them after all, and nothing is saved";
  EXPECT_EQ(came.at(0).number(), 0u);
  EXPECT_EQ(came.at(0).bytes.back(), std::byte{0xEE});
}

TEST_P(PageSenderTest, FreshPagesLeaveThoseThatAreUnderwayAsTheyAre) {
  const Train train = pages.train(route, lane.get(), kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  ASSERT_TRUE(pages.renew());
  pages.overwrite();
  EXPECT_EQ(uncopied(), 1u);
  expect_packets(0, kCount);
}

TEST_P(PageSenderTest, WhatIsShortIsCopied) {
  const Train few = pages.train(route, lane.get(), kSize, 2);
  ASSERT_EQ(port.send({&few, 1}, {}), 1u);
  pages.overwrite();
  expect_packets(0, 2);
  EXPECT_EQ(uncopied(), 0u);
}

TEST_P(PageSenderTest, OrderIsThatInWhichTrainsWereGiven) {
  Pages others;
  Pages last;
  const std::array trains{others.train(route, nullptr, kSize, 2, 0),
                          pages.train(route, lane.get(), kSize, kCount, 2),
                          last.train(route, lane.get(), kSize, 3, 2 + kCount),
                          others.train(route, nullptr, kSize, 2, 0)};
  ASSERT_EQ(port.send(trains, {}), 4u);
  const auto came = drain(port, 7 + kCount);
  ASSERT_EQ(came.size(), 7 + kCount);
  for (std::uint32_t i = 0; i < 5 + kCount; ++i)
    EXPECT_EQ(came[i].number(), i);
  EXPECT_EQ(uncopied(), 1u) << "and one of three packets is copied";
}

// More than a pipe holds, and one in between that is too short to be lent.
TEST_P(PageSenderTest, ManyGoTogetherInTheirOrder) {
  constexpr std::uint32_t kMany = 9;
  std::array<Pages, kMany> memory;
  std::vector<Train> trains;
  std::uint32_t packets = 0;
  for (std::uint32_t i = 0; i < kMany; ++i) {
    const std::uint32_t count = i == 2 ? 3 : kCount - i / 2;
    trains.push_back(memory[i].train(route, lane.get(), kSize, count, packets));
    packets += count;
  }
  const std::uint16_t id = lane->next_id();
  ASSERT_EQ(port.send(trains, {}), kMany);
  EXPECT_EQ(uncopied(), kMany - 1);
  EXPECT_EQ(lane->next_id(), static_cast<std::uint16_t>(id + kMany));
  const auto came = drain(port, packets);
  ASSERT_EQ(came.size(), packets);
  for (std::uint32_t i = 0; i < packets; ++i)
    EXPECT_EQ(came[i].number(), i);
}

// The kernel counts a train as one.
TEST_P(PageSenderTest, IdentificationsAreWhatTheKernelGives) {
  if (!GetParam()) GTEST_SKIP() << "IPv6 has no identifications";
  for (const std::uint32_t count : {kCount, 1U, kCount, 2U}) {
    const std::uint16_t id = lane->next_id();
    const Train train = pages.train(route, lane.get(), kSize, count);
    ASSERT_EQ(port.send({&train, 1}, {}), 1u);
    EXPECT_EQ(lane->next_id(), static_cast<std::uint16_t>(id + 1));
    const auto next = learn_next_id(lane->socket(), route.from, lane->source_port());
    ASSERT_EQ(next, static_cast<std::uint16_t>(id + 3)) << "two were sent to find out";
    lane = port.open_pages(route);
  }
}

TEST_P(PageSenderTest, RoutesThatWantMoreSaidHaveNone) {
  Route other = route;
  other.traffic_class = 8;
  EXPECT_EQ(port.open_pages(other), nullptr);
  other = route;
  other.hop_limit = 8;
  EXPECT_EQ(port.open_pages(other), nullptr);
  other = route;
  other.ecn = Ecn::kCapable;
  EXPECT_EQ(port.open_pages(other), nullptr);
}

// Beyond sixteen pages a pipe would take a part of it.
TEST_P(PageSenderTest, ATrainThatLiesAcrossTooManyPagesIsCopied) {
  Pages more;
  const Train train = more.train(route, lane.get(), kSize, kCount);
  Train shifted = train;
  std::vector<std::byte> room(train.bytes.size() + 2 * host::page_size());
  const auto at = reinterpret_cast<std::uintptr_t>(room.data());
  const std::size_t to_end = host::page_size() - at % host::page_size() - 20;
  std::ranges::copy(train.bytes, room.begin() + static_cast<std::ptrdiff_t>(to_end));
  shifted.bytes = std::span(room).subspan(to_end, train.bytes.size());
  ASSERT_EQ(port.send({&shifted, 1}, {}), 1u);
  std::ranges::fill(room, std::byte{0xEE});
  expect_packets(0, kCount);
}

TEST_P(PageSenderTest, ItsPortIsItsOwnAgain) {
  // Who shares ports as such gets no part of this one.
  for (const int option : {SO_REUSEPORT, SO_REUSEADDR}) {
    const int fd = socket(has_ipv6_sockets() ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, option, &yes, sizeof yes), 0);
    sockaddr_storage name{};
    const socklen_t size = to_socket_address(route.from, 0, port.source_port(route), name);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), size), -1);
    EXPECT_EQ(errno, EADDRINUSE);
    close(fd);
  }
}

TEST_P(PageSenderTest, SeveralHaveThePort) {
  std::vector<std::unique_ptr<PageSender>> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(port.open_pages(route));
    ASSERT_NE(all.back(), nullptr);
    EXPECT_EQ(all.back()->source_port(), port.source_port(route));
  }
}

TEST_P(PageSenderTest, AProgramThatClosesItsPipeLosesATrain) {
  const std::vector<int> ours = pipes();
  ASSERT_GE(ours.size(), 2u);
  for (const int fd : ours)
    close(fd);
  const Train train = pages.train(route, lane.get(), kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  EXPECT_TRUE(lane->is_over());
  EXPECT_EQ(port.counters()[Count::kDroppedBroken], kCount);
  EXPECT_EQ(uncopied(), 0u);
  EXPECT_EQ(lane->send({&train, 1}).trains, 0u);
  // Another one has another pipe.
  lane = port.open_pages(route);
  ASSERT_NE(lane, nullptr);
  const Train again = pages.train(route, lane.get(), kSize, kCount);
  ASSERT_EQ(port.send({&again, 1}, {}), 1u);
  expect_packets(0, kCount);
}

TEST_P(PageSenderTest, TheFilesOfAStrangerAreLeftAlone) {
  const std::vector<int> ours = pipes();
  ASSERT_EQ(ours.size(), 2u);
  int theirs[2];
  ASSERT_EQ(pipe2(theirs, O_CLOEXEC | O_NONBLOCK), 0);
  for (std::size_t i = 0; i < 2; ++i)
    ASSERT_EQ(dup2(theirs[i], ours[i]), ours[i]);
  const Train train = pages.train(route, lane.get(), kSize, kCount);
  EXPECT_EQ(lane->send({&train, 1}).trains, 0u);
  char none = 0;
  EXPECT_EQ(read(theirs[0], &none, 1), -1) << "something was written into a pipe of the program";
  EXPECT_EQ(errno, EAGAIN);
  lane.reset();
  for (const int fd : {ours[0], ours[1], theirs[0], theirs[1]})
    EXPECT_EQ(close(fd), 0) << "it was closed for the program";
}

TEST_P(PageSenderTest, SeveralThreadsSendAtOnce) {
  constexpr std::uint32_t kThreads = 3;
  constexpr std::uint32_t kRounds = 15;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Pages own;
      const auto mine = port.open_pages(route);
      ASSERT_NE(mine, nullptr);
      for (std::uint32_t round = 0; round < kRounds; ++round) {
        const Train train =
            own.train(route, mine.get(), kSize, kCount, (t * kRounds + round) * kCount);
        while (port.send({&train, 1}, {}) == 0) {
        }
        own.renew();
      }
    });
  }
  constexpr std::uint32_t kAll = kThreads * kRounds * kCount;
  const auto came = drain(port, kAll);
  for (std::thread& each : threads)
    each.join();
  std::vector<bool> seen(kAll);
  for (const Kept& each : came)
    seen.at(each.number()) = each.bytes == make_packet(kFive, kSize, each.number());
  EXPECT_EQ(std::ranges::count(seen, true), kAll);
  EXPECT_EQ(uncopied(), std::uint64_t{kThreads} * kRounds);
}

}  // namespace
}  // namespace verbena::port
