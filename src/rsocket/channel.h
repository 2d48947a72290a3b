// SPDX-License-Identifier: MIT
// What a stream needs of the NIC: a queue pair with its completion queue, its buffers, and posting
// to them. Which bytes go where is the Stream's business.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "rsocket/settings.h"
#include "rsocket/stream.h"

namespace verbena::rsocket {

// The tag of work requests that receive: what the completion gives back.
inline constexpr std::uint64_t kReceiveTag = 1ULL << 63;

// Memory of whole pages, with its region.
class Region {
 public:
  Region() = default;
  ~Region() { destroy(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  int create(ibv_pd* domain, std::size_t size, int access);  // 0 or errno
  void destroy();
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::uint32_t local_key() const { return region_->lkey; }
  std::uint32_t remote_key() const { return region_->rkey; }

 private:
  ibv_mr* region_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

class Channel {
 public:
  // What came since the last time.
  struct News {
    std::uint32_t count = 0;
    int error = 0;         // of a work request that failed
    bool is_lost = false;  // the queue pair takes no more
  };

  Channel() = default;
  ~Channel() { destroy(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Makes everything for a connection, and posts the receives. 0 or errno.
  int create(rdma_cm_id* id, const Settings& settings);
  // Before its id is destroyed.
  void destroy();
  Stream::Setup stream_setup() const;

  // Polls; each immediate goes to the stream, until that breaks.
  News collect(Stream& stream);
  int event_fd() const { return events_->fd; }
  void arm();

  // Bytes that can be posted now, `wanted` at most.
  std::uint32_t room() const;
  bool has_slot() const { return slots_ > 0; }
  bool has_control_slot() const { return control_slots_ > 0; }
  bool is_idle() const;  // everything posted is done

  // How much a packet to the peer holds; before there is one, what any way holds.
  std::uint32_t packet_bytes() const;
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  std::uint64_t acknowledged_bytes() const { return acknowledged_bytes_; }

  // Copies `write.length` bytes, which begin `skip` bytes into the parts.
  int post(const Write& write, std::span<const iovec> parts, std::size_t skip);
  int post(const ControlWrite& write);
  int post_keepalive();

  std::span<const std::byte> received() const { return {buffer_.data(), buffer_.size()}; }
  ibv_pd* domain() const { return id_->pd; }

 private:
  int create_queues();
  int create_memory();
  int post_receives(std::uint32_t count);
  int post(ibv_send_wr& request, std::uint64_t tag);

  rdma_cm_id* id_ = nullptr;
  Settings settings_;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* completions_ = nullptr;
  bool has_queue_pair_ = false;
  bool is_armed_ = false;
  unsigned unacknowledged_ = 0;

  Region buffer_;   // the peer writes here
  Region sending_;  // a ring
  Region notes_;    // PeerNotes, maps, and bodies of control messages
  std::size_t bodies_at_ = 0;

  std::uint32_t slots_ = 0;
  std::uint32_t control_slots_ = 0;
  std::uint32_t next_body_ = 0;
  std::uint32_t sending_at_ = 0;
  std::uint32_t sending_free_ = 0;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t acknowledged_bytes_ = 0;
};

}  // namespace verbena::rsocket
