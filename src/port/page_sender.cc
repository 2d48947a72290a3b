// SPDX-License-Identifier: MIT
#include "port/page_sender.h"

#include <fcntl.h>
#include <linux/udp.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/raw_calls.h"
#include "host/raw_memory.h"
#include "port/udp_message.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

namespace raw = host::raw;

// Go ahead: a BTH, and no more than has to be copied.
constexpr std::size_t kAhead = 16;
constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
// What a pipe holds unless the user has too many of them, and what the kernel takes from one at a
// time.
constexpr std::size_t kPipePages = 16;

}  // namespace

std::unique_ptr<PageSender> PageSender::open(const Sender& like, const Route& route,
                                             std::uint32_t buffer) {
  const int fd = make_sender_like(like, route.from, buffer);
  if (fd < 0) return nullptr;
  std::unique_ptr<PageSender> sender(new PageSender(like, fd));
  return sender->has_pipe() ? std::move(sender) : nullptr;
}

PageSender::PageSender(const Sender& like, int fd) : like_(like), socket_(known(fd)) {}

PageSender::~PageSender() {
  for (const Descriptor& each : {socket_, pipe_[0], pipe_[1]})
    if (each.fd >= 0 && file_of(each.fd) == each.file) raw::close(each.fd);
}

bool PageSender::has_pipe() {
  std::array<int, 2> ends{};
  if (!raw::make_pipe(ends)) return false;
  for (std::size_t i = 0; i < ends.size(); ++i)
    pipe_[i] = known(lift_descriptor(ends[i]));
  return raw::pipe_size(pipe_[0].fd) >= static_cast<long>(kPipePages * host::page_size());
}

bool PageSender::check() {
  for (const Descriptor& each : {socket_, pipe_[0], pipe_[1]})
    is_open_ = is_open_ && file_of(each.fd) == each.file;
  return is_open_;
}

bool PageSender::divide(std::uint32_t segment_size) {
  if (segment_size_ == segment_size) return true;
  segment_size_ = segment_size;
  return set_segment_size(socket_.fd, segment_size);
}

bool PageSender::send(const Train& train, std::uint16_t port) {
  const std::span<const std::byte> rest = train.bytes.subspan(kAhead);
  const std::size_t from = reinterpret_cast<std::uintptr_t>(rest.data()) % host::page_size();
  if (from + rest.size() > kPipePages * host::page_size()) return false;
  is_open_ = divide(train.segment_size);
  if (!is_open_) return false;
  UdpMessage ahead;
  ahead.set(train, train.bytes.first(kAhead), port, like_.is_bound);
  if (ahead.send(socket_.fd, kFlags | MSG_MORE) < 0) return false;
  is_open_ = push(rest);
  return is_open_;
}

// The kernel forgets an open datagram if it fails. What is left in the pipe nobody wants.
bool PageSender::push(std::span<const std::byte> bytes) {
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  const auto size = static_cast<ssize_t>(bytes.size());
  return raw::lend_pages(pipe_[1].fd, piece) == size &&
         raw::splice(pipe_[0].fd, socket_.fd, bytes.size()) == size;
}

// Two packets and a half, from two pages, come as they were. That pages are not copied does not
// show, and need not.
bool PageSender::is_possible() {
  static const bool is = [] {
    constexpr std::uint32_t kSegment = 2000;
    constexpr std::size_t kBytes = 5000;
    const Gid loopback = wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 1});
    const auto receiver = make_sender(0, &loopback);  // which drops what it gets
    const auto like = make_sender(0, &loopback);
    bool good = false;
    if (receiver && like) {
      accept_packets(receiver->fd);
      std::array<std::byte, kBytes> sent;
      for (std::size_t i = 0; i < kBytes; ++i)
        sent[i] = static_cast<std::byte>(i * 7 / 3);
      const Train train{{.from = loopback, .to = loopback}, sent, kSegment, true};
      const auto sender = open(*like, train.route, 0);
      std::size_t got = 0;
      good = sender && sender->send(train, receiver->port);
      while (good && got < kBytes) {
        std::array<std::byte, kSegment + 1> packet;
        const ssize_t size = raw::receive(receiver->fd, packet.data(), packet.size());
        good = size == static_cast<ssize_t>(std::min<std::size_t>(kSegment, kBytes - got)) &&
               std::memcmp(packet.data(), sent.data() + got, static_cast<std::size_t>(size)) == 0;
        got += kSegment;
      }
    }
    if (receiver) raw::close(receiver->fd);
    if (like) raw::close(like->fd);
    return good;
  }();
  return is;
}

}  // namespace verbena::port
