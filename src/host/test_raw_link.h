// SPDX-License-Identifier: MIT
// A process that speaks to a control thread byte by byte, as a hostile one can. For tests only.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "host/greeting.h"
#include "host/slots.h"

namespace verbena::host {

using Bytes = std::vector<std::byte>;

template <class T>
void append(Bytes& bytes, const T& value) {
  const auto part = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), part.begin(), part.end());
}

inline Bytes frame(FrameType type, std::uint32_t detail = 0) {
  Bytes bytes;
  append(bytes, FrameHead{.type = type, .detail = detail});
  return bytes;
}
inline Bytes frame(FrameType type, const Greeting& greeting) {
  Bytes bytes = frame(type);
  append(bytes, greeting);
  return bytes;
}

// A seqpacket socket that speaks for itself.
class Raw {
 public:
  Raw() : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {}
  explicit Raw(const SlotAddress& to) : Raw() {
    EXPECT_EQ(::connect(fd_.get(), to.address(), to.size), 0);
  }
  explicit Raw(int fd) : fd_(fd) {}

  bool send(const Bytes& bytes, std::vector<int> fds = {}) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)] = {};
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
    }
    return sendmsg(fd_.get(), &message, MSG_NOSIGNAL) >= 0;
  }
  // The next frame; nothing at the end.
  Bytes receive() {
    Bytes bytes(kFrameMax);
    const ssize_t size = read(fd_.get(), bytes.data(), bytes.size());
    bytes.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return bytes;
  }
  // What it says before it closes; none if it just closes.
  std::optional<RefuseReason> refusal() {
    std::optional<RefuseReason> reason;
    for (Bytes bytes = receive(); !bytes.empty(); bytes = receive()) {
      const auto parsed = parse_frame(bytes);
      if (!parsed || parsed->type != FrameType::kRefuse) continue;
      reason = static_cast<RefuseReason>(parsed->detail);
    }
    return reason;
  }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;  // of any thread, unlike PrivateFd
};

inline Greeting greeting_to(SlotNumber wanted) {
  Greeting greeting;
  greeting.id = {7, 7};
  greeting.nonce_address = 8;
  greeting.nonce = 1;
  greeting.wanted_slot = wanted.value;
  greeting.slots.add(SlotNumber{1000});
  return greeting;
}

}  // namespace verbena::host
