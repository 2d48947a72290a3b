// SPDX-License-Identifier: MIT
// Lists of requests that take the short way (post_small() in objects.h), one after the other. They
// start together when this ends; nothing else may be done with the queue pair meanwhile.
#pragma once

#include <cstdint>
#include <optional>

#include "base/types.h"
#include "local/direct.h"
#include "memory/region_reach.h"
#include "nic/objects.h"
#include "qp/queue_pair.h"

namespace verbena::nic {

class PostsInRow {
 public:
  explicit PostsInRow(Qp& qp);
  ~PostsInRow();
  PostsInRow(const PostsInRow&) = delete;
  PostsInRow& operator=(const PostsInRow&) = delete;
  // False of any of these: the request takes the general way, after this has ended. `flags` are
  // queues::SendFlag. Of one piece of memory:
  bool send(std::uint64_t wr_id, std::uint8_t flags, Sge piece);
  bool write(std::uint64_t wr_id, std::uint8_t flags, Sge piece, std::uint64_t remote_address,
             MemoryKey remote_key);
  // Any other.
  bool post(const qp::SmallRequest& request);

 private:
  // What may follow the last SEND or WRITE, as it is like it, without being looked at anew: the
  // lock is held.
  struct Alike {
    std::byte* to = nullptr;             // where the next SEND's bytes go,
    std::uint32_t left = 0;              // so many more
    std::uint32_t placed = 0;            // so many are there that nobody has been told of
    local::Direct* writes_by = nullptr;  // or by what the next WRITE is executed,
    std::uint32_t writes_end = 0;        // up to this index
    std::uint32_t length = 0;
    std::uint8_t flags = 0;  // but for kSignaled
    memory::RegionReach from;
  };
  // By value: what somebody has the address of lies in memory, field by field, and whoever reads it
  // as a whole waits for the stores.
  bool is_alike(std::uint8_t flags, Sge piece) const;
  bool send_first(std::uint64_t wr_id, std::uint8_t flags, Sge piece);
  bool write_first(std::uint64_t wr_id, std::uint8_t flags, Sge piece, std::uint64_t remote_address,
                   MemoryKey remote_key);
  bool look_like(std::uint8_t flags, Sge piece);
  void tell_of_placed();

  Qp& qp_;
  Alike alike_;
};

// The same of receives with one piece of memory, where only one thread posts them.
class ReceivesInRow {
 public:
  explicit ReceivesInRow(Qp& qp);
  ~ReceivesInRow();
  ReceivesInRow(const ReceivesInRow&) = delete;
  ReceivesInRow& operator=(const ReceivesInRow&) = delete;
  // False: post_receive() finds out, after this has ended.
  bool post(std::uint64_t wr_id, Sge piece);

 private:
  std::optional<queues::ReceiveQueue::PostsAlone> posts_;
};

}  // namespace verbena::nic
