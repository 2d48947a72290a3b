// SPDX-License-Identifier: MIT
#include "port/packet_socket.h"

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "host/raw_calls.h"
#include "wire/bytes.h"

namespace verbena::port {
namespace {

namespace raw = host::raw;

// struct virtio_net_hdr, whose header C++ does not take: what stands before each frame. In the
// order of bytes of this processor.
struct UndoneHeader {
  std::uint8_t flags;
  std::uint8_t joined;
  std::uint16_t header_bytes;
  std::uint16_t segment;
  std::uint16_t checksum_start;
  std::uint16_t checksum_offset;
};
static_assert(sizeof(UndoneHeader) == 10);
constexpr std::uint8_t kNeedsChecksum = 1;

// Its numbers.
Joined joined_from(std::uint8_t number) {
  constexpr std::uint8_t kWithCongestionBits = 0x80;
  switch (number & ~kWithCongestionBits) {
    case 1:                       // TCP over IPv4
    case 4: return Joined::kTcp;  // over IPv6
    case 5: return Joined::kUdp;  // since Linux 6.2
    default: return Joined::kNo;
  }
}

constexpr int kIgnoreOutgoing = 23;  // PACKET_IGNORE_OUTGOING, since Linux 4.20
constexpr std::size_t kMacs = 12;    // bytes before the place of a VLAN tag
constexpr std::size_t kTag = 4;
// The longest that the kernel joins, or the loopback interface takes, and a tag.
constexpr std::size_t kFrameMax = 65536 + 14 + 2 * kTag;
constexpr std::size_t kBuffer = (kFrameMax + 4095) / 4096 * 4096;

SocketError refusal_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE: return SocketError::kNoDescriptor;
    case ENOMEM:
    case ENOBUFS: return SocketError::kNoMemory;
    case EPERM:
    case EACCES: return SocketError::kDenied;
    case ENODEV:
    case ENXIO:
    case ENETDOWN:
    case EAFNOSUPPORT: return SocketError::kMissing;
    default: return SocketError::kDenied;
  }
}

template <class Value>
bool set_option(int fd, int level, int name, const Value& value) {
  return syscall(SYS_setsockopt, fd, level, name, &value, socklen_t{sizeof value}) == 0;
}

// CAP_NET_ADMIN goes beyond what the system caps for others.
void set_buffer(int fd, int forced, int plain, std::uint32_t bytes) {
  const int value = static_cast<int>(std::min<std::uint32_t>(bytes, 1 << 30));
  if (!set_option(fd, SOL_SOCKET, forced, value)) set_option(fd, SOL_SOCKET, plain, value);
}

// It receives nothing yet: protocol 0.
int make_socket() {
  constexpr int kType = SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK;
  return static_cast<int>(syscall(SYS_socket, AF_PACKET, kType, 0));
}

bool bind_to(int fd, std::uint32_t interface, std::uint16_t protocol) {
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = static_cast<int>(interface);
  address.sll_protocol = std::bit_cast<std::uint16_t>(wire::be16(protocol));
  return raw::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Of the interface that the socket is bound to. Tunnels have none.
bool has_ethernet_headers(int fd) {
  sockaddr_ll address{};
  socklen_t size = sizeof address;
  if (syscall(SYS_getsockname, fd, &address, &size) != 0) return false;
  return address.sll_hatype == ARPHRD_ETHER || address.sll_hatype == ARPHRD_LOOPBACK;
}

}  // namespace

// By a raw socket of IPv4, which takes the same capability: closing a packet socket waits for all
// processors, some milliseconds.
bool may_use_packet_sockets() {
  const UniqueFd socket(
      static_cast<int>(syscall(SYS_socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW)));
  return socket || (errno != EPERM && errno != EACCES);
}

// -- sending ------------------------------------------------------------------------------------

Result<PacketSender, SocketError> PacketSender::open(const PacketSocketOptions& options) {
  UniqueFd socket(make_socket());
  if (!socket) return refuse(refusal_of(errno));
  set_buffer(socket.get(), SO_SNDBUFFORCE, SO_SNDBUF, options.buffer);
  if (!bind_to(socket.get(), options.interface, 0)) return refuse(refusal_of(errno));
  if (!has_ethernet_headers(socket.get())) return refuse(SocketError::kMissing);
  return PacketSender(UniqueFd(lift_descriptor(socket.release())), options.interface);
}

PacketSender::PacketSender(UniqueFd socket, std::uint32_t interface)
    : socket_(std::move(socket)), file_(file_of(socket_.get())), interface_(interface) {}

bool PacketSender::is_open() const { return file_ != 0 && file_of(socket_.get()) == file_; }

void PacketSender::forget() { static_cast<void>(socket_.release()); }

auto PacketSender::send(std::span<const std::span<const std::byte>> frames, std::size_t& sent) const
    -> Outcome {
  constexpr std::size_t kMost = 64;
  std::array<iovec, kMost> pieces;
  std::array<mmsghdr, kMost> messages;
  sent = 0;
  while (sent < frames.size()) {
    const auto batch = frames.subspan(sent, std::min(kMost, frames.size() - sent));
    for (std::size_t i = 0; i < batch.size(); ++i) {
      pieces[i] = {const_cast<std::byte*>(batch[i].data()), batch[i].size()};
      messages[i] = {};
      messages[i].msg_hdr.msg_iov = &pieces[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const long count = syscall(SYS_sendmmsg, socket_.get(), messages.data(),
                               static_cast<unsigned>(batch.size()), MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
      continue;
    }
    switch (errno) {
      case EINTR: continue;
      case EAGAIN:
      case ENOBUFS:
      case ENOMEM: return Outcome::kFull;
      case EMSGSIZE: return Outcome::kTooLong;
      default: return Outcome::kLost;
    }
  }
  return Outcome::kSent;
}

// By the socket itself: the thread may be in another network namespace by now.
std::size_t PacketSender::longest_frame() const {
  ifreq request{};
  request.ifr_ifindex = static_cast<int>(interface_);
  if (syscall(SYS_ioctl, socket_.get(), SIOCGIFNAME, &request) != 0 ||
      syscall(SYS_ioctl, socket_.get(), SIOCGIFMTU, &request) != 0) {
    return 0;
  }
  return static_cast<std::size_t>(request.ifr_mtu) + ETH_HLEN;
}

// -- receiving ----------------------------------------------------------------------------------

// The addresses stand apart from the rest, so that a tag fits between them.
struct PacketReceiver::Message {
  UndoneHeader undone;
  iovec pieces[3];
  sockaddr_ll from;
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(tpacket_auxdata))];
};

PacketReceiver::PacketReceiver(UniqueFd socket, const PacketSocketOptions& options)
    : socket_(std::move(socket)),
      file_(file_of(socket_.get())),
      options_(options),
      buffers_(std::make_unique_for_overwrite<std::byte[]>(kBatch * kBuffer)),
      messages_(std::make_unique<Message[]>(kBatch)) {
  for (std::size_t i = 0; i < kBatch; ++i) {
    Message& message = messages_[i];
    std::byte* const buffer = buffers_.get() + i * kBuffer;
    message.pieces[0] = {&message.undone, sizeof message.undone};
    message.pieces[1] = {buffer, kMacs};
    message.pieces[2] = {buffer + kMacs + kTag, kBuffer - kMacs - kTag};
  }
}

PacketReceiver::~PacketReceiver() {
  if (!is_open()) static_cast<void>(socket_.release());
}

bool PacketReceiver::is_open() const { return file_ != 0 && file_of(socket_.get()) == file_; }

Result<std::unique_ptr<PacketReceiver>, SocketError> PacketReceiver::open(
    const PacketSocketOptions& options) {
  UniqueFd socket(make_socket());
  if (!socket) return refuse(refusal_of(errno));
  const int fd = socket.get();
  const int yes = 1;
  const bool is_good = set_option(fd, SOL_PACKET, PACKET_AUXDATA, yes) &&
                       set_option(fd, SOL_PACKET, PACKET_VNET_HDR, yes);
  if (!is_good) return refuse(refusal_of(errno));
  // Where that is not to be had, finish() does it.
  if (options.is_loopback) set_option(fd, SOL_PACKET, kIgnoreOutgoing, yes);
  set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, options.buffer);
  UniqueFd lifted(lift_descriptor(socket.release()));
  return std::unique_ptr<PacketReceiver>(new PacketReceiver(std::move(lifted), options));
}

bool PacketReceiver::set_filter(std::span<const sock_filter> program) {
  const sock_fprog filter{static_cast<unsigned short>(program.size()),
                          const_cast<sock_filter*>(program.data())};
  if (!set_option(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, filter)) return false;
  if (!is_bound_) is_bound_ = bind_to(socket_.get(), options_.interface, ETH_P_ALL);
  return is_bound_;
}

bool PacketReceiver::change_membership(Membership membership, const EthernetAddress& address,
                                       bool join) {
  packet_mreq request{};
  request.mr_ifindex = static_cast<int>(options_.interface);
  switch (membership) {
    case Membership::kUnicast: request.mr_type = PACKET_MR_UNICAST; break;
    case Membership::kMulticast: request.mr_type = PACKET_MR_MULTICAST; break;
    case Membership::kAllMulticast: request.mr_type = PACKET_MR_ALLMULTI; break;
    case Membership::kEverything: request.mr_type = PACKET_MR_PROMISC; break;
  }
  const bool has_address =
      membership == Membership::kUnicast || membership == Membership::kMulticast;
  if (has_address) {
    request.mr_alen = static_cast<unsigned short>(address.size());
    std::memcpy(request.mr_address, address.data(), address.size());
  }
  const int name = join ? PACKET_ADD_MEMBERSHIP : PACKET_DROP_MEMBERSHIP;
  return set_option(socket_.get(), SOL_PACKET, name, request);
}

std::size_t PacketReceiver::receive() {
  std::array<mmsghdr, kBatch> headers;
  for (std::size_t i = 0; i < kBatch; ++i) {
    Message& message = messages_[i];
    headers[i] = {};
    headers[i].msg_hdr = {.msg_name = &message.from,
                          .msg_namelen = sizeof message.from,
                          .msg_iov = message.pieces,
                          .msg_iovlen = std::size(message.pieces),
                          .msg_control = message.control,
                          .msg_controllen = sizeof message.control,
                          .msg_flags = 0};
  }
  const long count =
      syscall(SYS_recvmmsg, socket_.get(), headers.data(), kBatch, MSG_DONTWAIT, nullptr);
  std::size_t given = 0;
  for (long i = 0; i < count; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const mmsghdr& header = headers[index];
    if (header.msg_hdr.msg_flags & MSG_TRUNC) continue;
    if (header.msg_len < sizeof(UndoneHeader) + ETH_HLEN) continue;
    if (header.msg_hdr.msg_controllen == 0)
      std::memset(messages_[index].control, 0, sizeof(cmsghdr));
    const ReceivedFrame frame = finish(index, header.msg_len - sizeof(UndoneHeader));
    if (!(frame.is_outgoing && options_.is_loopback)) frames_[given++] = frame;
  }
  return given;
}

// A tag that the kernel has taken out is put back.
ReceivedFrame PacketReceiver::finish(std::size_t index, std::size_t size) {
  const Message& message = messages_[index];
  std::byte* const buffer = buffers_.get() + index * kBuffer;
  ReceivedFrame frame;
  frame.is_outgoing = message.from.sll_pkttype == PACKET_OUTGOING;
  frame.needs_checksum = (message.undone.flags & kNeedsChecksum) != 0;
  frame.joined = joined_from(message.undone.joined);
  frame.segment = message.undone.segment;
  frame.checksum_start = message.undone.checksum_start;
  frame.checksum_offset = message.undone.checksum_offset;
  tpacket_auxdata told{};
  cmsghdr control{};
  std::memcpy(&control, message.control, sizeof control);
  if (control.cmsg_level == SOL_PACKET && control.cmsg_type == PACKET_AUXDATA) {
    std::memcpy(&told, message.control + CMSG_LEN(0), sizeof told);
  }
  if ((told.tp_status & TP_STATUS_VLAN_VALID) == 0) {
    std::memmove(buffer + kTag, buffer, kMacs);
    frame.bytes = {buffer + kTag, size};
    return frame;
  }
  const bool has_type = (told.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0;
  const wire::be16 tag[2] = {wire::be16(has_type ? told.tp_vlan_tpid : std::uint16_t{ETH_P_8021Q}),
                             wire::be16(told.tp_vlan_tci)};
  static_assert(sizeof tag == kTag);
  std::memcpy(buffer + kMacs, tag, sizeof tag);
  frame.bytes = {buffer, size + kTag};
  frame.checksum_start = static_cast<std::uint16_t>(frame.checksum_start + kTag);
  return frame;
}

std::uint32_t PacketReceiver::take_overflows() {
  tpacket_stats stats{};
  socklen_t size = sizeof stats;
  if (syscall(SYS_getsockopt, socket_.get(), SOL_PACKET, PACKET_STATISTICS, &stats, &size) != 0) {
    return 0;
  }
  return stats.tp_drops;
}

}  // namespace verbena::port
