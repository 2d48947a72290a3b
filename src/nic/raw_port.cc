// SPDX-License-Identifier: MIT
#include "nic/raw_port.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/log.h"
#include "nic/forked_descriptors.h"
#include "raw/filter.h"

namespace verbena::nic {
namespace {

Error error_of(port::SocketError error) {
  switch (error) {
    case port::SocketError::kNoDescriptor: return Error::kNoDescriptors;
    case port::SocketError::kNoMemory: return Error::kNoRoom;
    case port::SocketError::kDenied: return Error::kPrivilege;
    case port::SocketError::kInUse:
    case port::SocketError::kMissing:
    case port::SocketError::kClosed: return Error::kNotSupported;
  }
  return Error::kNotSupported;
}

struct Wish {
  port::Membership membership;
  port::EthernetAddress address{};
};

// What the interface has to take from its link for the flow's sake. None: no more than it does. A
// rule that says nothing of the address asks for nothing either, as with an adapter.
std::optional<Wish> wish_of(const raw::Flow& flow) {
  using port::Membership;
  constexpr port::EthernetAddress kWhole = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
  switch (flow.kind) {
    case raw::FlowKind::kSniffer:
    case raw::FlowKind::kAllDefault: return Wish{Membership::kEverything};
    case raw::FlowKind::kMulticastDefault: return Wish{Membership::kAllMulticast};
    case raw::FlowKind::kNormal: break;
  }
  const port::EthernetAddress& mask = flow.mask.destination_mac;
  if (mask == port::EthernetAddress{}) return std::nullopt;
  const bool is_group = raw::is_multicast(mask) && raw::is_multicast(flow.value.destination_mac);
  if (mask != kWhole) return Wish{is_group ? Membership::kAllMulticast : Membership::kEverything};
  return Wish{is_group ? Membership::kMulticast : Membership::kUnicast, flow.value.destination_mac};
}

}  // namespace

RawPort::RawPort(const Device& device, port::PacketSender sender,
                 std::unique_ptr<port::PacketReceiver> receiver)
    : options_{.interface = device.interface_index, .is_loopback = device.is_loopback},
      sender_(std::move(sender)),
      receiver_(std::move(receiver)),
      table_(device.limits.flows),
      room_(std::make_unique_for_overwrite<std::byte[]>(kRoom)) {
  close_in_children(sender_.fd());
  close_in_children(receiver_->fd());
}

Result<std::unique_ptr<RawPort>, Error> RawPort::open(const Device& device) {
  const port::PacketSocketOptions options{.interface = device.interface_index,
                                          .is_loopback = device.is_loopback};
  auto sender = port::PacketSender::open(options);
  if (!sender) return refuse(error_of(sender.error()));
  auto receiver = port::PacketReceiver::open(options);
  if (!receiver) return refuse(error_of(receiver.error()));
  return std::unique_ptr<RawPort>(new RawPort(device, std::move(*sender), std::move(*receiver)));
}

auto RawPort::send(std::span<const std::span<const std::byte>> frames, std::size_t& sent)
    -> Outcome {
  const std::lock_guard guard(send_lock_);
  return sender_.send(frames, sent);
}

std::size_t RawPort::longest_frame() {
  const std::lock_guard guard(send_lock_);
  return sender_.longest_frame();
}

Result<raw::FlowId, Error> RawPort::add(const raw::Flow& flow) {
  const auto id = table_.add(flow);
  if (!id) return refuse(Error::kNoRoom);
  if (!join(flow, true)) {
    table_.remove(*id);
    return refuse(Error::kNotSupported);
  }
  if (!settle_filter()) {
    remove(*id);
    return refuse(Error::kNoRoom);
  }
  return *id;
}

void RawPort::remove(raw::FlowId id) {
  const auto flow = table_.remove(id);
  if (!flow) return;
  static_cast<void>(settle_filter());  // else too much comes, and is thrown away here
  join(*flow, false);
}

bool RawPort::settle_filter() {
  const std::vector<raw::Flow> flows = table_.flows();
  if (receiver_->set_filter(raw::filter_for(flows))) return true;
  // The system has room for some hundred rules in a socket (net.core.optmem_max).
  const raw::Flow everything{.kind = raw::FlowKind::kSniffer};
  return receiver_->set_filter(raw::filter_for(std::span(&everything, 1)));
}

// The loopback interface has no link: everything comes.
bool RawPort::join(const raw::Flow& flow, bool is_joining) {
  const auto wish = wish_of(flow);
  if (!wish || options_.is_loopback) return true;
  return receiver_->change_membership(wish->membership, wish->address, is_joining);
}

raw::Undone RawPort::undone_of(const port::ReceivedFrame& frame) {
  raw::Undone undone;
  undone.needs_checksum = frame.needs_checksum;
  undone.transport_at = frame.checksum_start;
  undone.checksum_at = frame.checksum_offset;
  undone.segment = frame.segment;
  using Joined = raw::Undone::Joined;
  switch (frame.joined) {
    case port::Joined::kNo: break;
    case port::Joined::kTcp: undone.joined = Joined::kTcp; break;
    case port::Joined::kUdp: undone.joined = Joined::kUdp; break;
  }
  return undone;
}

void RawPort::mend() {
  if (!sender_.is_open()) {
    auto sender = port::PacketSender::open(options_);
    const std::lock_guard guard(send_lock_);
    sender_.forget();
    if (sender) {
      sender_ = std::move(*sender);
      close_in_children(sender_.fd());
    }
  }
  if (receiver_->is_open()) return;
  LOG_WARN("the program closed a packet socket of interface %u", interface());
  auto receiver = port::PacketReceiver::open(options_);
  if (!receiver) return;
  receiver_ = std::move(*receiver);
  close_in_children(receiver_->fd());
  for (const raw::Flow& flow : table_.flows())
    join(flow, true);
  static_cast<void>(settle_filter());
}

}  // namespace verbena::nic
