// SPDX-License-Identifier: MIT
#include "port/capture.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "port/sim.h"
#include "port/test_packets.h"
#include "wire/datagram.h"

namespace verbena::port {
namespace {

std::vector<std::byte> read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

bool has_tshark() {
  // NOLINTNEXTLINE(bugprone-command-processor): a fixed command
  return std::system("command -v tshark >/dev/null") == 0;
}

std::uint32_t word(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value = 0;
  EXPECT_LE(at + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Frame {
  std::uint64_t time = 0;
  std::uint32_t whole = 0;
  std::vector<std::byte> bytes;
  bool is_inbound = false;
};
struct Content {
  std::vector<Frame> frames;
  std::uint64_t dropped = 0;
  bool has_statistics = false;
};

// Reads the file as the format says; every length is checked.
Content parse(const std::string& path) {
  const std::vector<std::byte> file = read_whole(path);
  Content content;
  std::size_t at = 0;
  for (std::size_t block = 0; at < file.size(); ++block) {
    const auto rest = std::span(file).subspan(at);
    const std::uint32_t type = word(rest, 0);
    const std::uint32_t length = word(rest, 4);
    if (length < 12 || length % 4 != 0 || length > rest.size() ||
        word(rest, length - 4) != length) {
      ADD_FAILURE() << "block " << block << " of length " << length;
      return content;
    }
    if (block == 0) {
      EXPECT_EQ(type, 0x0A0D0D0Au);
    }
    if (block == 1) {
      EXPECT_EQ(type, 1u);
    }
    if (type == 6) {
      Frame frame;
      frame.time = std::uint64_t{word(rest, 12)} << 32 | word(rest, 16);
      const std::uint32_t kept = word(rest, 20);
      frame.whole = word(rest, 24);
      frame.bytes.assign(rest.begin() + 28, rest.begin() + 28 + kept);
      const std::size_t options = 28 + (kept + 3) / 4 * 4;
      EXPECT_EQ(word(rest, options), 0x00040002u);
      frame.is_inbound = word(rest, options + 4) == 1;
      content.frames.push_back(std::move(frame));
    } else if (type == 5) {
      content.has_statistics = true;
      content.dropped = word(rest, 20 + 12 + 4);
    }
    at += length;
  }
  return content;
}

// Two ports in memory, with a capture before the first; packets are real ones.
class CaptureTest : public ::testing::TestWithParam<bool> {
 protected:
  CaptureTest() {
    char name[] = "/tmp/verbena-capture-XXXXXX";
    folder = mkdtemp(name);
    path = folder + "/capture.pcapng";
  }
  ~CaptureTest() override { std::filesystem::remove_all(folder); }

  void open(CaptureOptions options = {}) {
    options.path = path;
    auto opened = CaptureFile::open(options);
    ASSERT_TRUE(opened.has_value()) << to_string(opened.error());
    file = std::move(*opened);
    port = std::make_unique<CapturePort>(inner, *file);
  }
  void send(Port& by, const Route& route, std::uint32_t count, std::uint32_t payload) {
    TrainBuilder builder(by.limits(), 1 << 20, 64);
    wire::FlowIcrc icrc(
        {.source = route.from, .destination = route.to, .source_port = by.source_port(route)});
    for (std::uint32_t i = 0; i < count; ++i) {
      wire::Head head{.opcode = wire::Opcode::of(wire::Service::kRc, wire::Code::kSendOnly)};
      head.dest_qp = QpNum::of(route.slot, 7);
      head.psn = wire::Psn(i);
      const auto size = wire::datagram_bytes(head.opcode, payload);
      const auto place = builder.place(route, static_cast<std::uint32_t>(size));
      ASSERT_TRUE(place);
      wire::DatagramBuilder datagram(place->room, head, payload);
      std::ranges::fill(datagram.payload(), static_cast<std::byte>(i));
      ASSERT_EQ(datagram.finish(icrc, place->ip_id), size);
      builder.commit();
    }
    ASSERT_TRUE(builder.flush(by, now));
  }
  void exchange(std::uint32_t count, std::uint32_t payload = 500) {
    send(*port, there, count, payload);
    send(far, back, count, payload);
    now = now + Duration::milliseconds(100);
    drain(*port, 0, now);
    drain(far, 0, now);
  }

  std::string folder;
  std::string path;
  const Gid a = GetParam() ? ipv4(10, 0, 0, 1) : Gid{{0xFD, 1}};
  const Gid b = GetParam() ? ipv4(10, 0, 0, 2) : Gid{{0xFD, 2}};
  SimNetwork network{1};
  SimPort& inner = network.add_port(network.add_host(a), kHere);
  SimPort& far = network.add_port(network.add_host(b), kThere);
  const Route there{.from = a, .to = b, .slot = kThere, .ecn = Ecn::kCapable, .hop_limit = 17};
  const Route back{.from = b, .to = a, .slot = kHere};
  Instant now = Instant::at(1'000'000'000);
  std::unique_ptr<CaptureFile> file;
  std::unique_ptr<CapturePort> port;
};
INSTANTIATE_TEST_SUITE_P(Families, CaptureTest, ::testing::Bool(),
                         [](const auto& family) { return family.param ? "Ipv4" : "Ipv6"; });

TEST_P(CaptureTest, BothDirectionsAreThereWithRightHeads) {
  open({.wall_offset = 1'700'000'000'000'000'000});
  exchange(10, 501);
  file.reset();
  const Content content = parse(path);
  ASSERT_EQ(content.frames.size(), 20u);
  EXPECT_TRUE(content.has_statistics);
  EXPECT_EQ(content.dropped, 0u);
  for (std::size_t i = 0; i < 20; ++i) {
    const Frame& frame = content.frames[i];
    EXPECT_EQ(frame.is_inbound, i >= 10);
    EXPECT_EQ(frame.time, 1'700'000'001'000'000'000u + (i < 10 ? 0 : 100'000'000));
    EXPECT_EQ(frame.whole, frame.bytes.size());
    const auto ip = wire::parse_ip(std::span(frame.bytes).subspan(14));
    ASSERT_TRUE(ip.has_value());
    EXPECT_EQ(ip->head.flow.source, i < 10 ? a : b);
    EXPECT_EQ(ip->head.flow.destination, i < 10 ? b : a);
    EXPECT_EQ(ip->head.traffic_class, i < 10 ? 2 : 0);
    EXPECT_EQ(ip->head.hop_limit, i < 10 ? 17 : 64);
    // The heads are what the sender's ICRC covers.
    wire::FlowIcrc icrc(ip->head.flow);
    const auto verified = icrc.verify(ip->datagram, ip->head.id);
    ASSERT_TRUE(verified.has_value());
    EXPECT_TRUE(verified->is_guess);
  }
}

TEST_P(CaptureTest, WiresharkReadsIt) {
  if (!has_tshark()) GTEST_SKIP() << "no tshark here";
  open();
  exchange(10, 501);
  exchange(3, 4096);
  file.reset();
  const auto lines = [&](const std::string& options) {
    const std::string command = "tshark -n -r " + path + " -o ip.check_checksum:TRUE " +
                                "-o udp.check_checksum:TRUE " + options + " 2>/dev/null";
    // NOLINTNEXTLINE(bugprone-command-processor): tshark, on a file of ours
    FILE* const pipe = popen(command.c_str(), "r");
    std::string text;
    for (int c = 0; (c = fgetc(pipe)) != EOF;)
      text.push_back(static_cast<char>(c));
    EXPECT_EQ(pclose(pipe), 0);
    return text;
  };
  const std::string packets = lines("-Y 'infiniband.bth.opcode == 4' -T fields -e frame.number");
  EXPECT_EQ(std::ranges::count(packets, '\n'), 26) << packets;
  EXPECT_EQ(lines("-Y '_ws.malformed || _ws.expert.severity >= \"Warning\"'"), "");
}

TEST_P(CaptureTest, AnExistingFileIsLeftAlone) {
  std::ofstream(path) << "precious";
  const auto refused = CaptureFile::open({.path = path});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error(), CaptureError::kExists);
  EXPECT_EQ(CaptureFile::open({.path = folder + "/none/x"}).error(), CaptureError::kNoFile);
  EXPECT_EQ(read_whole(path).size(), 8u);
}

TEST_P(CaptureTest, TheFileIsItsOwnersAlone) {
  open();
  struct stat status{};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_P(CaptureTest, AFullFileStops) {
  open({.file_bytes_max = 100'000});
  for (int i = 0; i < 20; ++i) {
    exchange(10, 1000);
    file->flush();
  }
  EXPECT_TRUE(file->stats().stopped);
  const std::uint64_t written = file->stats().written;
  file.reset();
  EXPECT_LE(read_whole(path).size(), 100'000u);
  EXPECT_GT(read_whole(path).size(), 97'000u);
  EXPECT_EQ(parse(path).frames.size(), written);
}

TEST_P(CaptureTest, OrGoesOnInANewOne) {
  open({.file_bytes_max = 100'000, .files_kept = 2});
  for (int i = 0; i < 30; ++i) {
    exchange(10, 1000);
    file->flush();
  }
  EXPECT_FALSE(file->stats().stopped);
  EXPECT_EQ(file->stats().written, 600u);
  file.reset();
  std::uint64_t last = ~std::uint64_t{0};
  for (const char* const name : {"", ".1", ".2"}) {
    EXPECT_LE(read_whole(path + name).size(), 100'000u);
    const Content content = parse(path + name);
    ASSERT_FALSE(content.frames.empty());
    EXPECT_TRUE(content.has_statistics);
    EXPECT_LE(content.frames.back().time, last);
    last = content.frames.front().time;
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".3"));
}

TEST_P(CaptureTest, AFullBufferMissesPacketsAndSaysSo) {
  open({.buffer_bytes = 64 << 10});
  for (int i = 0; i < 20; ++i)
    exchange(10, 1000);
  const std::uint64_t missed = file->stats().missed;
  EXPECT_GT(missed, 300u);
  file.reset();
  const Content content = parse(path);
  EXPECT_EQ(content.frames.size() + missed, 400u);
  EXPECT_EQ(content.dropped, missed);
}

TEST_P(CaptureTest, LongFramesAreCutOff) {
  open({.packet_bytes_max = 100});
  exchange(5, 1000);
  file.reset();
  const Content content = parse(path);
  ASSERT_EQ(content.frames.size(), 10u);
  for (const Frame& frame : content.frames) {
    EXPECT_EQ(frame.bytes.size(), 100u);
    EXPECT_GT(frame.whole, 1000u);
  }
}

TEST_P(CaptureTest, AFileThatTheProgramClosedIsNotWrittenTo) {
  open();
  exchange(5);
  ASSERT_TRUE(file->flush());
  const auto size = std::filesystem::file_size(path);
  // Finds the descriptor, and makes it the program's.
  const std::string theirs = folder + "/theirs";
  const int other = ::open(theirs.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  struct stat wanted{};
  ASSERT_EQ(stat(path.c_str(), &wanted), 0);
  int found = -1;
  for (int fd = 3; fd < 70'000 && found < 0; ++fd) {
    struct stat status{};
    if (fstat(fd, &status) == 0 && status.st_ino == wanted.st_ino) found = fd;
  }
  ASSERT_GE(found, 0);
  ASSERT_EQ(dup2(other, found), found);
  exchange(5);
  EXPECT_FALSE(file->flush());
  EXPECT_TRUE(file->stats().stopped);
  file.reset();
  EXPECT_EQ(std::filesystem::file_size(theirs), 0u);
  EXPECT_EQ(std::filesystem::file_size(path), size);
  EXPECT_EQ(write(found, "x", 1), 1) << "and is still theirs";
  close(found);
  close(other);
}

}  // namespace
}  // namespace verbena::port
