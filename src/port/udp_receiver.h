// SPDX-License-Identifier: MIT
// One receiving socket and what was last read from it. A read brings a batch: packets of one size
// and one sender that GRO put together, the last one shorter perhaps.
//
// In a conversation packets come one by one, and nothing has to be told of them. Then the socket
// merges none, and they are read by recvfrom, which costs the kernel 250 ns less than recvmsg:
//
//              many packets in a row, each alone
//   kMerged ──────────────────────────────────────► kDraining ─ nothing was there, twice ─► kSingle
//      ▲                                                │                                     │
//      └───────── packets follow each other closely, or a long one comes ─────────────────────┘
//
// kDraining: what was merged before may still come. The system tells how long its packets are only
// while merging is on: who finds something there turns it on for as long as it takes to read it.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/types.h"
#include "base/unique_fd.h"
#include "port/port.h"

namespace verbena::port {

class UdpReceiver {
 public:
  static constexpr std::size_t kBatchBytes = 64 << 10;  // what GRO makes at most
  static constexpr std::size_t kBatches = 16;
  // A call brings in about this much, one long train: more would push out of the nearest cache what
  // was read first, and its acknowledgement would wait for all of it.
  static constexpr std::size_t kBytesPerCall = 32 << 10;

  // After less than this there is mostly nothing more, and finding that out is a system call.
  static constexpr std::size_t kBytesAlone = 2048;

  UdpReceiver(SlotNumber slot, UniqueFd socket);
  UdpReceiver(const UdpReceiver&) = delete;
  UdpReceiver& operator=(const UdpReceiver&) = delete;
  // Closes the socket, if the number still is our socket.
  ~UdpReceiver();

  SlotNumber slot() const { return slot_; }
  int fd() const { return socket_.get(); }
  // False: somebody closed it, and the number is free or some other file's.
  bool is_open() const;

  // Whether details are told of packets (Details). Any thread.
  void tell(bool has_details) { has_details_.store(has_details, std::memory_order_release); }
  // What is there, at most `into.size()` packets. What it gave before is void.
  std::size_t take(std::span<Received> into, Counters& counters);

 private:
  // Where the kernel copies to: pages of a train, from their beginning, and where the lines do not
  // lie alike a processor takes up to half as long again.
  struct alignas(64) Buffer {
    std::array<std::byte, kBatchBytes> bytes;
  };
  enum class Got : std::uint8_t { kBatch, kNothing, kFailed };
  enum class Mode : std::uint8_t { kMerged, kDraining, kSingle };
  Got read(std::size_t buffer, Counters& counters);
  Got read_with_control(std::size_t buffer, Counters& counters);
  [[gnu::cold]] Got read_draining(std::size_t buffer, Counters& counters);
  std::size_t take_single(Received& into, Counters& counters);
  void note_some(std::size_t packets, std::size_t bytes);
  void note_nothing();
  void merge();
  [[gnu::cold]] void stop_merging();
  [[gnu::cold]] void cannot_read_singly(Counters& counters);
  std::size_t split(std::span<Received> into);
  std::byte* buffer(std::size_t i) { return buffers_[i].bytes.data(); }

  const SlotNumber slot_;
  UniqueFd socket_;
  ino_t file_;
  const std::unique_ptr<Buffer[]> buffers_;

  std::atomic<bool> has_details_{true};
  Mode mode_ = Mode::kMerged;
  bool may_be_single_;
  unsigned in_a_row_ = 0;  // calls that brought something
  unsigned alone_ = 0;     // packets with nothing around them; in kDraining: looks at nothing

  // The batch that is being given out.
  std::size_t current_ = 0;
  std::span<const std::byte> rest_;
  std::uint32_t segment_size_ = 0;
  Received head_;  // of its next packet
};

}  // namespace verbena::port
