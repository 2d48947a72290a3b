// SPDX-License-Identifier: MIT
// Frames as they were on the link. The kernel puts the segments of a stream together where they
// come in, cuts them where they leave, and leaves checksums to adapters; an adapter's raw packets
// are neither joined nor unfinished.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::raw {

// What the kernel left undone (struct virtio_net_hdr).
struct Undone {
  enum class Joined : std::uint8_t { kNo, kTcp, kUdp };
  bool needs_checksum = false;
  // Of the transport's header, in the frame; of the checksum, in that header. Its field holds the
  // sum of the pseudo-header.
  std::uint32_t transport_at = 0;
  std::uint32_t checksum_at = 0;
  Joined joined = Joined::kNo;
  std::uint32_t segment = 0;  // bytes of payload in each, but for the last
};

// RFC 1071, from the bytes of several pieces, each of even length but the last.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  std::uint16_t sum() const;  // not complemented, host order

 private:
  std::uint64_t sum_ = 0;
};

// Writes the checksum. What is described wrongly is left alone.
void finish_checksum(std::span<std::byte> frame, const Undone& undone);

// The segments of a joined frame. One that is none, or is described wrongly, comes as it is.
class Segments {
 public:
  Segments(std::span<std::byte> frame, const Undone& undone);
  // The next one, in `room` or in the frame itself; good until the next call. Empty: that was the
  // last.
  std::span<const std::byte> next(std::span<std::byte> room);

 private:
  void finish_network(std::span<std::byte> segment) const;
  void finish_transport(std::span<std::byte> segment, bool is_last) const;

  std::span<std::byte> frame_;
  Undone undone_;
  std::size_t network_at_ = 0;
  std::size_t head_ = 0;  // bytes of headers; 0: it comes as it is
  std::size_t done_ = 0;  // of the payload, or of the frame where it comes as it is
  std::uint16_t count_ = 0;
};

}  // namespace verbena::raw
