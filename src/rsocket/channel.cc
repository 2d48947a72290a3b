// SPDX-License-Identifier: MIT
#include "rsocket/channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/assert.h"

namespace verbena::rsocket {
namespace {

constexpr std::uint32_t kControlSlots = 4;
constexpr std::size_t kBodySize = 32;
// Tags of other work requests.
constexpr std::uint64_t kControl = 1ULL << 62;
constexpr std::uint64_t kHeld = UINT32_MAX;  // of the ring
constexpr int kLengthShift = 32;
constexpr std::uint64_t kLength = (1U << 30) - 1;
// Looked at in one turn.
constexpr int kBatch = 32;

int errno_of(ibv_wc_status status) {
  if (status == IBV_WC_WR_FLUSH_ERR) return 0;  // its reason comes otherwise
  if (status == IBV_WC_RETRY_EXC_ERR) return ETIMEDOUT;
  const bool is_refused = status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR;
  return is_refused ? ECONNRESET : EIO;
}

// Copies bytes out of parts, from `skip` on.
void gather(std::byte* to, std::size_t size, std::span<const iovec> parts, std::size_t skip) {
  for (const iovec& part : parts) {
    if (skip >= part.iov_len) {
      skip -= part.iov_len;
      continue;
    }
    const std::size_t bytes = std::min(size, part.iov_len - skip);
    std::memcpy(to, static_cast<const std::byte*>(part.iov_base) + skip, bytes);
    to += bytes;
    size -= bytes;
    skip = 0;
    if (size == 0) return;
  }
  VERBENA_ASSERT(size == 0);
}

}  // namespace

void Region::destroy() {
  if (region_) ibv_dereg_mr(region_);
  if (data_) munmap(data_, size_);
  region_ = nullptr;
  data_ = nullptr;
}

int Region::create(ibv_pd* domain, std::size_t size, int access) {
  size_ = (size + kPage - 1) / kPage * kPage;
  void* const memory =
      mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ENOMEM;
  data_ = static_cast<std::byte*>(memory);
  region_ = ibv_reg_mr(domain, data_, size_, access);
  return region_ ? 0 : errno;
}

void Channel::destroy() {
  if (has_queue_pair_) rdma_destroy_qp(id_);
  has_queue_pair_ = false;
  if (completions_) {
    ibv_ack_cq_events(completions_, unacknowledged_);
    ibv_destroy_cq(completions_);
  }
  completions_ = nullptr;
  if (events_) ibv_destroy_comp_channel(events_);
  events_ = nullptr;
  buffer_.destroy();
  sending_.destroy();
  notes_.destroy();
}

int Channel::create(rdma_cm_id* id, const Settings& settings) {
  id_ = id;
  settings_ = settings;
  ibv_device_attr device{};
  if (ibv_query_device(id->verbs, &device) != 0) return EIO;
  const auto limit = static_cast<std::uint32_t>(std::max(device.max_qp_wr, 1));
  settings_.send_slots = std::min({settings_.send_slots, limit, kSlotsMax});
  settings_.receive_slots = std::min({settings_.receive_slots, limit, kSlotsMax});
  if (const int error = create_queues()) return error;
  return create_memory();
}

int Channel::create_queues() {
  events_ = ibv_create_comp_channel(id_->verbs);
  if (!events_) return errno;
  const int flags = fcntl(events_->fd, F_GETFL);
  if (flags < 0 || fcntl(events_->fd, F_SETFL, flags | O_NONBLOCK) != 0) return errno;
  const auto entries = static_cast<int>(settings_.send_slots + settings_.receive_slots);
  completions_ = ibv_create_cq(id_->verbs, entries, nullptr, events_, 0);
  if (!completions_) return errno;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  attributes.cap.max_send_wr = settings_.send_slots;
  attributes.cap.max_recv_wr = settings_.receive_slots;
  attributes.cap.max_send_sge = 2;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = settings_.inline_bytes;
  if (rdma_create_qp(id_, nullptr, &attributes) != 0) {
    if (settings_.inline_bytes == 0) return errno;
    attributes.cap.max_inline_data = settings_.inline_bytes = 0;  // more than this NIC can
    if (rdma_create_qp(id_, nullptr, &attributes) != 0) return errno;
  }
  has_queue_pair_ = true;
  slots_ = settings_.send_slots - kControlSlots;
  control_slots_ = kControlSlots;
  return 0;
}

int Channel::create_memory() {
  const int writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (const int error = buffer_.create(id_->pd, settings_.receive_bytes, writable)) return error;
  if (const int error = sending_.create(id_->pd, settings_.send_bytes, IBV_ACCESS_LOCAL_WRITE)) {
    return error;
  }
  bodies_at_ = sizeof(PeerNotes) + settings_.map_slots * sizeof(MappedPlace);
  bodies_at_ = (bodies_at_ + kBodySize - 1) / kBodySize * kBodySize;
  const std::size_t size = bodies_at_ + kControlSlots * kBodySize;
  if (const int error = notes_.create(id_->pd, size, writable)) return error;
  sending_free_ = static_cast<std::uint32_t>(sending_.size());
  return post_receives(settings_.receive_slots);
}

Stream::Setup Channel::stream_setup() const {
  auto* const notes = reinterpret_cast<PeerNotes*>(notes_.data());
  auto* const maps = reinterpret_cast<MappedPlace*>(notes_.data() + sizeof(PeerNotes));
  return {.receive_bytes = static_cast<std::uint32_t>(buffer_.size()),
          // Control messages need no credit; so that they find receives nevertheless, even where
          // the program takes nothing for a while, data get a few less.
          .credits = static_cast<std::uint16_t>(settings_.receive_slots - kControlSlots),
          .buffer_address = reinterpret_cast<std::uintptr_t>(buffer_.data()),
          .buffer_key = buffer_.remote_key(),
          .notes_address = reinterpret_cast<std::uintptr_t>(notes_.data()),
          .notes_key = notes_.remote_key(),
          .notes = notes,
          .maps = {maps, settings_.map_slots}};
}

int Channel::post_receives(std::uint32_t count) {
  std::array<ibv_recv_wr, kBatch> requests{};
  while (count > 0) {
    const std::uint32_t many = std::min<std::uint32_t>(count, kBatch);
    for (std::uint32_t i = 0; i < many; ++i) {
      requests[i].wr_id = kReceiveTag;
      requests[i].next = i + 1 < many ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(id_->qp, requests.data(), &bad)) return error;
    count -= many;
  }
  return 0;
}

Channel::News Channel::collect(Stream& stream) {
  News news;
  std::array<ibv_wc, kBatch> done;
  int count = 0;
  do {
    count = ibv_poll_cq(completions_, kBatch, done.data());
    std::uint32_t receives = 0;
    for (int i = 0; i < count; ++i) {
      const ibv_wc& each = done[static_cast<std::size_t>(i)];
      const bool is_receive = (each.wr_id & kReceiveTag) != 0;
      if (!is_receive && (each.wr_id & kControl) != 0) ++control_slots_;
      if (!is_receive && (each.wr_id & kControl) == 0) {
        ++slots_;
        sending_free_ += static_cast<std::uint32_t>(each.wr_id & kHeld);
        acknowledged_bytes_ += each.wr_id >> kLengthShift & kLength;
      }
      if (each.status != IBV_WC_SUCCESS) {
        news.is_lost = true;
        if (news.error == 0) news.error = errno_of(each.status);
      } else if (is_receive) {
        ++receives;
        const bool is_good = (each.wc_flags & IBV_WC_WITH_IMM) != 0 &&
                             stream.received(be32toh(each.imm_data)).has_value();
        if (!is_good) {
          news.is_lost = true;
          news.error = EPROTO;
          return news;
        }
      }
    }
    if (count > 0) news.count += static_cast<std::uint32_t>(count);
    if (!news.is_lost && receives > 0 && post_receives(receives) != 0) news.is_lost = true;
  } while (count == kBatch && !news.is_lost);
  return news;
}

void Channel::arm() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(events_, &queue, &context) == 0) {
    is_armed_ = false;
    if (++unacknowledged_ == 1024) {
      ibv_ack_cq_events(completions_, unacknowledged_);
      unacknowledged_ = 0;
    }
  }
  if (!is_armed_) is_armed_ = ibv_req_notify_cq(completions_, 0) == 0;
}

std::uint32_t Channel::room() const { return slots_ == 0 ? 0 : sending_free_; }

std::uint32_t Channel::packet_bytes() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr unused{};
  const bool is_known =
      has_queue_pair_ && ibv_query_qp(id_->qp, &attributes, IBV_QP_PATH_MTU, &unused) == 0;
  const unsigned mtu =
      is_known && attributes.path_mtu >= IBV_MTU_256 ? attributes.path_mtu : IBV_MTU_256;
  return 128U << mtu;
}

bool Channel::is_idle() const { return slots_ + control_slots_ == settings_.send_slots; }

int Channel::post(ibv_send_wr& request, std::uint64_t tag) {
  request.wr_id = tag;
  request.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(id_->qp, &request, &bad);
}

int Channel::post(const Write& write, std::span<const iovec> parts, std::size_t skip) {
  VERBENA_ASSERT(slots_ > 0 && write.length <= sending_free_);
  ibv_send_wr request{};
  request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  if (write.immediate) request.imm_data = htobe32(*write.immediate);
  request.wr.rdma.remote_addr = write.address;
  request.wr.rdma.rkey = write.key;
  const auto size = static_cast<std::uint32_t>(sending_.size());
  const std::uint32_t first = std::min(write.length, size - sending_at_);
  ibv_sge pieces[2] = {};
  std::byte* const at = sending_.data() + sending_at_;
  gather(at, first, parts, skip);
  pieces[0] = {reinterpret_cast<std::uintptr_t>(at), first, sending_.local_key()};
  if (first < write.length) {
    gather(sending_.data(), write.length - first, parts, skip + first);
    pieces[1] = {reinterpret_cast<std::uintptr_t>(sending_.data()), write.length - first,
                 sending_.local_key()};
  }
  request.sg_list = pieces;
  request.num_sge = first < write.length ? 2 : 1;
  std::uint32_t held = write.length;
  if (write.length <= settings_.inline_bytes) {
    request.send_flags = IBV_SEND_INLINE;
    held = 0;  // the ring's bytes are free again
  }
  const std::uint64_t tag = std::uint64_t{write.length} << kLengthShift | held;
  if (const int error = post(request, tag)) return error;
  --slots_;
  sent_bytes_ += write.length;
  sending_free_ -= held;
  sending_at_ = (sending_at_ + held) % size;
  return 0;
}

int Channel::post(const ControlWrite& write) {
  VERBENA_ASSERT(control_slots_ > 0);
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htobe32(write.immediate.value_or(0));
  request.wr.rdma.remote_addr = write.address;
  request.wr.rdma.rkey = write.key;
  ibv_sge piece{};
  if (write.length > 0) {
    std::byte* const body = notes_.data() + bodies_at_ + next_body_ * kBodySize;
    next_body_ = (next_body_ + 1) % kControlSlots;
    std::memcpy(body, write.body.data(), write.length);
    piece = {reinterpret_cast<std::uintptr_t>(body), write.length, notes_.local_key()};
    request.sg_list = &piece;
    request.num_sge = 1;
  }
  if (const int error = post(request, kControl)) return error;
  --control_slots_;
  return 0;
}

// Nothing at all, written to nowhere: the answer shows that the peer is there.
int Channel::post_keepalive() {
  ibv_send_wr request{};
  request.opcode = IBV_WR_RDMA_WRITE;
  if (const int error = post(request, kControl)) return error;
  --control_slots_;
  return 0;
}

}  // namespace verbena::rsocket
