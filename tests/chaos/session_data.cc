// SPDX-License-Identifier: MIT
// What a session posts, and what it finds in what comes.
#include <endian.h>

#include <algorithm>
#include <cstring>

#include "session.h"

namespace chaos {
namespace {

constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;
constexpr std::uint32_t kGrhSize = 40;

// Messages that may be lost begin with their number.
void write_message(std::span<std::byte> to, const Step& step, Kind kind) {
  fill(to, step.key);
  if (kind != Kind::kRc) std::memcpy(to.data(), &step.index, sizeof step.index);
}

}  // namespace

void Session::post_receive(std::uint32_t place) {
  const auto area = arena_.receive(place);
  const std::uint32_t grh = settings_.kind == Kind::kUd ? kGrhSize : 0;
  std::fill(area.begin(), area.end(), std::byte{0});
  ibv_sge piece{reinterpret_cast<std::uint64_t>(area.data()), shape_.message_max + grh,
                arena_.local_key()};
  ibv_recv_wr request{};
  ibv_recv_wr* bad = nullptr;
  request.wr_id = kReceive | place;
  request.sg_list = &piece;
  request.num_sge = 1;
  receives_.posted(request.wr_id);
  require(ibv_post_recv(qp_, &request, &bad), "ibv_post_recv");
}

void Session::pump() {
  if (state_ == State::kRunning && was_told_lost_) return;
  while (state_ == State::kRunning && complaint_.empty() && !schedule_.is_over() &&
         sends_.open() < shape_.depth) {
    post(schedule_.next());
  }
  if (state_ == State::kRunning && schedule_.is_over() && sends_.open() == 0) {
    state_ = State::kDone;
  }
}

void Session::post(const Step& step) {
  const std::uint32_t place = posted_ % shape_.depth;
  const bool brings_data = step.verb == Verb::kRead || step.verb > Verb::kRead;
  const auto area = brings_data ? arena_.back(place) : arena_.source(place);
  if (brings_data) {
    std::fill(area.begin(), area.end(), std::byte{0xEE});
  } else {
    write_message(area.first(step.length), step, settings_.kind);
  }
  ibv_sge pieces[3];
  const std::uint32_t each = step.length / step.pieces;
  for (std::uint32_t i = 0; i < step.pieces; ++i) {
    pieces[i] = {reinterpret_cast<std::uint64_t>(area.data()) + std::uint64_t{i} * each,
                 i + 1 == step.pieces ? step.length - each * i : each, arena_.local_key()};
  }
  ibv_send_wr request{};
  request.wr_id = posted_;
  request.sg_list = pieces;
  request.num_sge = step.verb > Verb::kRead ? 1 : static_cast<int>(step.pieces);
  if (step.verb > Verb::kRead) pieces[0].length = 8;
  note_sent(step, request);
  // A queue of unsignaled requests only would never have room again.
  const bool is_signaled = step.is_signaled || place + 1 == shape_.depth;
  if (is_signaled) request.send_flags |= IBV_SEND_SIGNALED;
  if (step.is_inline && !brings_data) request.send_flags |= IBV_SEND_INLINE;
  sends_.posted(request.wr_id, is_signaled);
  ++posted_;
  if (posted_ == 1) moved_ = Clock::now();
  ibv_send_wr* bad = nullptr;
  require(ibv_post_send(qp_, &request, &bad), "ibv_post_send");
  // Inline data may be changed at once.
  if (request.send_flags & IBV_SEND_INLINE) std::fill(area.begin(), area.end(), std::byte{0xDD});
}

// The verb's own fields, and what it does to the peer's memory.
void Session::note_sent(const Step& step, ibv_send_wr& request) {
  const std::size_t offset = step.place * arena_.stride();
  // A later WRITE may overtake an earlier READ (IBTA vol 1, 10.8.3.3).
  if (!reads_.empty() && step.writes()) request.send_flags |= IBV_SEND_FENCE;
  if (step.is_fenced && settings_.kind == Kind::kRc) request.send_flags |= IBV_SEND_FENCE;
  request.wr.rdma.remote_addr = peer_.window + offset;
  request.wr.rdma.rkey = peer_.key;
  if (step.writes()) {
    write_message(std::span(shadow_).subspan(offset, step.length), step, settings_.kind);
  }
  switch (step.verb) {
    case Verb::kSend:
      request.opcode = IBV_WR_SEND;
      if (settings_.kind != Kind::kUd) break;
      request.wr.ud = {ah_, peer_.qpn, 0x11223344};
      break;
    case Verb::kWrite: request.opcode = IBV_WR_RDMA_WRITE; break;
    case Verb::kWriteImmediate:
      request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      request.imm_data = htobe32(step.index);
      break;
    case Verb::kRead: {
      request.opcode = IBV_WR_RDMA_READ;
      const auto now = std::span(shadow_).subspan(offset, step.length);
      reads_[posted_].expected.assign(now.begin(), now.end());
      break;
    }
    case Verb::kFetchAdd:
      request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      request.wr.atomic = {peer_.cells + offsetof(Cells, counter), step.key, 0, peer_.key};
      values_[posted_] = shadow_cells_.counter;
      shadow_cells_.counter += step.key;
      break;
    case Verb::kCompareSwap: {
      const bool fits = step.place % 3 != 0;
      const std::uint64_t expected = fits ? shadow_cells_.swapped : ~shadow_cells_.swapped;
      request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
      request.wr.atomic = {peer_.cells + offsetof(Cells, swapped), expected, step.key, peer_.key};
      values_[posted_] = shadow_cells_.swapped;
      if (fits) shadow_cells_.swapped = step.key;
      break;
    }
  }
}

void Session::take_send(const ibv_wc& completion) {
  const bool is_first = !sends_.has_failed();
  const bool is_good = completion.status == IBV_WC_SUCCESS;
  if (const auto wrong = sends_.completed(completion.wr_id, is_good)) {
    return complain(*wrong + " (send " + std::to_string(completion.wr_id) + ", " +
                    ibv_wc_status_str(completion.status) + ")");
  }
  if (is_good) {
    const bool is_probe = completion.wr_id >> 32 != 0;
    if (is_probe && settings_.kind == Kind::kRc) return complain("a dead peer answered the probe");
    // Unreliable: it went into the void.
    if (is_probe) return drain();
    check_data(completion.wr_id);
    return;
  }
  if (is_first) {
    first_failure_ = "send " + std::to_string(completion.wr_id) + " of " + std::to_string(posted_) +
                     ", " + ibv_wc_status_str(completion.status) + ", vendor error " +
                     std::to_string(completion.vendor_err);
  }
  reads_.erase(completion.wr_id);
  values_.erase(completion.wr_id);
  // The first failure names the reason, all others are flushed; all are when we asked for it.
  const bool is_flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
  const bool fits = state_ == State::kDraining && is_first
                        ? is_flushed || completion.status == IBV_WC_RETRY_EXC_ERR
                    : is_first ? completion.status == IBV_WC_RETRY_EXC_ERR
                               : is_flushed;
  if (!fits || settings_.kind != Kind::kRc) {
    if (state_ == State::kDraining && is_flushed) return;
    complain("send " + std::to_string(completion.wr_id) + " ends with " +
             ibv_wc_status_str(completion.status));
  }
}

// What a READ or an atomic brought.
void Session::check_data(std::uint64_t index) {
  const auto area = arena_.back(static_cast<std::uint32_t>(index % shape_.depth));
  if (const auto read = reads_.find(index); read != reads_.end()) {
    const auto& expected = read->second.expected;
    const auto end = expected.size();
    if (!std::equal(expected.begin(), expected.end(), area.begin())) {
      complain("READ " + std::to_string(index) + " brought something else");
    } else if (std::any_of(area.begin() + static_cast<std::ptrdiff_t>(end), area.end(),
                           [](std::byte b) { return b != std::byte{0xEE}; })) {
      complain("READ " + std::to_string(index) + " wrote behind its end");
    }
    reads_.erase(read);
  }
  if (const auto value = values_.find(index); value != values_.end()) {
    if (std::memcmp(area.data(), &value->second, sizeof value->second) != 0) {
      complain("atomic " + std::to_string(index) + " brought something else");
    }
    values_.erase(value);
  }
}

// The peer's next request that takes a receive; where messages may be lost, the one of this number.
std::optional<Step> Session::peers_next(std::uint32_t number) {
  while (!peers_.is_over()) {
    const Step step = peers_.next();
    if (step.takes_receive() && (settings_.kind == Kind::kRc || step.index == number)) return step;
  }
  return std::nullopt;
}

void Session::take_receive(const ibv_wc& completion) {
  const auto place = static_cast<std::uint32_t>(completion.wr_id);
  if (const auto wrong = receives_.completed(completion.wr_id)) return complain(*wrong);
  if (completion.status != IBV_WC_SUCCESS) {
    const bool is_expected = state_ == State::kDraining || state_ == State::kFailed;
    if (!is_expected || completion.status != IBV_WC_WR_FLUSH_ERR) {
      complain(std::string("a receive ends with ") + ibv_wc_status_str(completion.status));
    }
    return;
  }
  std::uint32_t number = 0;
  const auto area = arena_.receive(place);
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    number = be32toh(completion.imm_data);
  } else if (settings_.kind != Kind::kRc) {
    const std::uint32_t grh = settings_.kind == Kind::kUd ? kGrhSize : 0;
    std::memcpy(&number, area.data() + grh, sizeof number);
  }
  const auto step = peers_next(number);
  if (!step) return complain("a message that the peer did not send: " + std::to_string(number));
  ++received_;
  if (check_message(*step, completion) &&
      (state_ == State::kRunning || state_ == State::kDone || state_ == State::kMade)) {
    post_receive(place);
  }
}

bool Session::check_message(const Step& step, const ibv_wc& completion) {
  const bool is_write = step.verb == Verb::kWriteImmediate;
  const std::uint32_t grh = settings_.kind == Kind::kUd ? kGrhSize : 0;
  const std::string name = "message " + std::to_string(step.index);
  if (is_write != (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) ||
      is_write != ((completion.wc_flags & IBV_WC_WITH_IMM) != 0)) {
    return complain(name + " is of the wrong kind"), false;
  }
  if (completion.byte_len != step.length + grh) {
    return complain(name + " has " + std::to_string(completion.byte_len) + " bytes, not " +
                    std::to_string(step.length)),
           false;
  }
  if (is_write) {
    if (be32toh(completion.imm_data) != step.index) complain(name + " has another immediate");
    return complaint_.empty();
  }
  std::vector<std::byte> expected(step.length);
  write_message(expected, step, settings_.kind);
  const auto area = arena_.receive(static_cast<std::uint32_t>(completion.wr_id));
  if (!std::equal(expected.begin(), expected.end(), area.begin() + grh)) {
    return complain(name + " has another content"), false;
  }
  const auto behind = area.subspan(grh + step.length);
  if (std::any_of(behind.begin(), behind.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return complain(name + " wrote behind its end"), false;
  }
  return true;
}

void Session::check_guards() {
  std::string what;
  if (!arena_.guards_are_whole(what)) complain(what);
}

void Session::check_peers_work() {
  if (settings_.kind != Kind::kRc || state_ != State::kDone) return;
  std::vector<std::byte> expected(arena_.window().size());
  Cells cells{};
  std::uint32_t messages = 0;
  Schedule schedule = peers_copy_;
  while (!schedule.is_over()) {
    const Step step = schedule.next();
    messages += step.takes_receive() ? 1 : 0;
    if (step.writes()) {
      const auto to = std::span(expected).subspan(step.place * arena_.stride(), step.length);
      write_message(to, step, settings_.kind);
    }
    if (step.verb == Verb::kFetchAdd) cells.counter += step.key;
    if (step.verb == Verb::kCompareSwap && step.place % 3 != 0) cells.swapped = step.key;
  }
  if (received_ != messages) {
    complain(std::to_string(received_) + " messages came, not " + std::to_string(messages));
  }
  const auto window = arena_.window();
  if (!std::equal(expected.begin(), expected.end(), window.begin())) {
    complain("the window is not what the peer wrote");
  }
  if (std::memcmp(&cells, &arena_.cells(), sizeof cells) != 0) {
    complain("the cells are not what the peer's atomics made");
  }
}

}  // namespace chaos
