// SPDX-License-Identifier: MIT
#include "host/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host/raw_calls.h"

namespace verbena::host {
namespace {

// Room for exactly the descriptors that a frame may have: of more, the kernel closes the surplus
// and says MSG_CTRUNC.
struct alignas(cmsghdr) AttachmentRoom {
  std::byte bytes[CMSG_LEN(kAttachmentsMax * sizeof(int))];
};
static_assert(sizeof(AttachmentRoom) == CMSG_SPACE(kAttachmentsMax * sizeof(int)));

// How many there were.
std::size_t take_attachments(msghdr& message, Received& into, DescriptorTable& table) {
  std::size_t used = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      PrivateFd owned = table.settle(fd);
      if (used < into.attachments.size()) into.attachments[used++] = std::move(owned);
    }
  }
  return used;
}

Link::Got judge(ssize_t size, int flags, std::size_t attached) {
  if (size == 0) return Link::Got::kEnd;
  if ((flags & MSG_TRUNC) != 0) return Link::Got::kRubbish;
  if ((flags & MSG_CTRUNC) == 0) return Link::Got::kFrame;
  return attached == kAttachmentsMax ? Link::Got::kRubbish : Link::Got::kNoDescriptor;
}

}  // namespace

Link::Blocked Link::transmit(const FrameHead* head, std::span<const std::byte> body,
                             std::span<const int> fds) {
  iovec parts[2] = {
      {const_cast<FrameHead*>(head), head ? sizeof *head : 0},
      {const_cast<std::byte*>(body.data()), body.size()},
  };
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  AttachmentRoom control{};
  if (!fds.empty()) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  while (raw::sendmsg(socket_.get(), message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    switch (errno) {
      case EINTR: continue;
      case EAGAIN: return Blocked::kByPeer;
      // ETOOMANYREFS: this user has more descriptors in flight than RLIMIT_NOFILE (unix(7)).
      case ETOOMANYREFS:
      case ENOBUFS:
      case ENOMEM: return Blocked::kByKernel;
      default: return Blocked::kNo;
    }
  }
  return Blocked::kNo;
}

bool Link::send(const FrameHead& head, std::span<const std::byte> body, std::span<const int> fds,
                DescriptorTable& table) {
  if (queue_.empty()) {
    blocked_ = transmit(&head, body, fds);
    if (blocked_ == Blocked::kNo) return true;
  }
  const std::size_t size = sizeof head + body.size();
  if (queued_bytes_ + size > queued_bytes_max_) return false;
  Waiting waiting;
  waiting.bytes.resize(size);
  std::memcpy(waiting.bytes.data(), &head, sizeof head);
  std::ranges::copy(body, waiting.bytes.begin() + sizeof head);
  for (const int fd : fds) {
    PrivateFd copy = table.make([fd] { return raw::duplicate(fd, 3); });
    if (!copy) return false;
    waiting.attachments.push_back(std::move(copy));
  }
  queued_bytes_ += size;
  queue_.push_back(std::move(waiting));
  return true;
}

void Link::flush() {
  blocked_ = Blocked::kNo;
  while (!queue_.empty()) {
    const Waiting& next = queue_.front();
    std::array<int, kAttachmentsMax> fds{};
    std::ranges::transform(next.attachments, fds.begin(), &PrivateFd::get);
    blocked_ = transmit(nullptr, next.bytes, std::span(fds).first(next.attachments.size()));
    if (blocked_ != Blocked::kNo) return;
    queued_bytes_ -= next.bytes.size();
    queue_.pop_front();
  }
}

Link::Got Link::receive(Received& into, DescriptorTable& table) {
  into.drop_attachments();
  // A peer that ended with something of ours unread leaves ECONNRESET, once, before its last words.
  for (int resets = 0; resets < 2;) {
    iovec part{into.buffer.data(), into.buffer.size()};
    AttachmentRoom control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    const ssize_t size = table.receive(
        [&] { return raw::recvmsg(socket_.get(), message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return Got::kNothing;
    if (size < 0 && errno == ECONNRESET) {
      ++resets;
      continue;
    }
    if (size < 0) return Got::kEnd;
    // Also an empty message, which looks like the end, may have brought some.
    const std::size_t attached = take_attachments(message, into, table);
    const Got got = judge(size, message.msg_flags, attached);
    if (got == Got::kFrame) {
      into.bytes = std::span(into.buffer).first(static_cast<std::size_t>(size));
    } else {
      into.drop_attachments();
    }
    return got;
  }
  return Got::kEnd;
}

}  // namespace verbena::host
