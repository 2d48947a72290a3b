// SPDX-License-Identifier: MIT
#include "rsocket/datagram_pair.h"

#include <fcntl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/assert.h"

namespace verbena::rsocket {
namespace {

constexpr std::size_t kGrh = 40;
constexpr std::uint32_t kSlotsUsed = 256;
constexpr std::uint8_t kHopLimit = 64;

}  // namespace

DatagramPair::~DatagramPair() {
  if (has_queue_pair_) rdma_destroy_qp(id_);
  if (completions_) {
    ibv_ack_cq_events(completions_, unacknowledged_);
    ibv_destroy_cq(completions_);
  }
  if (events_) ibv_destroy_comp_channel(events_);
  incoming_.destroy();
  outgoing_.destroy();
  if (id_) rdma_destroy_id(id_);
}

int DatagramPair::create(rdma_event_channel* events, const EndPoint& name,
                         const Settings& settings) {
  name_ = name;
  if (rdma_create_id(events, &id_, this, RDMA_PS_UDP) != 0) return errno;
  EndPoint anywhere = name;
  anywhere.port = 0;
  sockaddr_storage address;
  anywhere.store(name.is_ipv4() ? AF_INET : AF_INET6, address);
  if (rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&address)) != 0) return errno;
  if (!id_->verbs) return ENODEV;
  if (const int error = create_queues(settings)) return error;
  const std::size_t each = kGrh + mtu_;
  if (const int error = incoming_.create(id_->pd, slots_ * each, IBV_ACCESS_LOCAL_WRITE)) {
    return error;
  }
  if (const int error = outgoing_.create(id_->pd, slots_ * std::size_t{mtu_}, 0)) return error;
  for (std::uint32_t slot = 0; slot < slots_; ++slot)
    if (const int error = post_receive(slot)) return error;
  return find_gid();
}

int DatagramPair::create_queues(const Settings& settings) {
  ibv_port_attr port{};
  if (ibv_query_port(id_->verbs, id_->port_num, &port) != 0) return EIO;
  mtu_ = 128U << port.active_mtu;
  slots_ = std::min({settings.send_slots, settings.receive_slots, kSlotsUsed});
  events_ = ibv_create_comp_channel(id_->verbs);
  if (!events_) return errno;
  const int flags = fcntl(events_->fd, F_GETFL);
  if (flags < 0 || fcntl(events_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno;
  completions_ = ibv_create_cq(id_->verbs, static_cast<int>(2 * slots_), nullptr, events_, 0);
  if (!completions_) return errno;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_;
  attributes.qp_type = IBV_QPT_UD;
  attributes.sq_sig_all = 1;
  attributes.cap.max_send_wr = attributes.cap.max_recv_wr = slots_;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  if (rdma_create_qp(id_, nullptr, &attributes) != 0) return errno;
  has_queue_pair_ = true;
  return 0;
}

int DatagramPair::find_gid() {
  ibv_port_attr port{};
  if (ibv_query_port(id_->verbs, id_->port_num, &port) != 0) return EIO;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(id_->verbs, id_->port_num, static_cast<std::uint32_t>(i), &entry, 0) != 0)
      continue;
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
    if (std::memcmp(entry.gid.raw, name_.address.data(), 16) != 0) continue;
    gid_index_ = static_cast<std::uint8_t>(i);
    return 0;
  }
  return EADDRNOTAVAIL;
}

ibv_ah* DatagramPair::handle_for(const EndPoint& peer) {
  ibv_ah_attr attributes{};
  attributes.is_global = 1;
  std::memcpy(attributes.grh.dgid.raw, peer.address.data(), 16);
  attributes.grh.sgid_index = gid_index_;
  attributes.grh.hop_limit = kHopLimit;
  attributes.port_num = id_->port_num;
  return ibv_create_ah(id_->pd, &attributes);
}

void DatagramPair::arm() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(events_, &queue, &context) == 0) {
    is_armed_ = false;
    ++unacknowledged_;
  }
  if (!is_armed_) is_armed_ = ibv_req_notify_cq(completions_, 0) == 0;
}

int DatagramPair::post_receive(std::uint32_t slot) {
  const auto size = static_cast<std::uint32_t>(kGrh + mtu_);
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(incoming_.data()) + std::size_t{slot} * size, size,
                incoming_.local_key()};
  ibv_recv_wr request{};
  request.wr_id = kReceiveTag | slot;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(id_->qp, &request, &bad);
}

std::uint32_t DatagramPair::collect(std::uint32_t most,
                                    const std::function<void(std::span<const std::byte>)>& taker) {
  std::array<ibv_wc, 16> done;
  std::uint32_t taken = 0;
  int count = 0;
  do {
    count = ibv_poll_cq(completions_, static_cast<int>(done.size()), done.data());
    for (int i = 0; i < count; ++i) {
      const ibv_wc& each = done[static_cast<std::size_t>(i)];
      ++taken;
      if ((each.wr_id & kReceiveTag) == 0) {
        --sending_;
        continue;
      }
      const auto slot = static_cast<std::uint32_t>(each.wr_id & UINT32_MAX);
      const std::size_t size = kGrh + mtu_;
      const std::size_t length = std::min<std::size_t>(each.byte_len, size);
      if (each.status == IBV_WC_SUCCESS && length >= kGrh) {
        taker({incoming_.data() + slot * size + kGrh, length - kGrh});
      }
      if (each.status == IBV_WC_SUCCESS) post_receive(slot);
    }
  } while (count == static_cast<int>(done.size()) && taken < most);
  return taken;
}

std::size_t DatagramPair::payload_max() const {
  return mtu_ - (name_.is_ipv4() ? kPairHeaderMax - 16 : kPairHeaderMax);
}

int DatagramPair::send(ibv_ah* handle, std::uint32_t queue_pair, std::span<const iovec> parts,
                       std::size_t size) {
  VERBENA_ASSERT(has_slot() && size <= payload_max());
  std::byte* const at = outgoing_.data() + std::size_t{next_slot_} * mtu_;
  std::array<std::byte, kPairHeaderMax> header;
  const std::size_t head = write_header(name_, header);
  std::memcpy(at, header.data(), head);
  std::byte* to = at + head;
  for (const iovec& part : parts) {
    if (part.iov_len > 0) std::memcpy(to, part.iov_base, part.iov_len);
    to += part.iov_len;
  }
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(at), static_cast<std::uint32_t>(head + size),
                outgoing_.local_key()};
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.ud = {handle, queue_pair, RDMA_UDP_QKEY};
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(id_->qp, &request, &bad)) return error;
  ++sending_;
  next_slot_ = (next_slot_ + 1) % slots_;
  return 0;
}

}  // namespace verbena::rsocket
