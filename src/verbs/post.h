// SPDX-License-Identifier: MIT
// Work requests: from the program's chains to ours. On the data path of every program; nothing here
// allocates.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/types.h"
#include "qp/queue_pair.h"
#include "queues/work_queue.h"
#include "verbs/abi/entry.h"

namespace verbena::verbs {

// A program's SGEs are ours as they lie.
static_assert(sizeof(ibv_sge) == sizeof(Sge) && alignof(ibv_sge) == alignof(Sge));
static_assert(offsetof(ibv_sge, addr) == offsetof(Sge, address));
static_assert(offsetof(ibv_sge, length) == offsetof(Sge, length));
static_assert(offsetof(ibv_sge, lkey) == offsetof(Sge, key));

inline std::span<const Sge> sges_from(const ibv_sge* list, std::size_t count) {
  return {reinterpret_cast<const Sge*>(list), count};
}

inline constexpr auto kFlags = [] {
  std::array<std::uint8_t, 16> table{};
  for (unsigned flags = 0; flags < table.size(); ++flags) {
    table[flags] = static_cast<std::uint8_t>((flags & IBV_SEND_FENCE ? queues::kFence : 0) |
                                             (flags & IBV_SEND_SIGNALED ? queues::kSignaled : 0) |
                                             (flags & IBV_SEND_SOLICITED ? queues::kSolicited : 0) |
                                             (flags & IBV_SEND_INLINE ? queues::kInline : 0));
  }
  return table;
}();
constexpr std::uint8_t flags_from(unsigned flags) { return kFlags[flags % kFlags.size()]; }

// Nothing for opcodes that are not ours (segmentation offload) or nobody's.
std::optional<queues::SendOpcode> opcode_from(const ibv_wr_opcode& opcode);

// Receives. `post` takes one request and answers an errno.
template <class Post>
int post_each(ibv_recv_wr* next, ibv_recv_wr** bad, Post post) {
  for (; next; next = next->next) {
    const int error = next->num_sge < 0 ? EINVAL : post(*next);
    if (!error) continue;
    if (bad) *bad = next;
    return error;
  }
  return 0;
}

// A window's binding as a work request has it; false when it cannot be one: of another window's
// key, or to no region. Whether it may be is found out when it is its turn.
bool take_binding(const ibv_mw& window, std::uint32_t key, const ibv_mw_bind_info& wanted,
                  qp::SendRequest& to);

}  // namespace verbena::verbs
