// SPDX-License-Identifier: MIT
// One link: a non-blocking SEQPACKET socket that carries whole frames with attached descriptors. It
// knows nothing of what they mean (links.h does). Sending never waits: what the peer does not take
// now is queued, up to a limit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "host/descriptor_table.h"
#include "host/greeting.h"
#include "host/private_fd.h"

namespace verbena::host {

// A frame as it came, in a buffer that the next one reuses.
struct Received {
  alignas(16) std::array<std::byte, kFrameMax + 1> buffer;
  std::span<const std::byte> bytes;
  std::array<PrivateFd, kAttachmentsMax> attachments;

  void drop_attachments() {
    for (PrivateFd& attachment : attachments)
      attachment.reset();
  }
};

class Link {
 public:
  Link(PrivateFd socket, std::size_t queued_bytes_max)
      : socket_(std::move(socket)), queued_bytes_max_(queued_bytes_max) {}

  int fd() const { return socket_.get(); }

  // False: more is queued than the limit, or a descriptor could not be kept. Nothing was sent.
  bool send(const FrameHead& head, std::span<const std::byte> body, std::span<const int> fds,
            DescriptorTable& table);

  enum class Got : std::uint8_t {
    kFrame,
    kNothing,
    kEnd,
    kRubbish,       // longer than a frame can be, or with more descriptors
    kNoDescriptor,  // we had no room for what it attached
  };
  Got receive(Received& into, DescriptorTable& table);

  bool has_queued() const { return !queue_.empty(); }
  // Sends what is queued, as far as it goes.
  void flush();
  // Waits for the peer to read: flush() when the socket is writable.
  bool is_behind() const { return blocked_ == Blocked::kByPeer; }
  // Waits for something that the kernel lacks (descriptors in flight, memory): flush() a bit later.
  bool is_starved() const { return blocked_ == Blocked::kByKernel; }

 private:
  struct Waiting {
    std::vector<std::byte> bytes;
    std::vector<PrivateFd> attachments;
  };
  enum class Blocked : std::uint8_t { kNo, kByPeer, kByKernel };

  // What became of the frame: kNo when it is gone (or the link is, which receive() will find).
  Blocked transmit(const FrameHead* head, std::span<const std::byte> body,
                   std::span<const int> fds);

  PrivateFd socket_;
  std::deque<Waiting> queue_;
  std::size_t queued_bytes_ = 0;
  const std::size_t queued_bytes_max_;
  Blocked blocked_ = Blocked::kNo;
};

}  // namespace verbena::host
