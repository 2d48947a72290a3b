// SPDX-License-Identifier: MIT
#include "workload.h"

#include <algorithm>
#include <array>

namespace verbena::sim {

using queues::SendOpcode;
using queues::Status;

Plan plan_of(SeededRandom& random) {
  Plan plan;
  const auto kind = random.below(10);
  plan.type = kind < 6 ? qp::QpType::kRc : kind < 8 ? qp::QpType::kUc : qp::QpType::kUd;
  plan.connections = 1 + static_cast<unsigned>(random.below(2));
  plan.lives = random.one_in(4) ? 2 : 1;
  if (!random.one_in(4))
    plan.mischief =
        static_cast<Mischief>(random.below(static_cast<std::uint64_t>(Mischief::kCount)));
  plan.shared_receives = random.one_in(3);
  plan.signal_all = random.one_in(4);
  plan.stays_in_rtr = random.one_in(4);
  plan.drains = random.one_in(6);
  constexpr std::array<unsigned, 6> kLoss{0, 0, 0, 1, 10, 30};
  plan.loss_percent = kLoss[random.below(kLoss.size())];
  plan.duplicate_percent = random.one_in(3) ? 10 : 0;
  plan.delay_max_us = random.one_in(3) ? 30 : 1;
  plan.retry_count = static_cast<std::uint8_t>(random.one_in(3) ? random.below(8) : 7);
  plan.rnr_retry = static_cast<std::uint8_t>(random.one_in(3) ? random.below(8) : 7);
  plan.reads_out_max = static_cast<std::uint8_t>(1 + random.below(8));
  if (plan.mischief == Mischief::kNotEnabled && random.one_in(3)) plan.reads_in_max = 0;
  if (plan.mischief == Mischief::kBadLocalKey && random.one_in(2)) plan.reads_out_max = 0;
  plan.send_depth = std::uint32_t{1} << (1 + random.below(5));
  plan.sends = 5 + static_cast<std::uint32_t>(random.below(30));
  plan.receives_max = 1 + static_cast<std::uint32_t>(random.below(12));
  constexpr std::array<std::uint32_t, 3> kPieces{48, 200, 4096};
  plan.piece = kPieces[random.below(kPieces.size())];
  plan.bogus_answers_percent = random.one_in(3) ? 20 : 0;
  plan.pauses_in_messages_percent = random.one_in(2) ? 20 : 0;
  return plan;
}

std::string describe(const Plan& plan) {
  static constexpr std::array<const char*, 10> kMischief{
      "none",          "bad local keys",        "bad requests",  "bad receives",
      "not enabled",   "modify to ERR",         "the peer dies", "regions are deregistered",
      "a side pauses", "small completion queue"};
  static_assert(kMischief.size() == static_cast<std::size_t>(Mischief::kCount));
  const auto number = [](auto value) { return std::to_string(value); };
  std::string text = plan.type == qp::QpType::kRc   ? "RC"
                     : plan.type == qp::QpType::kUc ? "UC"
                                                    : "UD";
  text += ", " + number(plan.connections) + " connections, " + number(plan.lives) +
          " lives, mischief: ";
  text += kMischief.at(static_cast<std::size_t>(plan.mischief));
  text += ", loss " + number(plan.loss_percent) + " %, twice " + number(plan.duplicate_percent) +
          " %, delay " + number(plan.delay_max_us) + " us, retries " + number(plan.retry_count) +
          "/" + number(plan.rnr_retry) + ", depth " + number(plan.send_depth) + ", pieces of " +
          number(plan.piece);
  if (plan.shared_receives) text += ", shared receives";
  if (plan.drains) text += ", drains";
  if (plan.stays_in_rtr) text += ", stays in RTR";
  if (plan.bogus_answers_percent) text += ", bogus answers";
  return text;
}

SendOpcode Workload::pick_opcode() {
  static constexpr std::array kRc{
      SendOpcode::kSend,  SendOpcode::kSend,        SendOpcode::kSendWithImmediate,
      SendOpcode::kWrite, SendOpcode::kWrite,       SendOpcode::kWriteWithImmediate,
      SendOpcode::kRead,  SendOpcode::kCompareSwap, SendOpcode::kFetchAdd};
  switch (plan_.type) {
    case qp::QpType::kRc: return kRc[random_.below(kRc.size())];
    case qp::QpType::kUc: return kRc[random_.below(6)];
    case qp::QpType::kUd: return kRc[random_.one_in(3) ? 2 : 0];
    case qp::QpType::kRawPacket: break;  // never here
  }
  return SendOpcode::kSend;
}

// `length` bytes in one to four pieces, empty ones among them, anywhere in the part; answers of
// READs never share memory.
std::vector<Sge> Workload::pick_sges(Part part, std::uint64_t length, MemoryKey key) {
  std::vector<Sge> sges;
  const bool lands = part.begin == kLanding.begin;
  if (lands && landed_ + length + 8 > part.size) landed_ = 0;
  for (std::uint32_t left = static_cast<std::uint32_t>(length); left > 0 || sges.empty();) {
    const bool is_last = sges.size() + 1 == kSgeMax || random_.one_in(2);
    const auto take = is_last ? left : static_cast<std::uint32_t>(random_.below(left + 1));
    const std::uint64_t offset = lands ? landed_ : random_.below(part.size - take);
    sges.push_back({mine_.address(part.begin + offset), take, take == 0 ? MemoryKey{0} : key});
    if (lands) landed_ += take;
    left -= take;
    if (is_last && left == 0) break;
  }
  return sges;
}

PostedSend Workload::next_send(std::uint64_t wr_id, QpNum peer) {
  PostedSend send;
  send.wr_id = wr_id;
  send.opcode = pick_opcode();
  if (random_.one_in(2)) send.flags |= queues::kSignaled;
  if (random_.one_in(4)) send.flags |= queues::kSolicited;
  if (random_.one_in(5)) send.flags |= queues::kFence;
  if (send.opcode == SendOpcode::kSendWithImmediate ||
      send.opcode == SendOpcode::kWriteWithImmediate)
    send.immediate = static_cast<std::uint32_t>(random_.next());
  const bool is_atomic =
      send.opcode == SendOpcode::kCompareSwap || send.opcode == SendOpcode::kFetchAdd;
  if (is_atomic)
    send.length = 8;
  else if (!random_.one_in(8))
    send.length = random_.below(random_.one_in(3) ? 24 : kDatagramMax);
  if (!send.reads() && send.length <= kInlineMax && random_.one_in(3))
    send.flags |= queues::kInline;
  send.uses_revocable = plan_.mischief == Mischief::kRevoke && random_.one_in(2) &&
                        !(send.flags & queues::kInline) && send.length > 0;
  send.sges = pick_sges(send.reads() ? kLanding : kSource, send.length,
                        send.uses_revocable ? mine_.revocable : mine_.key);
  if (plan_.type == qp::QpType::kUd) {
    send.address_handle = static_cast<std::uint32_t>(random_.below(100));
    send.remote_qp = peer;
    send.remote_qkey = random_.one_in(20) ? kQkey + 1 : kQkey;
  }
  aim(send);
  if (spoil_now(Mischief::kBadRequest, 8)) spoil_request(send);
  if (spoil_now(Mischief::kBadLocalKey, 8)) spoil_locally(send);
  const bool would_wait_forever = send.reads() && plan_.reads_out_max == 0;
  if (would_wait_forever && send.local_error != Status::kLocalLength)
    send.local_error = Status::kLocalQpOperation;
  return send;
}

// Where WRITE, READ and atomics go.
void Workload::aim(PostedSend& send) {
  if (send.opcode == SendOpcode::kSend || send.opcode == SendOpcode::kSendWithImmediate) return;
  send.remote_key =
      plan_.mischief == Mischief::kRevoke && random_.one_in(4) ? theirs_.revocable : theirs_.key;
  if (send.opcode == SendOpcode::kCompareSwap || send.opcode == SendOpcode::kFetchAdd) {
    send.remote_address = theirs_.address(kAtomics.begin + 8 * random_.below(kAtomics.size / 8));
    send.compare_add = random_.below(3);
    send.swap = random_.next();
    return;
  }
  send.remote_address = theirs_.address(kTarget.begin + random_.below(kTarget.size - send.length));
  if (send.length == 0 && random_.one_in(2)) send.remote_key = {0xDEAD};
}

void Workload::spoil_request(PostedSend& send) {
  if (send.remote_key == MemoryKey{}) {
    if (plan_.type == qp::QpType::kRc && random_.one_in(2)) {
      send.opcode = SendOpcode::kSendWithInvalidate;
      send.immediate = theirs_.key.value;
      return;
    }
    // Longer than any receive.
    if (plan_.type == qp::QpType::kUd || send.flags & queues::kInline) return;
    send.length = kReceiveSize + 1;
    send.sges = pick_sges(kSource, send.length, mine_.key);
    return;
  }
  switch (random_.below(6)) {
    case 0: send.remote_key.value ^= 1; return;
    case 1: send.remote_key = theirs_.no_rights; return;
    case 2: send.remote_key = theirs_.foreign; return;
    case 3: send.remote_address = theirs_.address(kMemorySize - 4); return;
    case 4: send.remote_address = ~std::uint64_t{0} - 3; return;
    default: send.remote_address += 1; return;  // atomics only mind
  }
}

void Workload::spoil_locally(PostedSend& send) {
  if (send.length == 0 || send.flags & queues::kInline) return;
  if (plan_.type == qp::QpType::kRc && random_.one_in(6)) {
    send.opcode = SendOpcode::kLocalInvalidate;
    send.local_error = Status::kWindowBind;
    return;
  }
  if (random_.one_in(6)) {
    constexpr std::uint32_t kHalf = 0x80000000;
    send.sges = {{mine_.address(0), kHalf, mine_.key}, {mine_.address(0), kHalf, mine_.key}};
    send.local_error = Status::kLocalLength;
    return;
  }
  send.local_error = Status::kLocalProtection;
  Sge& last = *std::ranges::find_if(send.sges, [](const Sge& sge) { return sge.length > 0; });
  switch (random_.below(4)) {
    case 0: last.key.value ^= 1; return;
    case 1: last.key = mine_.foreign; return;
    case 2:
      last.address = ~std::uint64_t{0} - 2;
      last.length = std::max(last.length, 8u);
      break;
    default: last.address = mine_.address(kMemorySize) - last.length + 1; return;
  }
  send.length = 0;
  for (const Sge& sge : send.sges)
    send.length += sge.length;
  const bool is_atomic =
      send.opcode == SendOpcode::kCompareSwap || send.opcode == SendOpcode::kFetchAdd;
  if (is_atomic && send.length != 8) send.local_error = Status::kLocalLength;
  if (plan_.type == qp::QpType::kUd && send.length > kDatagramMax)
    send.local_error = Status::kLocalLength;
}

PostedReceive Workload::next_receive(std::uint64_t wr_id) {
  PostedReceive receive{.wr_id = wr_id};
  if (received_ + kReceiveSize > kReceives.size) received_ = 0;
  std::uint32_t room = kReceiveSize;
  if (spoil_now(Mischief::kBadReceive, 8)) room = 50;
  const auto first = static_cast<std::uint32_t>(random_.below(room + 1));
  MemoryKey key = mine_.key;
  if (spoil_now(Mischief::kBadReceive, 8)) {
    key = random_.one_in(2) ? mine_.no_rights : mine_.foreign;
    receive.has_bad_key = true;
  }
  const std::uint64_t place = mine_.address(kReceives.begin + received_);
  receive.sges = {{place, first, key}, {place + first, room - first, key}};
  received_ += kReceiveSize;
  return receive;
}

}  // namespace verbena::sim
