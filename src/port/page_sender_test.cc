// SPDX-License-Identifier: MIT
#include "port/page_sender.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "host/raw_memory.h"
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

  Train train(const Route& route, std::uint32_t size, std::uint32_t count,
              std::uint32_t first = 0) {
    for (std::uint32_t i = 0; i < count; ++i)
      write_packet(bytes_.subspan(std::size_t{i} * size, size), route.slot, first + i);
    return {route, bytes_.first(std::size_t{count} * size), size, true};
  }
  void overwrite() { std::ranges::fill(bytes_, std::byte{0xEE}); }
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
};
INSTANTIATE_TEST_SUITE_P(Families, PageSenderTest, ::testing::Bool(),
                         [](const auto& family) { return family.param ? "Ipv4" : "Ipv6"; });

TEST_P(PageSenderTest, ATrainThatIsKeptArrivesLikeAnyOther) {
  for (std::uint32_t round = 0; round < 5; ++round) {
    const Train train = pages.train(route, kSize, kCount, 100 * round);
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
    const Train train = pages.train(route, size, count);
    ASSERT_EQ(port.send({&train, 1}, {}), 1u);
    const auto came = drain(port, count);
    ASSERT_EQ(came.size(), count);
    for (std::uint32_t i = 0; i < count; ++i)
      EXPECT_EQ(came[i].bytes, make_packet(kFive, size, i));
  }
  EXPECT_EQ(uncopied(), 4u);
}

TEST_P(PageSenderTest, TheBytesAreReadWhenTheyAreReceived) {
  const Train train = pages.train(route, kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  pages.overwrite();
  const auto came = drain(port, 1);
  if (!came.empty() && came[0].bytes == make_packet(kFive, kSize, 0))
    GTEST_SKIP() << "this system copies them after all, and nothing is saved";
  // The first packet's head has gone ahead.
  EXPECT_EQ(came.at(0).number(), 0u);
  EXPECT_EQ(came.at(0).bytes.back(), std::byte{0xEE});
}

TEST_P(PageSenderTest, FreshPagesLeaveThoseThatAreUnderwayAsTheyAre) {
  const Train train = pages.train(route, kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  ASSERT_TRUE(pages.renew());
  pages.overwrite();
  EXPECT_EQ(uncopied(), 1u);
  expect_packets(0, kCount);
}

TEST_P(PageSenderTest, WhatIsShortOrNotKeptIsCopied) {
  const Train few = pages.train(route, kSize, 2);
  ASSERT_EQ(port.send({&few, 1}, {}), 1u);
  pages.overwrite();
  expect_packets(0, 2);
  Train all = pages.train(route, kSize, kCount);
  all.is_kept = false;
  ASSERT_EQ(port.send({&all, 1}, {}), 1u);
  pages.overwrite();
  expect_packets(0, kCount);
  EXPECT_EQ(uncopied(), 0u);
}

TEST_P(PageSenderTest, OrderIsThatInWhichTrainsWereGiven) {
  Pages others;
  Pages last;
  const std::array trains{others.train(route, kSize, 2, 0), pages.train(route, kSize, kCount, 2),
                          last.train(route, kSize, 3, 2 + kCount)};
  ASSERT_EQ(port.send(trains, {}), 3u);
  const auto came = drain(port, 5 + kCount);
  ASSERT_EQ(came.size(), 5 + kCount);
  for (std::uint32_t i = 0; i < came.size(); ++i)
    EXPECT_EQ(came[i].number(), i);
  EXPECT_EQ(uncopied(), 1u);
}

// Beyond sixteen pages a pipe would take a part of it.
TEST_P(PageSenderTest, ATrainThatLiesAcrossTooManyPagesIsCopied) {
  Pages more;
  const Train train = more.train(route, kSize, kCount);
  Train shifted = train;
  std::vector<std::byte> room(train.bytes.size() + 2 * host::page_size());
  const auto at = reinterpret_cast<std::uintptr_t>(room.data());
  const std::size_t to_end = host::page_size() - at % host::page_size() - 20;
  std::ranges::copy(train.bytes, room.begin() + static_cast<std::ptrdiff_t>(to_end));
  shifted.bytes = std::span(room).subspan(to_end, train.bytes.size());
  ASSERT_EQ(port.send({&shifted, 1}, {}), 1u);
  expect_packets(0, kCount);
  EXPECT_EQ(uncopied(), 0u);
}

TEST_P(PageSenderTest, ItsPortIsItsOwnAgain) {
  const Train train = pages.train(route, kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  // Who shares ports as such gets no part of this one.
  const int fd = socket(has_ipv6_sockets() ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes), 0);
  sockaddr_storage name{};
  const socklen_t size = to_socket_address(route.from, 0, port.source_port(route), name);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), size), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  close(fd);
}

TEST_P(PageSenderTest, AProgramThatClosesItsPipeCostsACopy) {
  const Train train = pages.train(route, kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  expect_packets(0, kCount);
  const std::vector<int> ours = pipes();
  ASSERT_GE(ours.size(), 2u);
  for (const int fd : ours)
    close(fd);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  expect_packets(0, kCount);
  EXPECT_EQ(uncopied(), 1u);
  // The next one has another pipe.
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  expect_packets(0, kCount);
  EXPECT_EQ(uncopied(), 2u);
}

TEST_P(PageSenderTest, TheFilesOfAStrangerAreLeftAlone) {
  const std::vector<int> before = pipes();
  const Train train = pages.train(route, kSize, kCount);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  expect_packets(0, kCount);
  std::vector<int> ours = pipes();
  std::erase_if(ours, [&](int fd) { return std::ranges::count(before, fd) != 0; });
  ASSERT_EQ(ours.size(), 2u);
  int theirs[2];
  ASSERT_EQ(pipe2(theirs, O_CLOEXEC | O_NONBLOCK), 0);
  for (std::size_t i = 0; i < 2; ++i)
    ASSERT_EQ(dup2(theirs[i], ours[i]), ours[i]);
  EXPECT_EQ(port.check_sockets(), std::nullopt);
  ASSERT_EQ(port.send({&train, 1}, {}), 1u);
  expect_packets(0, kCount);
  char none = 0;
  EXPECT_EQ(read(theirs[0], &none, 1), -1) << "something was written into a pipe of the program";
  EXPECT_EQ(errno, EAGAIN);
  for (const int fd : {ours[0], ours[1], theirs[0], theirs[1]})
    EXPECT_EQ(close(fd), 0) << "it was closed for the program";
}

TEST_P(PageSenderTest, EachSlotHasItsOwn) {
  const Route to_six = loopback(GetParam(), kSix);
  auto group = make_group(number, 1);
  ASSERT_TRUE(port.add_receiver(kSix, std::move(group[0])));
  Steering steering;
  steering.set_positions(std::array{kFive, kSix});
  port.set_steering(steering);
  Pages more;
  for (int round = 0; round < 3; ++round) {
    const std::array trains{pages.train(route, kSize, kCount), more.train(to_six, kSize, kCount)};
    ASSERT_EQ(port.send(trains, {}), 2u);
    for (const Kept& each : drain(port, std::size_t{2} * kCount)) {
      const SlotNumber slot =
          wire::View(each.bytes).take<wire::Bth>()->dest_qp.value() == QpNum::of(kSix, 77).value
              ? kSix
              : kFive;
      EXPECT_EQ(each.bytes, make_packet(slot, kSize, each.number()));
      EXPECT_EQ(each.head.source_port, port.source_port(slot == kSix ? to_six : route));
    }
  }
  EXPECT_EQ(uncopied(), 6u);
}

TEST_P(PageSenderTest, SeveralThreadsSendAtOnce) {
  constexpr std::uint32_t kThreads = 3;
  constexpr std::uint32_t kRounds = 15;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Pages own;
      for (std::uint32_t round = 0; round < kRounds; ++round) {
        const Train train = own.train(route, kSize, kCount, (t * kRounds + round) * kCount);
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
  EXPECT_GE(uncopied(), kRounds);
}

}  // namespace
}  // namespace verbena::port
