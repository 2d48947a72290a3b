// SPDX-License-Identifier: MIT
// Raw frames of an interface between two network namespaces, with the kernel's own traffic on it.
#include "nic/raw_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>

#include "port/test_namespace.h"
#include "wire/bytes.h"

namespace verbena::nic {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kMtu = 1500;
constexpr std::uint16_t kPort = 5001;
constexpr std::size_t kHeaders = 14 + 20;  // before TCP

std::unique_ptr<RawPort> open_port(const char* interface) {
  Device device;
  device.interface = interface;
  device.interface_index = if_nametoindex(interface);
  auto port = RawPort::open(device);
  EXPECT_TRUE(port);
  return port ? std::move(*port) : nullptr;
}

raw::Flow to_tcp_port(std::uint16_t number) {
  raw::Flow flow;
  flow.to = {7};
  flow.kind = raw::FlowKind::kSniffer;
  if (number == 0) return flow;
  flow.kind = raw::FlowKind::kNormal;
  flow.value.network = raw::Network::kIpv4;
  flow.mask.network = static_cast<raw::Network>(0xFF);
  flow.value.transport = raw::Transport::kTcp;
  flow.mask.transport = static_cast<raw::Transport>(0xFF);
  flow.value.destination_port = wire::be16(number);
  flow.mask.destination_port = wire::be16(0xFFFF);
  return flow;
}

std::vector<Bytes> drain(RawPort& port) {
  std::vector<Bytes> frames;
  const auto keep = [&](std::span<const std::byte> frame, const raw::Key&, std::span<const QpNum>) {
    frames.emplace_back(frame.begin(), frame.end());
  };
  // What is on its way in the kernel comes at once; a little later nothing more does.
  for (int quiet = 0; quiet < 20;) {
    if (port.receive(keep) != 0) {
      quiet = 0;
      continue;
    }
    ++quiet;
    usleep(2000);
  }
  return frames;
}

std::uint32_t number(const Bytes& frame, std::size_t at, unsigned size) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < size; ++i)
    value = value << 8 | std::to_integer<std::uint32_t>(frame[at + i]);
  return value;
}

// The sum of RFC 1071 over pseudo-header and segment is 0xFFFF where the checksum is right.
bool is_checksum_right(const Bytes& frame) {
  const std::size_t end = 14 + number(frame, 16, 2);  // without padding
  std::uint32_t sum = 6 + static_cast<std::uint32_t>(end - kHeaders);
  for (std::size_t i = 26; i < end; ++i)
    sum += std::to_integer<std::uint32_t>(frame[i]) << (i % 2 == 0 ? 8 : 0);
  while (sum >> 16)
    sum = (sum & 0xFFFF) + (sum >> 16);
  return sum == 0xFFFF;
}

int listen_there() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = std::bit_cast<in_port_t>(wire::be16(kPort));
  EXPECT_EQ(0, bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address));
  EXPECT_EQ(0, listen(fd, 1));
  return fd;
}

int connect_from_here() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = std::bit_cast<in_port_t>(wire::be16(kPort));
  inet_pton(AF_INET, "10.9.0.2", &address.sin_addr);
  EXPECT_EQ(0, connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address));
  return fd;
}

// The stream that the frames carry, put together by sequence number.
Bytes stream_of(const std::vector<Bytes>& frames) {
  std::map<std::uint32_t, Bytes> pieces;
  std::uint32_t first = 0;
  for (const Bytes& frame : frames) {
    const std::uint32_t sequence = number(frame, kHeaders + 4, 4);
    const bool is_first = (number(frame, kHeaders + 13, 1) & 2) != 0;  // SYN
    if (is_first) first = sequence + 1;
    const std::size_t head = kHeaders + number(frame, kHeaders + 12, 1) / 16 * 4;
    const std::size_t end = 14 + number(frame, 16, 2);
    if (end == head) continue;
    pieces[sequence - first] = Bytes(frame.begin() + static_cast<std::ptrdiff_t>(head),
                                     frame.begin() + static_cast<std::ptrdiff_t>(end));
  }
  Bytes stream;
  for (const auto& [at, piece] : pieces) {
    EXPECT_EQ(at, stream.size());
    stream.insert(stream.end(), piece.begin(), piece.end());
  }
  return stream;
}

TEST(RawPort, ShowsTheKernelsStreamsAsTheyAreOnTheLink) {
  if (!port::in_namespaces([] {
        port::TwoHosts hosts(kMtu);
        const auto sending = open_port("va");
        hosts.enter(1);
        const auto receiving = open_port("vb");
        const int listener = listen_there();
        ASSERT_TRUE(sending && receiving);
        ASSERT_TRUE(sending->add(to_tcp_port(0)));  // what leaves is a sniffer's
        ASSERT_TRUE(receiving->add(to_tcp_port(kPort)));
        hosts.enter(0);
        const int client = connect_from_here();
        const int server = accept(listener, nullptr, nullptr);
        Bytes sent(200'000);
        for (std::size_t i = 0; i < sent.size(); ++i)
          sent[i] = static_cast<std::byte>(i * i >> 7);
        Bytes got(sent.size());
        // A part at a time, so that none of the receivers' buffers overflows.
        for (std::size_t at = 0; at < sent.size();) {
          const ssize_t size =
              write(client, sent.data() + at, std::min<std::size_t>(50'000, sent.size() - at));
          ASSERT_GT(size, 0);
          const auto part = static_cast<std::size_t>(size);
          ASSERT_EQ(size, recv(server, got.data() + at, part, MSG_WAITALL));
          at += part;
        }
        ASSERT_EQ(sent, got);
        std::vector<Bytes> left = drain(*sending);
        std::erase_if(left, [](const Bytes& frame) {
          return raw::key_of(frame).destination_port.value() != kPort;
        });
        for (const auto& frames : {left, drain(*receiving)}) {
          EXPECT_GE(frames.size(), sent.size() / kMtu);
          for (const Bytes& frame : frames) {
            EXPECT_LE(frame.size(), kMtu + 14u);
            EXPECT_TRUE(is_checksum_right(frame));
          }
          EXPECT_EQ(stream_of(frames), sent);
        }
        close(client);
        close(server);
        close(listener);
      })) {
    GTEST_SKIP() << "no network namespaces";
  }
}

TEST(RawPort, CarriesTagsAndTurnsFramesRound) {
  if (!port::in_namespaces([] {
        port::TwoHosts hosts(kMtu);
        const auto sending = open_port("va");
        hosts.enter(1);
        const auto receiving = open_port("vb");
        ASSERT_TRUE(sending && receiving);
        raw::Flow flow;
        flow.to = {7};
        flow.value.ether_type = wire::be16(0x88B5);
        flow.mask.ether_type = wire::be16(0xFFFF);
        flow.value.vlan_tag = wire::be16(0x2005);
        flow.mask.vlan_tag = wire::be16(0xFFFF);
        flow.value.has_vlan = 1;
        flow.mask.has_vlan = 0xFF;
        ASSERT_TRUE(receiving->add(flow));
        ASSERT_TRUE(sending->add(flow));
        Bytes frame(kMtu + 18, std::byte{0x33});
        const std::uint8_t head[18] = {0x01, 0, 0, 0,    0,    9,    2,    0,    0,
                                       0,    0, 1, 0x81, 0x00, 0x20, 0x05, 0x88, 0xB5};
        std::memcpy(frame.data(), head, sizeof head);
        const std::span<const std::byte> frames[] = {frame};
        std::size_t count = 0;
        ASSERT_EQ(RawPort::Outcome::kSent, sending->send(frames, count));
        EXPECT_EQ(count, 1u);
        EXPECT_EQ(drain(*receiving), std::vector<Bytes>{frame});
        EXPECT_EQ(drain(*sending), std::vector<Bytes>{frame}) << "it is multicast";
        frame[0] = std::byte{0x02};
        ASSERT_EQ(RawPort::Outcome::kSent, sending->send(frames, count));
        EXPECT_EQ(drain(*receiving), std::vector<Bytes>{frame});
        EXPECT_TRUE(drain(*sending).empty()) << "it is for somebody else";
        hosts.enter(0);
        EXPECT_EQ(sending->longest_frame(), kMtu + 14u);
        frame.push_back(std::byte{0});
        const std::span<const std::byte> too_long[] = {frame};
        EXPECT_EQ(RawPort::Outcome::kTooLong, sending->send(too_long, count));
      })) {
    GTEST_SKIP() << "no network namespaces";
  }
}

// A program that closes what it does not know loses nothing but what came meanwhile.
TEST(RawPort, MakesNewSocketsForThoseThatAreClosed) {
  if (!port::in_namespaces([] {
        port::TwoHosts hosts(kMtu);
        const auto sending = open_port("va");
        hosts.enter(1);
        const auto receiving = open_port("vb");
        ASSERT_TRUE(sending && receiving);
        ASSERT_TRUE(receiving->add(to_tcp_port(0)));
        close(receiving->receiver());
        receiving->mend();
        Bytes frame(64, std::byte{0x33});
        const std::span<const std::byte> frames[] = {frame};
        std::size_t count = 0;
        ASSERT_EQ(RawPort::Outcome::kSent, sending->send(frames, count));
        const std::vector<Bytes> got = drain(*receiving);
        EXPECT_NE(std::find(got.begin(), got.end(), frame), got.end());
      })) {
    GTEST_SKIP() << "no network namespaces";
  }
}

}  // namespace
}  // namespace verbena::nic
