// SPDX-License-Identifier: MIT
// What a session posts, and what it finds in what comes.
#include <endian.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "pattern.h"
#include "session.h"

namespace chaos {

using workload::Refusal;
using workload::Request;
using workload::Spoiled;
using workload::Verb;

namespace {

constexpr std::uint32_t kGrhSize = 40;
constexpr std::uint64_t kPlaceBits = 8;  // of the number of a receive
constexpr std::uint8_t kGlobal = 1;

// FLUSH as a program reaches it that was built with newer headers.
struct NewerQpEx {
  ibv_qp_ex known;
  void (*wr_flush)(ibv_qp_ex*, std::uint32_t, std::uint64_t, std::size_t, std::uint8_t,
                   std::uint8_t);
};

// Messages that may be lost begin with their number.
void write_bytes(std::span<std::byte> to, const Request& step, Service service) {
  if (step.verb == Verb::kAtomicWrite)
    return static_cast<void>(std::memcpy(to.data(), &step.content, sizeof step.content));
  fill(to, step.content);
  if (!is_reliable(service)) std::memcpy(to.data(), &step.index, sizeof step.index);
}

// Whether a COMPARE AND SWAP compares with what is there.
bool swaps(const Request& step) { return step.content % 3 != 0; }

void apply_atomic(const Request& step, Cells& cells) {
  if (step.verb == Verb::kFetchAdd) cells.counter += step.content;
  if (step.verb == Verb::kCompareSwap && swaps(step)) cells.swapped = step.content;
}

ibv_wr_opcode opcode_of(Verb verb) {
  switch (verb) {
    case Verb::kSend: return IBV_WR_SEND;
    case Verb::kSendWithImmediate: return IBV_WR_SEND_WITH_IMM;
    case Verb::kSendWithInvalidate: return IBV_WR_SEND_WITH_INV;
    case Verb::kWrite: return IBV_WR_RDMA_WRITE;
    case Verb::kWriteWithImmediate: return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Verb::kRead: return IBV_WR_RDMA_READ;
    case Verb::kFetchAdd: return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Verb::kCompareSwap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Verb::kFlush: break;  // not by ibv_post_send
    case Verb::kAtomicWrite: return IBV_WR_ATOMIC_WRITE;
  }
  return IBV_WR_RDMA_WRITE;
}

}  // namespace

// -- receives -----------------------------------------------------------------------------------

std::size_t Session::own_receives() const {
  // Those of a shared queue do not come back with the queue pair.
  return pool_ || is_extended() ? 0 : receives_[0].size();
}

std::span<std::byte> Session::receive_area(std::uint32_t place) {
  return pool_ ? pool_->area(place) : arena_.receive(place);
}

void Session::post_receive(std::uint32_t place) {
  if (pool_) return pool_->post(place) ? void() : complain("ibv_post_srq_recv");
  const auto area = arena_.receive(place);
  std::ranges::fill(area, std::byte{0});
  ibv_sge piece{reinterpret_cast<std::uint64_t>(area.data()),
                shape_.message_max + (is_datagram() ? kGrhSize : 0), arena_.local_key()};
  ibv_recv_wr request{};
  ibv_recv_wr* bad = nullptr;
  request.wr_id = kReceive | next_receive_++ << kPlaceBits | place;
  request.sg_list = &piece;
  request.num_sge = 1;
  const std::uint32_t queue = place / shape_.depth;
  receives_[queue].posted(request.wr_id, {place, piece.length});
  if (queues_[queue]) return require(ibv_post_srq_recv(queues_[queue], &request, &bad), "SRQ");
  require(ibv_post_recv(qp_, &request, &bad), "ibv_post_recv");
}

std::optional<std::uint32_t> Session::take_place(const ibv_wc& completion) {
  if (pool_) {
    if (!pool_->take(completion.wr_id)) return std::nullopt;
    return static_cast<std::uint32_t>(completion.wr_id);
  }
  const auto place =
      static_cast<std::uint32_t>(completion.wr_id & ((std::uint64_t{1} << kPlaceBits) - 1));
  workload::Receives& posted = receives_[place / shape_.depth];
  if (!posted.is_oldest(completion.wr_id) || !posted.completed(completion.wr_id))
    return std::nullopt;
  return place;
}

// -- sends --------------------------------------------------------------------------------------

// Windows over all that the peer may reach. It may use them once a message of ours has come.
void Session::post_binds() {
  for (std::uint32_t i = 0; i < Shape::kWindows; ++i) {
    ibv_send_wr request{};
    ibv_send_wr* bad = nullptr;
    request.wr_id = kBind | i;
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = IBV_SEND_SIGNALED;
    request.bind_mw.mw = windows_[i];
    request.bind_mw.rkey = ibv_inc_rkey(windows_[i]->rkey);
    request.bind_mw.bind_info = {
        .mr = arena_.remote_region(),
        .addr = arena_.window_address(),
        .length = arena_.window().size(),
        .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    sends_.posted(request.wr_id, true);
    under_way_.push_back({});
    require(ibv_post_send(qp_, &request, &bad), "a bind");
  }
}

void Session::post(const Request& step) {
  const std::uint32_t place = posted_ % shape_.depth;
  const bool brings_data = comes_back(step.verb);
  const auto area = brings_data ? arena_.back(place) : arena_.source(place);
  if (brings_data) {
    std::ranges::fill(area, std::byte{0xEE});
  } else {
    write_bytes(area.first(step.length), step, settings_.service);
  }
  ibv_sge pieces[Request::kPiecesMax];
  std::uint32_t at = 0;
  for (std::uint32_t i = 0; i < step.piece_count; ++i) {
    pieces[i] = {reinterpret_cast<std::uint64_t>(area.data()) + at, step.pieces[i],
                 arena_.local_key()};
    at += step.pieces[i];
  }
  Posted posted{.request = step};
  ibv_send_wr request{};
  request.wr_id = posted_;
  request.sg_list = pieces;
  request.num_sge = static_cast<int>(step.piece_count);
  note_sent(posted, request);
  // A queue of unsignaled requests only would never have room again.
  const bool is_signaled = step.is_signaled || place + 1 == shape_.depth;
  if (is_signaled) request.send_flags |= IBV_SEND_SIGNALED;
  if (step.is_inline) request.send_flags |= IBV_SEND_INLINE;
  sends_.posted(request.wr_id, is_signaled);
  under_way_.push_back(std::move(posted));
  ++posted_;
  if (posted_ == 1) moved_ = Clock::now();
  ibv_send_wr* bad = nullptr;
  if (step.verb == Verb::kFlush) return require(post_flush(request, step.content), "FLUSH");
  require(ibv_post_send(qp_, &request, &bad), "ibv_post_send");
  // Inline data may be changed at once.
  if (step.is_inline) std::ranges::fill(area, std::byte{0xDD});
}

int Session::post_flush(const ibv_send_wr& request, std::uint64_t choice) {
  const std::size_t length = 1 + choice % arena_.stride();
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp_);
  ibv_wr_start(ex);
  ex->wr_id = request.wr_id;
  ex->wr_flags = request.send_flags;
  reinterpret_cast<NewerQpEx*>(ex)->wr_flush(ex, request.wr.rdma.rkey, request.wr.rdma.remote_addr,
                                             length, kGlobal, choice >> 63 != 0 ? 1 : 0);
  if (is_extended()) ibv_wr_set_xrc_srqn(ex, request.qp_type.xrc.remote_srqn);
  return ibv_wr_complete(ex);
}

std::uint32_t Session::key_for(const Request& step) const {
  if (step.spoiled == Spoiled::kKey) return peer_.key ^ 0x40;
  const bool is_window_good =
      shape_.has_windows && received_ != 0 && invalidated_ < Shape::kWindows;
  const bool may_use = step.verb == Verb::kRead || step.verb == Verb::kWrite ||
                       step.verb == Verb::kWriteWithImmediate;
  if (is_window_good && may_use && step.content % 2 == 0) return peer_.windows[Shape::kWindows - 1];
  return peer_.key;
}

// The verb's own fields, and what it does to the peer's memory.
void Session::note_sent(Posted& posted, ibv_send_wr& request) {
  const Request& step = posted.request;
  const std::size_t offset = step.place * arena_.stride();
  request.opcode = opcode_of(step.verb);
  request.imm_data = htobe32(step.index);
  if (step.is_fenced) request.send_flags |= IBV_SEND_FENCE;
  // What comes later may overtake an earlier READ (IBTA vol 1, 10.8.3.3).
  const bool spoils_reads = is_write(step.verb) || step.verb == Verb::kSendWithInvalidate;
  if (reads_ != 0 && spoils_reads) request.send_flags |= IBV_SEND_FENCE;
  request.wr.rdma.remote_addr = peer_.window + offset;
  request.wr.rdma.rkey = key_for(step);
  // A number that is a queue pair's is no other queue's at the same time.
  request.qp_type.xrc.remote_srqn = step.spoiled == Spoiled::kMissingQueue ? peer_.qpn
                                    : step.spoiled == Spoiled::kAnothersQueue
                                        ? peer_.foreign_queue
                                        : peer_.queues[step.queue];
  if (is_write(step.verb) && step.spoiled == Spoiled::kNo)
    write_bytes(std::span(shadow_).subspan(offset, step.length), step, settings_.service);
  if (step.verb == Verb::kSendWithInvalidate) {
    // Of windows that are there.
    if (received_ == 0 || invalidated_ == Shape::kWindows) {
      request.opcode = IBV_WR_SEND;
    } else {
      request.invalidate_rkey = peer_.windows[invalidated_++];
    }
  }
  if (is_datagram()) request.wr.ud = {ah_, peer_.qpn, kQkey};
  if (step.verb == Verb::kRead) {
    const auto now = std::span(shadow_).subspan(offset, step.length);
    posted.expected.assign(now.begin(), now.end());
    ++reads_;
  }
  if (is_atomic(step.verb)) return note_atomic(posted, request);
  if (step.spoiled == Spoiled::kAlignment) request.wr.rdma.remote_addr += 4;
}

void Session::note_atomic(Posted& posted, ibv_send_wr& request) {
  const Request& step = posted.request;
  const bool adds = step.verb == Verb::kFetchAdd;
  std::uint64_t& cell = adds ? shadow_cells_.counter : shadow_cells_.swapped;
  const std::uint64_t at = adds ? offsetof(Cells, counter) : offsetof(Cells, swapped);
  posted.value = cell;
  const std::uint64_t compared = swaps(step) ? cell : ~cell;
  request.wr.atomic = {peer_.cells + at + (step.spoiled == Spoiled::kAlignment ? 4 : 0),
                       adds ? step.content : compared, step.content, key_for(step)};
  apply_atomic(step, shadow_cells_);
}

void Session::take_send(const ibv_wc& completion) {
  const bool is_first = !sends_.has_failed();
  const bool is_good = completion.status == IBV_WC_SUCCESS;
  const auto ended = sends_.completed(completion.wr_id, is_good);
  const std::string name = text(completion) + ", " + std::to_string(posted_) + " were posted";
  if (ended.wrong) return complain(ended.wrong + (" (" + name + ")"));
  if (is_good && completion.wr_id == kProbe) {
    if (is_reliable()) return complain("a dead peer answered the probe");
    return drain();  // unreliable: it went into the void
  }
  const Request& failed = under_way_[ended.count - 1].request;
  if (!is_good && !fits_failure(completion, is_first, failed)) return complain(name);
  if (!is_good && is_first) {
    first_failure_ = name;
    awaits_pardon_ = completion.status == IBV_WC_REM_ACCESS_ERR && !is_pardoned_ &&
                     refusal_of(failed.spoiled) != Refusal::kAccess;
  }
  for (std::size_t i = 0; i < ended.count; ++i) {
    const Posted& posted = under_way_.front();
    if (posted.request.verb == Verb::kRead) --reads_;
    if (is_good || i + 1 < ended.count) check_data(posted);
    under_way_.pop_front();
  }
}

// The first failure names the reason, all others are flushed.
bool Session::fits_failure(const ibv_wc& completion, bool is_first, const Request& step) const {
  const bool is_flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
  if (state_ == State::kDraining && is_flushed) return true;
  if (!is_first || !is_reliable()) return is_flushed && is_reliable();
  // The peer is gone, or has refused something of ours before.
  if (completion.status == IBV_WC_RETRY_EXC_ERR) return true;
  // We have refused something of the peer's.
  if (is_flushed) return peers_bad_ || was_revoked_;
  // Whatever was asked for: it may have taken its memory away, and the driver tells us later.
  if (completion.status == IBV_WC_REM_ACCESS_ERR) return true;
  return completion.status == IBV_WC_REM_INV_REQ_ERR &&
         refusal_of(step.spoiled) == Refusal::kInvalidRequest;
}

// What a READ or an atomic brought.
void Session::check_data(const Posted& posted) {
  const Request& step = posted.request;
  const std::string name = "request " + std::to_string(step.index);
  if (step.spoiled != Spoiled::kNo) return complain(name + " is bad, and ended well");
  if (!comes_back(step.verb)) return;
  const auto area = arena_.back(step.index % shape_.depth);
  if (is_atomic(step.verb)) {
    // In pieces it lies all the same in a row.
    if (std::memcmp(area.data(), &posted.value, sizeof posted.value) != 0)
      complain(name + " brought another value");
    return;
  }
  const auto end = area.begin() + static_cast<std::ptrdiff_t>(posted.expected.size());
  if (!std::equal(posted.expected.begin(), posted.expected.end(), area.begin())) {
    complain(name + " brought other bytes");
  } else if (!std::all_of(end, area.end(), [](std::byte b) { return b == std::byte{0xEE}; })) {
    complain(name + " wrote behind its end");
  }
}

// -- messages -----------------------------------------------------------------------------------

// The peer's next request that takes a receive; where messages may be lost, the one of this number.
std::optional<Request> Session::peers_next(std::uint32_t number) {
  while (!peers_.is_over()) {
    const Request step = peers_.next();
    if (takes_receive(step.verb) && (is_reliable() || step.index == number)) return step;
  }
  return std::nullopt;
}

std::uint32_t Session::number_of(const ibv_wc& completion, std::span<const std::byte> area) const {
  if (completion.wc_flags & IBV_WC_WITH_IMM) return be32toh(completion.imm_data);
  std::uint32_t number = 0;
  if (!is_reliable())
    std::memcpy(&number, area.data() + (is_datagram() ? kGrhSize : 0), sizeof number);
  return number;
}

bool Session::fits_failed_receive(ibv_wc_status status) {
  if (status == IBV_WC_WR_FLUSH_ERR)
    return state_ >= State::kFailed || has_target_ended_ || peers_bad_ || was_revoked_;
  // One of a WRITE with immediate whose memory is not for the peer (IBTA vol 1, 11.6.2).
  if (status != IBV_WC_LOC_ACCESS_ERR || !is_reliable()) return false;
  const auto step = peers_next(0);
  return step && step->verb == Verb::kWriteWithImmediate &&
         (step->spoiled == Spoiled::kKey || was_revoked_);
}

void Session::take_receive(const ibv_wc& completion) {
  const auto place = take_place(completion);
  if (!place) return complain("not the next, or has ended before: " + text(completion));
  if (completion.status != IBV_WC_SUCCESS) {
    if (pool_) post_receive(*place);
    if (!fits_failed_receive(completion.status)) complain(text(completion));
    return;
  }
  const auto area = receive_area(*place);
  const auto step = peers_next(number_of(completion, area));
  if (!step) return complain("a message that the peer did not send");
  ++received_;
  if (!check_message(*step, completion, area)) return;
  if (pool_) return post_receive(*place);
  if (state_ > State::kDone) return;
  if (shape_.posts_late) {
    late_.push_back(*place);
  } else {
    post_receive(*place);
  }
}

const char* Session::wrong_flags(const Request& step, const ibv_wc& completion) {
  const bool is_write = step.verb == Verb::kWriteWithImmediate;
  if (is_write != (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM)) return "is of the wrong kind";
  if (has_immediate(step.verb) != ((completion.wc_flags & IBV_WC_WITH_IMM) != 0))
    return "has no immediate, or one too much";
  if (has_immediate(step.verb) && be32toh(completion.imm_data) != step.index)
    return "has another immediate";
  if ((completion.wc_flags & IBV_WC_WITH_INV) == 0) return nullptr;
  if (step.verb != Verb::kSendWithInvalidate || invalidated_here_ == Shape::kWindows)
    return "takes a window away";
  if (completion.invalidated_rkey != ibv_inc_rkey(windows_[invalidated_here_++]->rkey))
    return "takes another window away";
  return nullptr;
}

bool Session::check_message(const Request& step, const ibv_wc& completion,
                            std::span<const std::byte> area) {
  const std::uint32_t grh = is_datagram() ? kGrhSize : 0;
  const std::string name = "message " + std::to_string(step.index) + " ";
  if (const char* wrong = wrong_flags(step, completion)) return complain(name + wrong), false;
  if (completion.byte_len != step.length + grh) {
    return complain(name + "has " + std::to_string(completion.byte_len) + " bytes, not " +
                    std::to_string(step.length)),
           false;
  }
  if (step.verb == Verb::kWriteWithImmediate) return true;
  std::vector<std::byte> expected(step.length);
  write_bytes(expected, step, settings_.service);
  if (!std::equal(expected.begin(), expected.end(), area.begin() + grh))
    return complain(name + "has another content"), false;
  const auto behind = area.subspan(grh + step.length);
  if (!std::ranges::all_of(behind, [](std::byte b) { return b == std::byte{0}; }))
    return complain(name + "wrote behind its end"), false;
  return true;
}

void Session::check_guards() {
  std::string what;
  if (!arena_.guards_are_whole(what)) complain(what);
  if (!was_revoked_) return;
  if (!std::ranges::equal(arena_.window(), when_revoked_) ||
      std::memcmp(&arena_.cells(), &cells_when_revoked_, sizeof cells_when_revoked_) != 0)
    complain("memory changed after it was deregistered");
}

void Session::check_peers_work() {
  if (!is_reliable() || state_ != State::kDone) return;
  std::vector<std::byte> expected(arena_.window().size());
  Cells cells{};
  std::uint32_t messages = 0;
  workload::Generator schedule = peers_copy_;
  while (!schedule.is_over()) {
    const Request step = schedule.next();
    messages += takes_receive(step.verb) ? 1 : 0;
    if (is_write(step.verb)) {
      const auto to = std::span(expected).subspan(step.place * arena_.stride(), step.length);
      write_bytes(to, step, settings_.service);
    }
    apply_atomic(step, cells);
  }
  if (received_ != messages) {
    complain(std::to_string(received_) + " messages came, not " + std::to_string(messages));
  }
  if (!std::ranges::equal(expected, arena_.window()))
    complain("the window is not what the peer wrote");
  if (std::memcmp(&cells, &arena_.cells(), sizeof cells) != 0)
    complain("the cells are not what the peer's atomics made");
}

}  // namespace chaos
