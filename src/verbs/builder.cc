// SPDX-License-Identifier: MIT
#include "verbs/builder.h"

#include <algorithm>
#include <mutex>

#include "verbs/border.h"
#include "verbs/objects.h"
#include "verbs/post.h"

namespace verbena::verbs {
namespace {

using queues::SendOpcode;

// Enough for most programs never to make the builder grow.
constexpr std::size_t kRequestsExpected = 32;

bool may_be_inline(SendOpcode opcode) {
  switch (opcode) {
    case SendOpcode::kSend:
    case SendOpcode::kSendWithImmediate:
    case SendOpcode::kSendWithInvalidate:
    case SendOpcode::kWrite:
    case SendOpcode::kWriteWithImmediate:
    case SendOpcode::kAtomicWrite: return true;
    case SendOpcode::kRead:
    case SendOpcode::kCompareSwap:
    case SendOpcode::kFetchAdd:
    case SendOpcode::kLocalInvalidate:
    case SendOpcode::kBindWindow:
    case SendOpcode::kFlush: return false;
  }
  return false;
}

}  // namespace

std::uint64_t supported_operations(qp::QpType type) {
  constexpr std::uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  constexpr std::uint64_t kWrites = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  constexpr std::uint64_t kWindows = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
  switch (type) {
    case qp::QpType::kUd: return kSends;
    case qp::QpType::kRawPacket: return IBV_QP_EX_WITH_SEND;
    case qp::QpType::kUc: return kSends | kWrites | kWindows;
    case qp::QpType::kRc:
      return kSends | kWrites | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
             IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV |
             IBV_QP_EX_WITH_ATOMIC_WRITE | kWithFlush | kWindows;
  }
  return 0;
}

SendBuilder::SendBuilder(nic::Qp& qp, std::uint64_t operations) : qp_(qp), operations_(operations) {
  const qp::QpConfig& config = nic::config_of(qp);
  const std::size_t requests = std::min<std::size_t>(config.send_depth, kRequestsExpected);
  requests_.reserve(requests);
  payloads_.reserve(requests);
  sges_.reserve(requests * config.send_sge_max);
  bytes_.reserve(config.inline_max);
}

void SendBuilder::start() {
  lock_.lock();
  clear();
}

void SendBuilder::abort() {
  clear();
  lock_.unlock();
}

int SendBuilder::complete() {
  int error = error_;
  if (!error && !requests_.empty()) error = post();
  clear();
  lock_.unlock();
  return error;
}

void SendBuilder::clear() {
  error_ = 0;
  requests_.clear();
  payloads_.clear();
  sges_.clear();
  bytes_.clear();
}

void SendBuilder::fail(int error) {
  if (!error_) error_ = error;
}

qp::SendRequest* SendBuilder::begin(const ibv_qp_ex& face, SendOpcode opcode,
                                    std::uint64_t operation) {
  if (error_) return nullptr;
  if (!(operations_ & operation) || face.wr_flags & IBV_SEND_IP_CSUM) {
    fail(EINVAL);
    return nullptr;
  }
  if (requests_.size() == nic::config_of(qp_).send_depth) {
    fail(ENOMEM);
    return nullptr;
  }
  payloads_.emplace_back();
  qp::SendRequest& request = requests_.emplace_back();
  request.wr_id = face.wr_id;
  request.opcode = opcode;
  // Inline is what ibv_wr_set_inline_data makes it.
  request.flags = flags_from(face.wr_flags & ~unsigned{IBV_SEND_INLINE});
  return &request;
}

qp::SendRequest* SendBuilder::last() {
  if (requests_.empty()) fail(EINVAL);
  return error_ ? nullptr : &requests_.back();
}

void SendBuilder::set_address(const nic::Ah& address, QpNum remote_qp, std::uint32_t remote_qkey) {
  qp::SendRequest* const request = last();
  if (!request) return;
  request->address_handle = address.number;
  request->address_pd = address.pd->id;
  request->remote_qp = remote_qp;
  request->remote_qkey = remote_qkey;
  payloads_.back().has_address = true;
}

void SendBuilder::set_shared_queue(std::uint32_t number) {
  if (nic::config_of(qp_).xrc != qp::Xrc::kInitiator) return fail(EINVAL);
  if (qp::SendRequest* const request = last()) request->shared_queue = number;
}

void SendBuilder::set_payload(std::size_t first, std::size_t count, bool is_inline) {
  payloads_.back().first = first;
  payloads_.back().count = count;
  payloads_.back().is_inline = is_inline;
}

void SendBuilder::set_sges(std::span<const Sge> sges) {
  if (!last()) return;
  if (sges.size() > nic::config_of(qp_).send_sge_max) return fail(EINVAL);
  set_payload(sges_.size(), sges.size(), false);
  sges_.insert(sges_.end(), sges.begin(), sges.end());
}

// The bytes are taken now: the program may reuse its buffers when this returns.
void SendBuilder::set_inline(std::span<const ibv_data_buf> pieces) {
  qp::SendRequest* const request = last();
  if (!request) return;
  const std::size_t first = bytes_.size();
  if (!may_be_inline(request->opcode) || !append(pieces)) return fail(EINVAL);
  set_payload(first, bytes_.size() - first, true);
  request->flags |= queues::kInline;
}

// False when they are more than fit into one work request.
bool SendBuilder::append(std::span<const ibv_data_buf> pieces) {
  std::size_t room = nic::config_of(qp_).inline_max;
  for (const ibv_data_buf& piece : pieces) {
    if (piece.length > room) return false;
    room -= piece.length;
    const auto* const from = static_cast<const std::byte*>(piece.addr);
    bytes_.insert(bytes_.end(), from, from + piece.length);
  }
  return true;
}

// Nothing moves any more: the requests get their payload.
void SendBuilder::resolve() {
  sges_.reserve(sges_.size() + requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    Payload& payload = payloads_[i];
    if (payload.is_inline) {
      const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data() + payload.first);
      sges_.push_back({address, static_cast<std::uint32_t>(payload.count), {}});
      payload.first = sges_.size() - 1;
      payload.count = 1;
    }
    requests_[i].sges = {sges_.data() + payload.first, payload.count};
  }
}

int SendBuilder::post() {
  const bool is_datagram = nic::config_of(qp_).type == qp::QpType::kUd;
  const auto has_address = [](const Payload& payload) { return payload.has_address; };
  if (is_datagram && !std::ranges::all_of(payloads_, has_address)) return EINVAL;
  return at_border([&]() -> Result<void, qp::PostError> {
    resolve();
    return nic::post_send_together(qp_, requests_);
  });
}

}  // namespace verbena::verbs
