// SPDX-License-Identifier: MIT
// The tables through which the inlines of <infiniband/verbs.h> reach a device, before the NIC half
// puts its functions in.
//
// Two tables: ibv_context::ops, which programs call without looking (post_send, poll_cq ...), and
// verbs_context, which lies before the ibv_context in memory and grows at its front: a program
// compares `sz` with what its own header knows, and takes an operation that is null or beyond it
// for EOPNOTSUPP.
#pragma once

#include <algorithm>
#include <cstring>

#include "verbs/abi/entry.h"

namespace verbena::verbs {

// Makes `context` a valid context of `device` that refuses everything: the operations that are
// called without a check answer EOPNOTSUPP, all others are null; no descriptors (-1), no completion
// vectors. `priv` stays null.
void init_context(verbs_context& context, ibv_device& device);

// Undoes it.
void destroy_context(verbs_context& context);

// Undoes verbs_init_cq: the lock, the condition, the hold on the channel.
void release_cq(ibv_cq& cq);

// Copies an answer into the caller's structure, which may end earlier or later than ours: the rest
// is zeros. Every structure that came with a size (ibv_port_attr, ibv_device_attr_ex,
// ibv_gid_entry) leaves through here.
template <class Answer>
void copy_out(const Answer& answer, void* to, std::size_t size) {
  const std::size_t common = std::min(size, sizeof(Answer));
  std::memcpy(to, &answer, common);
  std::memset(static_cast<std::byte*>(to) + common, 0, size - common);
}

}  // namespace verbena::verbs
