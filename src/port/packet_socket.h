// SPDX-License-Identifier: MIT
// Ethernet frames of one network interface as they are, by packet sockets (packet(7)): one that
// sends, and one that receives what its filter lets through. They want CAP_NET_RAW.
//
// The receiver also hears what this host sends on the interface, itself included. Not on the
// loopback interface, where all of it comes in again.
#pragma once

#include <linux/filter.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"
#include "port/udp_socket.h"

namespace verbena::port {

// Which frames the interface takes from its link beside those for its own address.
enum class Membership : std::uint8_t { kUnicast, kMulticast, kAllMulticast, kEverything };
using EthernetAddress = std::array<std::uint8_t, 6>;

struct PacketSocketOptions {
  std::uint32_t interface = 0;
  bool is_loopback = false;
  std::uint32_t buffer = 8 << 20;  // asked for, of each; without CAP_NET_ADMIN the system caps it
};

// Whether the calling thread may make these sockets now: it has CAP_NET_RAW. True where something
// else is in the way.
bool may_use_packet_sockets();

// Any thread; the caller sees to it that one at a time sends.
class PacketSender {
 public:
  // kDenied: without CAP_NET_RAW. kMissing: it has no Ethernet headers, or is gone.
  static Result<PacketSender, SocketError> open(const PacketSocketOptions& options);

  enum class Outcome : std::uint8_t {
    kSent,
    kFull,     // later: neither socket nor interface takes more now
    kTooLong,  // for the interface, as it is now
    kLost,     // it is down, or does not take such a frame
  };
  // Sends frames until one has another outcome than kSent: `sent` counts those before it.
  Outcome send(std::span<const std::span<const std::byte>> frames, std::size_t& sent) const;
  int fd() const { return socket_.get(); }
  // The program has not closed it. A system call.
  bool is_open() const;
  void forget();  // it has: the number is not ours any more
  // Bytes in the longest frame without a VLAN tag; 0: the interface is gone.
  std::size_t longest_frame() const;

 private:
  PacketSender(UniqueFd socket, std::uint32_t interface);
  UniqueFd socket_;
  ino_t file_ = 0;
  std::uint32_t interface_ = 0;
};

// Segments of which stream the kernel has put together in one frame.
enum class Joined : std::uint8_t { kNo, kTcp, kUdp };

// As it came, and what the kernel has left undone.
struct ReceivedFrame {
  std::span<std::byte> bytes;  // good until the next call
  bool is_outgoing = false;    // this host sends it
  bool needs_checksum = false;
  Joined joined = Joined::kNo;
  std::uint16_t segment = 0;          // bytes of payload in each
  std::uint16_t checksum_start = 0;   // what it covers, to the end
  std::uint16_t checksum_offset = 0;  // from there: where it goes
};

// One thread at a time.
class PacketReceiver {
 public:
  static Result<std::unique_ptr<PacketReceiver>, SocketError> open(
      const PacketSocketOptions& options);
  ~PacketReceiver();
  PacketReceiver(const PacketReceiver&) = delete;
  PacketReceiver& operator=(const PacketReceiver&) = delete;

  // From the first call on frames come. Not empty.
  bool set_filter(std::span<const sock_filter> program);
  // As often joined, as often left. The address is of kUnicast and kMulticast.
  bool change_membership(Membership membership, const EthernetAddress& address, bool join);

  static constexpr std::size_t kBatch = 32;
  // The first `count` of frames().
  std::size_t receive();
  std::span<const ReceivedFrame> frames() const { return frames_; }
  int fd() const { return socket_.get(); }
  // The program has not closed it. A system call.
  bool is_open() const;
  // Frames that found the buffer full, since the last call.
  std::uint32_t take_overflows();

 private:
  PacketReceiver(UniqueFd socket, const PacketSocketOptions& options);
  ReceivedFrame finish(std::size_t index, std::size_t size);

  struct Message;
  UniqueFd socket_;
  ino_t file_ = 0;
  PacketSocketOptions options_;
  bool is_bound_ = false;
  std::unique_ptr<std::byte[]> buffers_;
  std::unique_ptr<Message[]> messages_;
  std::array<ReceivedFrame, kBatch> frames_;
};

}  // namespace verbena::port
