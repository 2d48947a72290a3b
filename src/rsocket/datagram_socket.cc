// SPDX-License-Identifier: MIT
#include "rsocket/datagram_socket.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rsocket/option_value.h"

namespace verbena::rsocket {
namespace {

constexpr std::size_t kUdpMax = 65536;
constexpr std::size_t kPeersMax = 4096;
constexpr std::size_t kPairsMax = 64;
// Datagrams that wait for the program; the rest waits in the queue pairs and the UDP socket.
constexpr std::size_t kWaitingMax = 256;
constexpr int kUdpBatch = 16;
constexpr Duration kClosePatience = Duration::seconds(1);

}  // namespace

std::unique_ptr<DatagramSocket> DatagramSocket::create(int family) {
  auto made = std::make_unique<DatagramSocket>(family);
  made->udp_ = UniqueFd(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (made->fd() < 0 || !made->udp_ || !made->watch(made->udp_.get())) return nullptr;
  made->cm_ = rdma_create_event_channel();
  if (!made->cm_) return nullptr;
  made->scratch_.resize(kUdpMax);
  return made;
}

DatagramSocket::~DatagramSocket() {
  forget_peers();
  pairs_.clear();
  if (cm_) rdma_destroy_event_channel(cm_);
}

void DatagramSocket::forget_peers() {
  for (auto& [point, peer] : peers_)
    if (peer.handle) ibv_destroy_ah(peer.handle);
  peers_.clear();
}

int DatagramSocket::bind(const sockaddr* address, socklen_t size) {
  return ::bind(udp_.get(), address, size) == 0 ? 0 : errno;
}

int DatagramSocket::connect(const sockaddr* address, socklen_t size) {
  const Lock held(lock);
  if (address && size >= sizeof(sa_family_t) && address->sa_family == AF_UNSPEC) {
    connected_to_.reset();
    return 0;
  }
  const auto point = EndPoint::from(address, size);
  if (!point) return EAFNOSUPPORT;
  const auto peer = peer_for(*point);
  if (!peer) return peer.error();
  connected_to_ = point;
  return 0;
}

// Where the system would send from, as a datagram socket of its own tells.
Result<EndPoint, int> DatagramSocket::source_towards(const EndPoint& to) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(udp_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return refuse(errno);
  }
  auto own = EndPoint::from(reinterpret_cast<const sockaddr*>(&address), size);
  if (!own) return refuse(EAFNOSUPPORT);
  if (!own->is_any()) return *own;
  const std::uint16_t port = own->port;
  const UniqueFd probe(::socket(family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe) return refuse(errno);
  sockaddr_storage target;
  const socklen_t target_size = to.store(family(), target);
  size = sizeof address;
  if (::connect(probe.get(), reinterpret_cast<sockaddr*>(&target), target_size) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return refuse(errno);
  }
  own = EndPoint::from(reinterpret_cast<const sockaddr*>(&address), size);
  if (!own) return refuse(EAFNOSUPPORT);
  own->port = port;
  return *own;
}

Result<DatagramPair*, int> DatagramSocket::pair_for(const EndPoint& local) {
  for (const auto& each : pairs_)
    if (each->name() == local) return each.get();
  if (pairs_.size() >= kPairsMax) return refuse(ENOBUFS);
  auto pair = std::make_unique<DatagramPair>();
  if (const int error = pair->create(cm_, local, settings)) return refuse(error);
  if (!watch(pair->event_fd())) return refuse(errno);
  pairs_.push_back(std::move(pair));
  return pairs_.back().get();
}

Result<DatagramSocket::Peer*, int> DatagramSocket::peer_for(const EndPoint& to) {
  const auto known = peers_.find(to);
  if (known != peers_.end()) return &known->second;
  if (to.is_ipv4() != (family() == AF_INET)) return refuse(EAFNOSUPPORT);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (getsockname(udp_.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) return refuse(errno);
  const auto name = EndPoint::from(reinterpret_cast<const sockaddr*>(&own), size);
  if (name && name->port == 0) {
    // A port of its own, by which the peer knows it.
    EndPoint any = *name;
    size = any.store(family(), own);
    if (::bind(udp_.get(), reinterpret_cast<sockaddr*>(&own), size) != 0) return refuse(errno);
  }
  const auto local = source_towards(to);
  if (!local) return refuse(local.error());
  const auto pair = pair_for(*local);
  if (!pair) return refuse(pair.error());
  if (peers_.size() >= kPeersMax) forget_peers();
  Peer& peer = peers_[to];
  peer.pair = *pair;
  return &peer;
}

int DatagramSocket::send_udp(const Peer& peer, const EndPoint& to, UdpOp op,
                             std::span<const iovec> parts) {
  std::array<std::byte, kUdpHeaderMax> header;
  EndPoint own = peer.pair->name();
  own.port = 0;
  const UdpHeader told{op, peer.pair->number(), own};
  const std::size_t size = write_header(told, header);
  std::vector<iovec> all{{header.data(), size}};
  all.insert(all.end(), parts.begin(), parts.end());
  sockaddr_storage address;
  msghdr message{};
  message.msg_namelen = to.store(family(), address);
  message.msg_name = &address;
  message.msg_iov = all.data();
  message.msg_iovlen = all.size();
  return sendmsg(udp_.get(), &message, MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

// Somebody told where its queue pair is; it wants to know ours, unless this was its answer.
void DatagramSocket::learn(const UdpHeader& header, const EndPoint& from,
                           std::span<const std::byte> data) {
  const auto found = peer_for(from);
  if (!found) return;
  Peer& peer = **found;
  if (!peer.handle) peer.handle = peer.pair->handle_for(from);
  peer.queue_pair = header.queue_pair;
  if (header.op == UdpOp::kControl) return;
  send_udp(peer, from, UdpOp::kControl, {});
  keep(from, data);
}

void DatagramSocket::keep(const EndPoint& from, std::span<const std::byte> data) {
  if (connected_to_ && *connected_to_ != from) return;
  // As a socket of UDP does whose program does not read: what is told of our own datagrams is taken
  // nevertheless.
  if (waiting_.size() >= kWaitingMax) return;
  waiting_.push_back({from, {data.begin(), data.end()}});
}

bool DatagramSocket::take_udp() {
  bool any = false;
  for (int i = 0; i < kUdpBatch; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const ssize_t got = recvfrom(udp_.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&address), &size);
    if (got < 0) break;
    any = true;
    std::span<const std::byte> data(scratch_.data(), static_cast<std::size_t>(got));
    const auto from = EndPoint::from(reinterpret_cast<const sockaddr*>(&address), size);
    const auto header = read_udp_header(data);
    if (from && header) learn(*header, *from, data);
  }
  return any;
}

bool DatagramSocket::take_pairs() {
  bool any = false;
  for (const auto& pair : pairs_) {
    const std::uint32_t taken = pair->collect(kWaitingMax, [this](std::span<const std::byte> data) {
      if (const auto from = read_pair_header(data)) keep(*from, data);
    });
    any = any || taken > 0;
  }
  return any;
}

bool DatagramSocket::advance() {
  if (!in_owner()) return false;
  const bool any = take_pairs();
  // A system call, so only where nothing else came.
  return any ? any : take_udp();
}

void DatagramSocket::arm() {
  for (const auto& pair : pairs_)
    pair->arm();
}

Result<std::size_t, int> DatagramSocket::receive(std::span<const iovec> parts, int flags,
                                                 Sender* sender) {
  Lock held(lock);
  if (!in_owner()) return refuse(EIO);
  if (waiting_.empty()) {
    const int waited =
        wait(held, is_nonblocking(flags), receive_deadline(), [this] { return !waiting_.empty(); });
    if (waited != 0) return refuse(waited);
  }
  const Datagram& next = waiting_.front();
  std::size_t copied = 0;
  for (const iovec& part : parts) {
    const std::size_t bytes = std::min(part.iov_len, next.data.size() - copied);
    if (bytes > 0) std::memcpy(part.iov_base, next.data.data() + copied, bytes);
    copied += bytes;
  }
  if (sender) sender->size = next.from.store(family(), sender->address);
  const std::size_t size = (flags & MSG_TRUNC) != 0 ? next.data.size() : copied;
  if ((flags & MSG_PEEK) == 0) waiting_.pop_front();
  return size;
}

Result<std::size_t, int> DatagramSocket::send(std::span<const iovec> parts, int flags,
                                              const sockaddr* to, socklen_t size) {
  Lock held(lock);
  if (!in_owner()) return refuse(EIO);
  std::optional<EndPoint> target = connected_to_;
  if (to) target = EndPoint::from(to, size);
  if (!target) return refuse(to ? EAFNOSUPPORT : EDESTADDRREQ);
  const auto found = peer_for(*target);
  if (!found) return refuse(found.error());
  if (!(*found)->handle) step();  // the answer may be there
  const std::size_t bytes = total(parts);
  const Instant deadline = send_deadline();
  for (;;) {
    // Each time: whoever comes new while it waits may take its place.
    const auto peer = peer_for(*target);
    if (!peer) return refuse(peer.error());
    DatagramPair& pair = *(*peer)->pair;
    if (bytes > pair.payload_max()) return refuse(EMSGSIZE);
    if ((*peer)->handle && !pair.has_slot()) {
      const int waited =
          wait(held, is_nonblocking(flags), deadline, [&pair] { return pair.has_slot(); });
      if (waited != 0) return refuse(waited);
      continue;
    }
    const int error = (*peer)->handle
                          ? pair.send((*peer)->handle, (*peer)->queue_pair, parts, bytes)
                          : send_udp(**peer, *target, UdpOp::kData, parts);
    if (error != 0) return refuse(error);
    return bytes;
  }
}

short DatagramSocket::readiness() {
  const bool can_send =
      std::all_of(pairs_.begin(), pairs_.end(), [](const auto& each) { return each->has_slot(); });
  const int ready =
      (can_send ? POLLOUT | POLLWRNORM : 0) | (waiting_.empty() ? 0 : POLLIN | POLLRDNORM);
  return static_cast<short>(ready);
}

void DatagramSocket::close() {
  Lock held(lock);
  if (!in_owner()) return;
  const auto is_idle = [this] {
    return std::all_of(pairs_.begin(), pairs_.end(),
                       [](const auto& each) { return each->is_idle(); });
  };
  const Instant deadline = clock_now() + kClosePatience;
  waiting_.clear();
  while (!is_idle() && clock_now() < deadline) {
    waiting_.clear();
    wait(held, false, deadline, is_idle);
  }
}

int DatagramSocket::name(sockaddr_storage& address, socklen_t& size) {
  size = sizeof address;
  return getsockname(udp_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0 ? 0 : errno;
}

int DatagramSocket::peer_name(sockaddr_storage& address, socklen_t& size) {
  const Lock held(lock);
  if (!connected_to_) return ENOTCONN;
  size = connected_to_->store(family(), address);
  return 0;
}

int DatagramSocket::set_option(int level, int option, const void* value, socklen_t size) {
  return setsockopt(udp_.get(), level, option, value, size) == 0 ? 0 : errno;
}

int DatagramSocket::get_option(int level, int option, void* value, socklen_t* size) {
  return getsockopt(udp_.get(), level, option, value, size) == 0 ? 0 : errno;
}

}  // namespace verbena::rsocket
