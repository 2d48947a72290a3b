// SPDX-License-Identifier: MIT
// A SEND that leaves as it is posted (Engine::transmit_at_once), without a work request that
// anybody looks at before: for whoever holds a queue pair and its engine, with the lock.
#pragma once

#include "qp/queue_pair.h"
#include "roce/engine.h"

namespace verbena::roce {

inline bool may_be_at_once(qp::QueuePair& pair, const qp::SmallRequest& request) {
  return request.opcode == queues::SendOpcode::kSend && !(request.flags & queues::kFence) &&
         pair.may_bypass_queue() && pair.window().is_open();
}

// Of such a request, whose payload lies at `payload`. False: nothing has happened. Else the wire
// has it, and what was written there has to leave. What need not be done before is done after that,
// for the peer's answer is far away.
inline bool send_at_once(Engine& engine, qp::QueuePair& pair, const qp::SmallRequest& request,
                         const std::byte* payload, const Now& now) {
  qp::SendWindow& window = pair.window();
  const Engine::AtOnce message{.index = window.open_index(),
                               .payload = {payload, request.sge.length},
                               .is_solicited = (request.flags & queues::kSolicited) != 0};
  if (!engine.transmit_at_once(message, window)) return false;
  window.write_down(0, request.wr_id, request.flags, request.sge);
  window.issued_at_once();
  engine.sent_at_once(message, now);
  return true;
}

}  // namespace verbena::roce
