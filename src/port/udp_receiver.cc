// SPDX-License-Identifier: MIT
#include "port/udp_receiver.h"

#include <linux/udp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "host/raw_calls.h"
#include "port/udp_socket.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

namespace raw = host::raw;

// The content of a control message; false: it is shorter than that.
template <class T>
bool content(const cmsghdr& control, T& into) {
  if (control.cmsg_len < CMSG_LEN(sizeof into)) return false;
  std::memcpy(&into, CMSG_DATA(&control), sizeof into);
  return true;
}

Ecn ecn_of(unsigned traffic_class) { return static_cast<Ecn>(traffic_class & 3); }

Gid gid_of(const in6_addr& address) {
  Gid gid;
  std::memcpy(gid.bytes, &address, sizeof gid.bytes);
  return gid;
}
Gid gid_of(const in_addr& address) {
  std::array<std::uint8_t, 4> bytes{};
  std::memcpy(bytes.data(), &address, bytes.size());
  return wire::gid_of(bytes);
}

void read_source(const sockaddr_storage& name, Received& into) {
  if (name.ss_family == AF_INET6) {
    const auto& from = reinterpret_cast<const sockaddr_in6&>(name);
    into.from = gid_of(from.sin6_addr);
    into.source_port = std::bit_cast<wire::be16>(from.sin6_port).value();
  } else {
    const auto& from = reinterpret_cast<const sockaddr_in&>(name);
    into.from = gid_of(from.sin_addr);
    into.source_port = std::bit_cast<wire::be16>(from.sin_port).value();
  }
}

void read_control(const cmsghdr& control, Received& into, std::uint32_t& segment_size) {
  const auto is = [&](int level, int type) {
    return control.cmsg_level == level && control.cmsg_type == type;
  };
  int number = 0;
  std::uint8_t byte = 0;
  if (is(IPPROTO_UDP, UDP_GRO)) {
    if (content(control, number) && number > 0) segment_size = static_cast<std::uint32_t>(number);
  } else if (is(IPPROTO_IP, IP_TOS)) {
    if (content(control, byte)) into.ecn = ecn_of(byte);
  } else if (is(IPPROTO_IPV6, IPV6_TCLASS)) {
    if (content(control, number)) into.ecn = ecn_of(static_cast<unsigned>(number));
  } else if (is(IPPROTO_IPV6, IPV6_PKTINFO)) {
    in6_pktinfo info{};
    if (!content(control, info)) return;
    into.to = gid_of(info.ipi6_addr);
    into.interface = info.ipi6_ifindex;
  } else if (is(IPPROTO_IP, IP_PKTINFO)) {
    in_pktinfo info{};
    if (!content(control, info)) return;
    into.to = gid_of(info.ipi_addr);
    into.interface = static_cast<std::uint32_t>(info.ipi_ifindex);
  }
}

}  // namespace

UdpReceiver::UdpReceiver(SlotNumber slot, UniqueFd socket)
    : slot_(slot),
      socket_(std::move(socket)),
      file_(file_of(socket_.get())),
      buffers_(std::make_unique_for_overwrite<Buffer[]>(kBatches)),
      may_be_single_(is_merging(socket_.get())) {}

UdpReceiver::~UdpReceiver() {
  const int fd = is_open() ? socket_.release() : (socket_.release(), -1);
  if (fd >= 0) raw::close(fd);
}

bool UdpReceiver::is_open() const {
  return socket_ && file_ != 0 && file_of(socket_.get()) == file_;
}

std::size_t UdpReceiver::take(std::span<Received> into, Counters& counters) {
  if (mode_ == Mode::kSingle && rest_.empty() && !has_details_.load(std::memory_order_acquire))
    return take_single(into.front(), counters);
  std::size_t given = split(into);
  // A batch that did not fit the last call keeps its buffer until this call's end. After others the
  // first buffers serve again: they are still in the nearest cache.
  if (given == 0) current_ = kBatches - 1;
  std::size_t bytes = 0;
  for (std::size_t n = 1; n < kBatches && given < into.size() && bytes < kBytesPerCall; ++n) {
    const std::size_t next = (current_ + 1) % kBatches;
    if (read(next, counters) != Got::kBatch) break;
    current_ = next;
    const std::size_t size = rest_.size();
    bytes += size;
    given += split(into.subspan(given));
    if (size < kBytesAlone) break;
  }
  if (given != 0)
    note_some(given, bytes);
  else
    note_nothing();
  return given;
}

void UdpReceiver::note_some(std::size_t packets, std::size_t bytes) {
  constexpr unsigned kConversation = 256;
  constexpr unsigned kStream = 4;
  ++in_a_row_;
  const bool is_alone = packets == 1 && bytes < kBytesAlone && in_a_row_ < kStream;
  if (!is_alone) return merge();
  if (mode_ != Mode::kMerged || !may_be_single_ || ++alone_ < kConversation) return;
  stop_merging();
}

void UdpReceiver::stop_merging() {
  alone_ = 0;
  if (has_details_.load(std::memory_order_acquire)) return;
  if (is_open() && set_merging(socket_.get(), false)) mode_ = Mode::kDraining;
}

// One look would do, but for a processor that was about to put something into the socket.
void UdpReceiver::note_nothing() {
  constexpr unsigned kLooks = 3;
  in_a_row_ = 0;
  if (mode_ != Mode::kDraining || ++alone_ < kLooks) return;
  mode_ = Mode::kSingle;
  alone_ = 0;
}

void UdpReceiver::merge() {
  alone_ = 0;
  if (mode_ == Mode::kMerged) return;
  mode_ = Mode::kMerged;
  if (is_open()) set_merging(socket_.get(), true);
}

auto UdpReceiver::read(std::size_t into, Counters& counters) -> Got {
  if (mode_ == Mode::kDraining) return read_draining(into, counters);
  return read_with_control(into, counters);
}

auto UdpReceiver::read_draining(std::size_t into, Counters& counters) -> Got {
  std::byte none{};
  socklen_t no_name = 0;
  if (raw::receive_from(socket_.get(), &none, 0, MSG_PEEK | MSG_DONTWAIT, nullptr, no_name) < 0)
    return Got::kNothing;
  alone_ = 0;
  set_merging(socket_.get(), true);
  const Got got = read_with_control(into, counters);
  set_merging(socket_.get(), false);
  return got;
}

// One packet, by the short way.
std::size_t UdpReceiver::take_single(Received& into, Counters& counters) {
  sockaddr_storage from;
  socklen_t from_size = sizeof from;
  const ssize_t size =
      raw::receive_from(socket_.get(), buffer(0), kBatchBytes, MSG_DONTWAIT, &from, from_size);
  if (size < 0) {
    if (errno != EAGAIN && errno != EINTR) cannot_read_singly(counters);
    note_nothing();
    return 0;
  }
  counters.add_alone(Count::kReceivedBatches);
  into = {.payload = {buffer(0), static_cast<std::size_t>(size)}};
  read_source(from, into);
  note_some(1, into.payload.size());
  return 1;
}

// A filter may know the other call only.
void UdpReceiver::cannot_read_singly(Counters& counters) {
  counters.add(Count::kReceiveErrors);
  may_be_single_ = false;
  merge();
}

auto UdpReceiver::read_with_control(std::size_t into, Counters& counters) -> Got {
  alignas(cmsghdr) std::byte control[256];
  sockaddr_storage from{};
  iovec piece{buffer(into), kBatchBytes};
  msghdr message{};
  while (true) {
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    message.msg_flags = 0;
    const ssize_t size = raw::recvmsg(socket_.get(), message, MSG_DONTWAIT);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return Got::kNothing;
      counters.add(Count::kReceiveErrors);
      return Got::kFailed;
    }
    const bool is_whole = (message.msg_flags & MSG_TRUNC) == 0;
    if (!is_whole) counters.add(Count::kTruncated);
    rest_ = std::span(buffer(into), is_whole ? static_cast<std::size_t>(size) : 0);
    break;
  }
  counters.add_alone(Count::kReceivedBatches);
  head_ = {};
  segment_size_ = static_cast<std::uint32_t>(rest_.size());
  read_source(from, head_);
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
    read_control(*each, head_, segment_size_);
  return Got::kBatch;
}

std::size_t UdpReceiver::split(std::span<Received> into) {
  std::size_t given = 0;
  for (; given < into.size() && !rest_.empty(); ++given) {
    const std::size_t size = std::min<std::size_t>(segment_size_, rest_.size());
    into[given] = head_;
    into[given].payload = rest_.first(size);
    rest_ = rest_.subspan(size);
    ++head_.segment;
  }
  return given;
}

}  // namespace verbena::port
