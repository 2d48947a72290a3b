// SPDX-License-Identifier: MIT
// One network interface as this process's raw packet queue pairs use it: who gets which of its
// frames, and a socket each way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "nic/device.h"
#include "nic/error.h"
#include "port/packet_socket.h"
#include "raw/flow_table.h"
#include "raw/segments.h"

namespace verbena::nic {

class RawPort {
 public:
  // kPrivilege: it takes CAP_NET_RAW. kNotSupported: the interface does not carry Ethernet frames.
  static Result<std::unique_ptr<RawPort>, Error> open(const Device& device);

  std::uint32_t interface() const { return options_.interface; }

  // -- any thread, with a queue pair's lock
  using Outcome = port::PacketSender::Outcome;
  Outcome send(std::span<const std::span<const std::byte>> frames, std::size_t& sent);
  // Bytes, without a tag, as the interface is now.
  std::size_t longest_frame();

  // -- one thread at a time: whoever has RawNic's lock
  Result<raw::FlowId, Error> add(const raw::Flow& flow);
  void remove(raw::FlowId id);
  void count(raw::FlowId id, const raw::CountingPoint& point) { table_.count(id, point); }
  bool has_flows() const { return table_.size() != 0; }
  // Calls each(bytes, key, queue pairs) for the frames that have come, a batch at most: each of
  // them as it was on the link. How many.
  template <class Each>
  std::size_t receive(Each each) {
    const std::size_t count = receiver_->receive();
    for (const port::ReceivedFrame& frame : receiver_->frames().first(count))
      take(frame, each);
    return count;
  }
  int receiver() const { return receiver_->fd(); }
  // Programs close descriptors that they do not know: makes new ones.
  void mend();

 private:
  RawPort(const Device& device, port::PacketSender sender,
          std::unique_ptr<port::PacketReceiver> receiver);

  template <class Each>
  void take(const port::ReceivedFrame& frame, Each& each) {
    const auto heading = frame.is_outgoing ? raw::Heading::kOut : raw::Heading::kIn;
    raw::Segments segments(frame.bytes, undone_of(frame));
    for (;;) {
      const std::span<const std::byte> segment = segments.next({room_.get(), kRoom});
      if (segment.empty()) return;
      const raw::Key key = raw::key_of(segment);
      to_.clear();
      table_.find({key, heading, segment.size()}, to_);
      if (!to_.empty()) each(segment, key, std::span<const QpNum>(to_));
    }
  }
  static raw::Undone undone_of(const port::ReceivedFrame& frame);
  bool settle_filter();
  bool join(const raw::Flow& flow, bool is_joining);

  // What one segment of a joined frame has room in.
  static constexpr std::size_t kRoom = 66 * 1024;

  port::PacketSocketOptions options_;
  Mutex send_lock_;
  port::PacketSender sender_;
  std::unique_ptr<port::PacketReceiver> receiver_;
  raw::FlowTable table_;
  std::unique_ptr<std::byte[]> room_;
  std::vector<QpNum> to_;
};

}  // namespace verbena::nic
