// SPDX-License-Identifier: MIT
#include "port/page_sender.h"

#include <fcntl.h>
#include <linux/udp.h>

#include <algorithm>
#include <cstring>

#include "host/raw_calls.h"
#include "host/raw_memory.h"
#include "port/connected_ids.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

namespace raw = host::raw;

constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
// What the kernel takes from a pipe at a time, and what one holds unless the user has too many.
constexpr std::size_t kTrainPages = 16;
// For so many trains a pipe is given their pages in one call, where the user may have such pipes.
constexpr std::size_t kLentMost = 4;
// Less is not worth two calls.
constexpr std::size_t kBytesLeast = 32 << 10;
// Programs close descriptors that they do not know: after so many trains we look.
constexpr std::size_t kTrainsBetweenChecks = 32;

// Pages that a pipe takes, and that are worth it.
bool goes_by_pages(std::span<const std::byte> bytes) {
  const std::size_t from = reinterpret_cast<std::uintptr_t>(bytes.data()) % host::page_size();
  return bytes.size() >= kBytesLeast && from + bytes.size() <= kTrainPages * host::page_size();
}

iovec piece_of(const Train& train) {
  return {const_cast<std::byte*>(train.bytes.data()), train.bytes.size()};
}

}  // namespace

std::unique_ptr<PageSender> PageSender::open(const Sender& like, const Route& route,
                                             std::uint16_t port, std::uint32_t buffer) {
  if (like.fd < 0 || route.traffic_class != 0 || route.hop_limit != 0 ||
      route.ecn != Ecn::kNotCapable)
    return nullptr;
  const int fd = make_sender_like(like, route, buffer);
  if (fd < 0) return nullptr;
  std::unique_ptr<PageSender> sender(new PageSender(fd, like.port));
  return sender->connect(route, port) && sender->has_pipe() ? std::move(sender) : nullptr;
}

PageSender::~PageSender() {
  for (const Descriptor& each : {socket_, pipe_[0], pipe_[1]})
    if (each.fd >= 0 && file_of(each.fd) == each.file) raw::close(each.fd);
}

bool PageSender::connect(const Route& route, std::uint16_t port) {
  sockaddr_storage to{};
  const socklen_t size = to_address_of_family(route.to, route.interface, port, to);
  if (raw::connect(socket_.fd, reinterpret_cast<const sockaddr*>(&to), size) != 0) return false;
  if (!wire::is_ipv4(route.to)) return true;
  const auto next = learn_next_id(socket_.fd, route.from, source_port_);
  next_id_ = next.value_or(0);
  return next.has_value();
}

bool PageSender::has_pipe() {
  std::array<int, 2> ends{};
  if (!raw::make_pipe(ends)) return false;
  for (std::size_t i = 0; i < ends.size(); ++i)
    pipe_[i] = known(lift_descriptor(ends[i]));
  const std::size_t train = kTrainPages * host::page_size();
  raw::set_pipe_size(pipe_[0].fd, kLentMost * train);
  const auto size = static_cast<std::size_t>(std::max(raw::pipe_size(pipe_[0].fd), 0L));
  lent_most_ = std::min(size / train, kLentMost);
  return lent_most_ != 0;
}

void PageSender::check(std::size_t trains) {
  if (trains < unchecked_left_) {
    unchecked_left_ -= trains;
    return;
  }
  unchecked_left_ = kTrainsBetweenChecks;
  for (const Descriptor& each : {socket_, pipe_[0], pipe_[1]})
    is_over_ = is_over_ || file_of(each.fd) != each.file;
}

bool PageSender::divide(std::uint32_t segment_size) {
  if (segment_size_ == segment_size) return true;
  segment_size_ = segment_size;
  return set_segment_size(socket_.fd, segment_size);
}

// After a failure nobody knows what the kernel has counted, and pages may be left in the pipe. On
// this host a socket is never full.
Lane::Sent PageSender::send(std::span<const Train> trains) {
  check(trains.size());
  Sent sent;
  while (!is_over_ && sent.trains < trains.size()) {
    const auto rest = trains.subspan(sent.trains);
    const auto lent = rest.first(count_lendable(rest));
    if (lent.empty()) {
      is_over_ = !copy(rest.front());
      sent.trains += is_over_ ? 0 : 1;
      continue;
    }
    is_over_ = !lend(lent);
    for (std::size_t i = 0; i < lent.size() && !is_over_; ++i) {
      is_over_ = !pass_on(lent[i]);
      sent.trains += is_over_ ? 0 : 1;
      sent.uncopied += is_over_ ? 0 : 1;
    }
  }
  return sent;
}

std::size_t PageSender::count_lendable(std::span<const Train> trains) const {
  const auto first = trains.first(std::min(trains.size(), lent_most_));
  const auto end = std::ranges::find_if_not(
      first, [](const Train& train) { return goes_by_pages(train.bytes); });
  return static_cast<std::size_t>(end - first.begin());
}

bool PageSender::copy(const Train& train) {
  return begin(train) && raw::send_to(socket_.fd, piece_of(train), kFlags, nullptr, 0) ==
                             static_cast<ssize_t>(train.bytes.size());
}

// To the pipe.
bool PageSender::lend(std::span<const Train> trains) {
  std::array<iovec, kLentMost> pieces;
  ssize_t bytes = 0;
  for (std::size_t i = 0; i < trains.size(); ++i) {
    pieces[i] = piece_of(trains[i]);
    bytes += static_cast<ssize_t>(pieces[i].iov_len);
  }
  return raw::lend_pages(pipe_[1].fd, std::span(pieces).first(trains.size())) == bytes;
}

// What is next in the pipe, to the socket.
bool PageSender::pass_on(const Train& train) {
  return begin(train) && raw::splice(pipe_[0].fd, socket_.fd, train.bytes.size()) ==
                             static_cast<ssize_t>(train.bytes.size());
}

bool PageSender::begin(const Train& train) {
  ++next_id_;
  return divide(train.segment_size);
}

// Forty packets and a half, from several pages, come as they were, and count as one. That pages are
// not copied does not show, and need not.
bool PageSender::is_possible() {
  static const bool is = [] {
    constexpr std::uint32_t kSegment = 1000;
    constexpr std::size_t kBytes = 40'500;
    const Gid loopback = wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 1});
    const auto receiver = make_sender(0, &loopback);  // which drops what it gets
    const auto like = make_sender(0, &loopback);
    bool good = false;
    if (receiver && like) {
      accept_packets(receiver->fd);
      std::array<std::byte, kBytes> sent;
      for (std::size_t i = 0; i < kBytes; ++i)
        sent[i] = static_cast<std::byte>(i * 7 / 3);
      const Train train{{.from = loopback, .to = loopback}, sent, kSegment};
      const auto sender = open(*like, train.route, receiver->port, 0);
      std::size_t got = 0;
      good = sender && sender->send({&train, 1}).uncopied == 1;
      while (good && got < kBytes) {
        std::array<std::byte, kSegment + 1> packet;
        const ssize_t size = raw::receive(receiver->fd, packet.data(), packet.size());
        good = size == static_cast<ssize_t>(std::min<std::size_t>(kSegment, kBytes - got)) &&
               std::memcmp(packet.data(), sent.data() + got, static_cast<std::size_t>(size)) == 0;
        got += kSegment;
      }
      if (good) {
        const auto next = learn_next_id(sender->socket_.fd, loopback, sender->source_port_);
        good = next == static_cast<std::uint16_t>(sender->next_id_ + 2);
      }
    }
    if (receiver) raw::close(receiver->fd);
    if (like) raw::close(like->fd);
    return good;
  }();
  return is;
}

}  // namespace verbena::port
