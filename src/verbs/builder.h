// SPDX-License-Identifier: MIT
// Posting by function calls (ibv_wr_post(3)): between ibv_wr_start and ibv_wr_complete a program
// builds work requests, which are then posted together. A mistake on the way is told by
// ibv_wr_complete, which then posts none of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/types.h"
#include "nic/objects.h"
#include "verbs/abi/entry.h"

namespace verbena::verbs {

// IBV_QP_EX_WITH_FLUSH of newer headers.
inline constexpr std::uint64_t kWithFlush = 1 << 11;

// What an ATOMIC WRITE stores; a queue pair that is made for it takes so much inline.
inline constexpr std::uint32_t kAtomicWriteBytes = 8;

// The operations of ibv_qp_init_attr_ex::send_ops_flags that a type has.
std::uint64_t supported_operations(qp::QpType type);

class SendBuilder {
 public:
  // `operations`: send_ops_flags.
  SendBuilder(nic::Qp& qp, std::uint64_t operations);

  void start();  // locks until complete or abort
  int complete();
  void abort();

  // Begins a work request with the wr_id and wr_flags that the program has set, and gives it to
  // fill in; null after a mistake.
  qp::SendRequest* begin(const ibv_qp_ex& face, queues::SendOpcode opcode, std::uint64_t operation);
  // All below: of the request that was begun last.
  void set_address(const nic::Ah& address, QpNum remote_qp, std::uint32_t remote_qkey);
  void set_shared_queue(std::uint32_t number);
  void set_sges(std::span<const Sge> sges);
  void set_inline(std::span<const ibv_data_buf> pieces);
  void fail(int error);

 private:
  // Where a request's SGEs begin in sges_, or its inline bytes in bytes_: both may move.
  struct Payload {
    std::size_t first = 0;
    std::size_t count = 0;
    bool is_inline = false;
    bool has_address = false;  // datagrams
  };

  qp::SendRequest* last();
  void set_payload(std::size_t first, std::size_t count, bool is_inline);
  bool append(std::span<const ibv_data_buf> pieces);
  void resolve();
  int post();
  void clear();

  nic::Qp& qp_;
  const std::uint64_t operations_;
  Mutex lock_;
  int error_ = 0;
  std::vector<qp::SendRequest> requests_;
  std::vector<Payload> payloads_;  // one for each request
  std::vector<Sge> sges_;
  std::vector<std::byte> bytes_;
};

}  // namespace verbena::verbs
