// SPDX-License-Identifier: MIT
// The bytes of what a send window has handed out, in the program's memory.
#include <cstring>

#include "qp/send_window.h"

namespace verbena::qp {

using queues::SendWqe;
using queues::Status;

namespace {

bool is_inside(std::uint64_t offset, std::size_t size, std::uint64_t length) {
  return offset <= length && size <= length - offset;
}

}  // namespace

Result<void, memory::RegionRefusal> SendWindow::gather_pieces(OpIndex op, std::uint64_t offset,
                                                              const Pieces& to) {
  Entry* entry = find(op);
  if (!entry) return refuse(memory::RegionRefusal::kNoSuchKey);
  const SendWqe& wqe = this->wqe(op.value());
  const bool is_plain = !entry->shape->returns && !(wqe.flags & queues::kInline) && to.bytes != 0;
  if (!is_plain || !is_inside(offset, to.total(), operation_at(op.value()).length))
    return refuse(memory::RegionRefusal::kOutOfRange);
  auto result =
      memory::gather_pieces(*config_.regions, config_.pd, queues::SendQueue::sges(wqe), offset, to);
  if (!result) fail_locally(*entry, Status::kLocalProtection, local_reason(result.error()));
  return result;
}

Result<void, memory::RegionRefusal> SendWindow::gather(OpIndex op, std::uint64_t offset,
                                                       std::span<std::byte> to) {
  Entry* entry = find(op);
  if (!entry) return refuse(memory::RegionRefusal::kNoSuchKey);
  if (entry->shape->returns || !is_inside(offset, to.size(), operation_at(op.value()).length))
    return refuse(memory::RegionRefusal::kOutOfRange);
  if (to.empty()) return {};
  const SendWqe& copy = wqe(op.value());
  if (copy.flags & queues::kInline) {
    std::memcpy(to.data(), queues::SendQueue::inline_payload(copy).data() + offset, to.size());
    return {};
  }
  auto result =
      memory::gather(*config_.regions, config_.pd, queues::SendQueue::sges(copy), offset, to);
  if (!result) fail_locally(*entry, Status::kLocalProtection, local_reason(result.error()));
  return result;
}

Result<void, memory::RegionRefusal> SendWindow::scatter(OpIndex op, std::uint64_t offset,
                                                        std::span<const std::byte> from) {
  Entry* entry = find(op);
  if (!entry) return refuse(memory::RegionRefusal::kNoSuchKey);
  if (!entry->shape->returns) return refuse(memory::RegionRefusal::kOutOfRange);
  if (!is_inside(offset, from.size(), operation_at(op.value()).length)) {
    fail_locally(*entry, Status::kLocalLength, Reason::kAnswerLength);
    return refuse(memory::RegionRefusal::kOutOfRange);
  }
  if (from.empty()) return {};
  auto result = memory::scatter(*config_.regions, config_.pd,
                                queues::SendQueue::sges(wqe(op.value())), offset, from);
  if (!result) fail_locally(*entry, Status::kLocalProtection, local_reason(result.error()));
  return result;
}

std::optional<Sge> SendWindow::only_sge(OpIndex op) const {
  const std::span<const Sge> sges =
      find(op) ? queues::SendQueue::sges(wqe(op.value())) : std::span<const Sge>();
  if (sges.size() != 1 || sges.front().length == 0) return std::nullopt;
  return sges.front();
}

Result<std::size_t, memory::RegionRefusal> SendWindow::memory_of(OpIndex op, std::uint64_t offset,
                                                                 std::uint64_t length,
                                                                 std::span<memory::Extent> out) {
  Entry* entry = find(op);
  if (!entry || out.empty()) return refuse(memory::RegionRefusal::kNoSuchKey);
  if (!is_inside(offset, length, operation_at(op.value()).length))
    return refuse(memory::RegionRefusal::kOutOfRange);
  const SendWqe& copy = wqe(op.value());
  if (copy.flags & queues::kInline) {
    const std::span<std::byte> snapshot = wqe_room(op.value());
    out[0] = {snapshot.data() + sizeof(SendWqe) + offset, length};
    return 1;
  }
  const std::uint32_t access = entry->shape->returns ? std::uint32_t{memory::kLocalWrite} : 0;
  const memory::ListRange range{queues::SendQueue::sges(copy), offset, length};
  return memory::extents_of(*config_.regions, config_.pd, range, access, out);
}

}  // namespace verbena::qp
