// SPDX-License-Identifier: MIT
// The short way of a message that is here as a whole: on the data path of most programs. For those
// who have no time for calls; all others use Responder::receive_small().
#pragma once

#include <algorithm>

#include "memory/guarded_word.h"
#include "qp/responder.h"

namespace verbena::qp {

[[gnu::always_inline]] inline bool Responder::takes_small() const {
  return receiving_ && !awaits_first_message() && !current_.has_receive;
}

[[gnu::always_inline]] inline queues::ReceiveQueue::Simple Responder::simple_receive(
    std::uint64_t length) const {
  if (!takes_small()) [[unlikely]]
    return {};
  const auto receive = config_.queue->oldest_simple();
  return receive && length <= receive.sge().length ? receive : queues::ReceiveQueue::Simple();
}

[[gnu::always_inline]] inline bool Responder::put(const Sge& to, std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  auto lease = config_.regions->lease(to.key, config_.receive_pd, to.address, bytes.size(),
                                      memory::kLocalWrite);
  if (!lease) [[unlikely]]
    return false;
  std::byte* const at = lease->in_one_piece();
  return at && memory::guarded_copy_inline(at, bytes.data(), bytes.size());
}

[[gnu::always_inline]] inline queues::ReceiveQueue::Simple Responder::put_small(
    std::span<const std::byte> bytes, const Arrived& arrived) {
  const auto receive = simple_receive(bytes.size());
  const bool is_put = receive && !arrived.invalidates && put(receive.sge(), bytes);
  return is_put ? receive : queues::ReceiveQueue::Simple();
}

[[gnu::always_inline]] inline Responder::Small Responder::finish_small(
    queues::ReceiveQueue::Simple receive, std::size_t length, const Arrived& arrived) {
  const std::uint64_t wr_id = receive.wr_id();
  current_.in_progress = false;
  config_.queue->drop_oldest();
  const auto completion = [&]() __attribute__((always_inline)) {
    return queues::Completion{
        .wr_id = wr_id,
        .kind = queues::CompletionKind::kReceive,
        .flags = arrived.has_immediate ? queues::kHasImmediate : std::uint8_t{0},
        .byte_length = static_cast<std::uint32_t>(length),
        .immediate = arrived.has_immediate ? arrived.immediate : 0,
        .qp = config_.qp,
    };
  };
  if (config_.completions->push(completion, arrived.is_solicited)) [[likely]]
    return Small::kDone;
  static_cast<void>(completion_lost());
  return Small::kLost;
}

[[gnu::always_inline]] inline std::uint32_t Responder::receive_alike(const std::byte* bytes,
                                                                     std::uint32_t length,
                                                                     std::uint32_t most) {
  if (!takes_small()) [[unlikely]]
    return 0;
  queues::ReceiveQueue& queue = *config_.queue;
  queues::CompletionQueue& completions = *config_.completions;
  most = std::min({most, queue.waiting_alone(), completions.room_alone()});
  memory::RegionReach reach;
  std::uint32_t count = 0;
  for (; count != most; ++count, bytes += length) {
    const auto receive = queue.simple_at(count);
    if (!receive || receive.sge().length < length) [[unlikely]]
      break;
    const Sge& to = receive.sge();
    if (!reach.has(to.key, to.address)) [[unlikely]]
      reach = reach_of(to, length);
    const bool is_put = reach.has(to.key, to.address) &&
                        memory::guarded_copy_inline(reach.at(to.address), bytes, length);
    if (!is_put) [[unlikely]]
      break;
    completions.write_down(count, [&]() __attribute__((always_inline)) {
      return queues::Completion{.wr_id = receive.wr_id(),
                                .kind = queues::CompletionKind::kReceive,
                                .byte_length = length,
                                .qp = config_.qp};
    });
  }
  if (count == 0) [[unlikely]]
    return 0;
  current_.in_progress = false;
  queue.drop_oldest(count);
  completions.push_written(count);
  return count;
}

}  // namespace verbena::qp
