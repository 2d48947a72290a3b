// SPDX-License-Identifier: MIT
// A UD queue pair for one local address, with its buffers.
#pragma once

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <functional>
#include <span>

#include "rsocket/channel.h"
#include "rsocket/datagram_wire.h"
#include "rsocket/settings.h"

namespace verbena::rsocket {

class DatagramPair {
 public:
  DatagramPair() = default;
  ~DatagramPair();
  DatagramPair(const DatagramPair&) = delete;
  DatagramPair& operator=(const DatagramPair&) = delete;

  // 0 or errno. `name` is what it tells as the sender of its datagrams.
  int create(rdma_event_channel* events, const EndPoint& name, const Settings& settings);
  const EndPoint& name() const { return name_; }
  std::uint32_t number() const { return id_->qp->qp_num; }
  int event_fd() const { return events_->fd; }
  void arm();

  // Null: errno says why.
  ibv_ah* handle_for(const EndPoint& peer);

  // Takes what was sent, and gives what came, `most` at most. How many of both.
  std::uint32_t collect(std::uint32_t most,
                        const std::function<void(std::span<const std::byte>)>& taker);
  std::size_t payload_max() const;
  bool has_slot() const { return sending_ < slots_; }
  bool is_idle() const { return sending_ == 0; }
  int send(ibv_ah* handle, std::uint32_t queue_pair, std::span<const iovec> parts,
           std::size_t size);

 private:
  int create_queues(const Settings& settings);
  int post_receive(std::uint32_t slot);
  int find_gid();

  EndPoint name_;
  rdma_cm_id* id_ = nullptr;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* completions_ = nullptr;
  bool has_queue_pair_ = false;
  bool is_armed_ = false;
  unsigned unacknowledged_ = 0;
  std::uint8_t gid_index_ = 0;
  std::uint32_t mtu_ = 0;
  Region incoming_;
  Region outgoing_;
  std::uint32_t slots_ = 0;
  std::uint32_t sending_ = 0;
  std::uint32_t next_slot_ = 0;
};

}  // namespace verbena::rsocket
