// SPDX-License-Identifier: MIT
// Posting (ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3)).
#include "verbs/post.h"

#include <cstring>

#include "nic/posts_in_row.h"
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

using qp::SendRequest;
using queues::SendOpcode;

// Chains are handed over in pieces of this many.
constexpr std::size_t kBatch = 8;
// So many small ones go together, or so many bytes: nobody else has the queue pair meanwhile, and
// the peer waits for what is being written into its memory.
constexpr std::size_t kRow = 64;
constexpr std::uint64_t kRowBytes = 256 * 1024;

constexpr std::uint8_t kNotOurs = 0xff;
constexpr auto kOpcodes = [] {
  std::array<std::uint8_t, IBV_WR_ATOMIC_WRITE + 1> table{};
  table.fill(kNotOurs);
  const auto define = [&table](ibv_wr_opcode from, SendOpcode to) {
    table[from] = static_cast<std::uint8_t>(to);
  };
  define(IBV_WR_RDMA_WRITE, SendOpcode::kWrite);
  define(IBV_WR_RDMA_WRITE_WITH_IMM, SendOpcode::kWriteWithImmediate);
  define(IBV_WR_SEND, SendOpcode::kSend);
  define(IBV_WR_SEND_WITH_IMM, SendOpcode::kSendWithImmediate);
  define(IBV_WR_SEND_WITH_INV, SendOpcode::kSendWithInvalidate);
  define(IBV_WR_RDMA_READ, SendOpcode::kRead);
  define(IBV_WR_ATOMIC_CMP_AND_SWP, SendOpcode::kCompareSwap);
  define(IBV_WR_ATOMIC_FETCH_AND_ADD, SendOpcode::kFetchAdd);
  define(IBV_WR_LOCAL_INV, SendOpcode::kLocalInvalidate);
  define(IBV_WR_BIND_MW, SendOpcode::kBindWindow);
  define(IBV_WR_ATOMIC_WRITE, SendOpcode::kAtomicWrite);
  return table;
}();

// As a number: the program may have put anything there.
inline unsigned raw_opcode(const ibv_wr_opcode& opcode) {
  unsigned number = 0;
  std::memcpy(&number, &opcode, sizeof number);
  return number;
}

// Of ours, or kNotOurs.
inline std::uint8_t opcode_number(const ibv_wr_opcode& opcode) {
  const unsigned number = raw_opcode(opcode);
  return number < kOpcodes.size() ? kOpcodes[number] : kNotOurs;
}

void take_target(const Qp& qp, const ibv_send_wr& from, SendRequest& to) {
  if (qp.is_datagram) {
    to.address_handle = own(from.wr.ud.ah).nic->number;
    to.address_pd = own(from.wr.ud.ah).nic->pd->id;
    to.remote_qp = {from.wr.ud.remote_qpn};
    to.remote_qkey = from.wr.ud.remote_qkey;
  } else if (to.opcode == SendOpcode::kCompareSwap || to.opcode == SendOpcode::kFetchAdd) {
    to.remote_address = from.wr.atomic.remote_addr;
    to.remote_key = {from.wr.atomic.rkey};
    to.compare_add = from.wr.atomic.compare_add;
    to.swap = from.wr.atomic.swap;
  } else {
    to.remote_address = from.wr.rdma.remote_addr;
    to.remote_key = {from.wr.rdma.rkey};
  }
}

// False when it is no work request for this queue pair. What depends on the queue pair's depth,
// rights and state is checked where it is posted.
bool translate(const Qp& qp, const ibv_send_wr& from, SendRequest& to) {
  const auto opcode = opcode_from(from.opcode);
  // Checksum offload belongs to raw packets and IPoIB.
  if (!opcode || from.num_sge < 0 || from.send_flags & IBV_SEND_IP_CSUM) return false;
  if (qp.is_datagram && !from.wr.ud.ah) return false;
  to.wr_id = from.wr_id;
  to.opcode = *opcode;
  to.flags = flags_from(from.send_flags);
  to.immediate = from.imm_data;  // or the key to invalidate, which lies in the same place
  // Only type 2 is bound by work requests (11.4.1.1).
  if (to.opcode == SendOpcode::kBindWindow) {
    const ibv_mw* const window = from.bind_mw.mw;
    return !qp.is_datagram && window && window->type == IBV_MW_TYPE_2 &&
           take_binding(*window, from.bind_mw.rkey, from.bind_mw.bind_info, to);
  }
  to.sges = sges_from(from.sg_list, static_cast<std::size_t>(from.num_sge));
  take_target(qp, from, to);
  if (qp.is_xrc) to.shared_queue = from.qp_type.xrc.remote_srqn;
  return true;
}

template <class Request>
Request* nth(Request* request, std::size_t n) {
  for (; n != 0 && request; --n)
    request = request->next;
  return request;
}

// Room for a batch of requests that are made one by one.
class Batch {
 public:
  SendRequest& add() { return *new (at(count_++)) SendRequest; }
  void drop_last() { --count_; }
  bool is_full() const { return count_ == kBatch; }
  std::span<const SendRequest> requests() const {
    return {reinterpret_cast<const SendRequest*>(memory_), count_};
  }

 private:
  std::byte* at(std::size_t index) { return memory_ + index * sizeof(SendRequest); }
  alignas(SendRequest) std::byte memory_[kBatch * sizeof(SendRequest)];
  std::size_t count_ = 0;
};

// Posts up to a batch from `next` on and moves it behind what was posted. 0, or the errno of the
// request at `next`.
int post_batch(Qp& qp, ibv_send_wr*& next) {
  Batch batch;
  bool is_good = true;
  ibv_send_wr* at = next;
  for (; at && !batch.is_full(); at = at->next) {
    is_good = translate(qp, *at, batch.add());
    if (is_good) continue;
    batch.drop_last();
    break;
  }
  if (!batch.requests().empty()) {
    std::size_t posted = 0;
    if (const auto done = nic::post_send(*qp.nic, batch.requests(), posted); !done) {
      next = nth(next, posted);
      return errno_of(done.error());
    }
  }
  next = at;
  return is_good ? 0 : EINVAL;
}

[[gnu::always_inline]] inline bool is_plain(const ibv_send_wr& from, ibv_wr_opcode opcode) {
  return raw_opcode(from.opcode) == opcode && from.num_sge == 1 &&
         !(from.send_flags & IBV_SEND_IP_CSUM);
}

// What most programs post: one request with one piece of memory. False: it takes the general way.
[[gnu::always_inline]] inline bool translate_small(const Qp& qp, const ibv_send_wr& from,
                                                   qp::SmallRequest& to) {
  const auto opcode = static_cast<SendOpcode>(opcode_number(from.opcode));
  const bool is_send = opcode == SendOpcode::kSend;
  const bool is_small =
      from.num_sge == 1 && (is_send || opcode == SendOpcode::kWrite || opcode == SendOpcode::kRead);
  if (!is_small || qp.is_datagram || qp.is_xrc || from.send_flags & IBV_SEND_IP_CSUM) [[unlikely]]
    return false;
  // As in post_tiny(); in a list nobody waits for one.
  if (!from.next) {
    if (is_send) nic::expect_send(*qp.nic);
    if (opcode == SendOpcode::kWrite) nic::expect_write(*qp.nic, from.wr.rdma.remote_addr);
  }
  // Field by field: a copy of a whole that was just put together waits until all that was stored
  // before is in the cache, the last message for the peer among it.
  const Sge& piece = sges_from(from.sg_list, 1).front();
  to.wr_id = from.wr_id;
  to.opcode = opcode;
  to.flags = flags_from(from.send_flags);
  to.sge.address = piece.address;
  to.sge.length = piece.length;
  to.sge.key = piece.key;
  if (!is_send) {
    to.remote_address = from.wr.rdma.remote_addr;
    to.remote_key = {from.wr.rdma.rkey};
  }
  return true;
}

[[gnu::always_inline]] inline bool post_in_row(const Qp& qp, const ibv_send_wr& from,
                                               nic::PostsInRow& posts) {
  const Sge* const piece = sges_from(from.sg_list, 1).data();
  if (is_plain(from, IBV_WR_SEND)) [[likely]] {
    return posts.send(from.wr_id, flags_from(from.send_flags),
                      {piece->address, piece->length, piece->key});
  }
  if (is_plain(from, IBV_WR_RDMA_WRITE)) [[likely]] {
    return posts.write(from.wr_id, flags_from(from.send_flags),
                       {piece->address, piece->length, piece->key}, from.wr.rdma.remote_addr,
                       {from.wr.rdma.rkey});
  }
  qp::SmallRequest request;
  return translate_small(qp, from, request) && posts.post(request);
}

// The first of a list, as far as they are small and can be done or sent at once. Of a long one not
// all: others may want the queue pair, and the peer hears of them when this is done.
void post_small(Qp& qp, ibv_send_wr*& next) {
  if (!next->next) {
    qp::SmallRequest request;
    if (translate_small(qp, *next, request) && nic::post_small(*qp.nic, request)) [[likely]]
      next = nullptr;
    return;
  }
  if (qp.is_datagram || qp.is_xrc) [[unlikely]]
    return;
  nic::PostsInRow posts(*qp.nic);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < kRow && next && bytes < kRowBytes; ++i) {
    if (!post_in_row(qp, *next, posts)) return;
    bytes += next->sg_list->length;
    next = next->next;
  }
}

std::span<const Sge> sges_of(const ibv_recv_wr& request) {
  return sges_from(request.sg_list, static_cast<std::size_t>(request.num_sge));
}

}  // namespace

std::optional<SendOpcode> opcode_from(const ibv_wr_opcode& opcode) {
  const std::uint8_t number = opcode_number(opcode);
  if (number == kNotOurs) return std::nullopt;
  return static_cast<SendOpcode>(number);
}

namespace {

// What most messages are. False: nothing has happened.
[[gnu::always_inline]] inline bool post_tiny(Qp& qp, const ibv_send_wr& from) {
  if (qp.is_datagram || qp.is_xrc) [[unlikely]]
    return false;
  nic::expect_send(*qp.nic);  // the earlier the better
  const Sge& piece = sges_from(from.sg_list, 1).front();
  return nic::post_tiny(*qp.nic, from.wr_id, flags_from(from.send_flags),
                        {piece.address, piece.length, piece.key});
}

[[gnu::noinline]] int post_sends(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  ibv_send_wr* next = first;
  int error = 0;
  if (is_inherited(qp)) [[unlikely]]
    error = EIO;
  while (next && !error) {
    const ibv_send_wr* const before = next;
    post_small(own(qp), next);
    if (next == before) [[unlikely]]
      error = post_batch(own(qp), next);
  }
  if (error && bad) *bad = next;
  return error;
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) noexcept {
  const bool is_one_send =
      first && !first->next && is_plain(*first, IBV_WR_SEND) && !is_inherited(qp);
  if (is_one_send && post_tiny(own(qp), *first)) [[likely]]
    return 0;
  return post_sends(qp, first, bad);
}

namespace {

[[gnu::always_inline]] inline bool post_one_receive(Qp& qp, const ibv_recv_wr& request) {
  if (request.num_sge != 1) [[unlikely]]
    return false;
  const Sge& piece = sges_from(request.sg_list, 1).front();
  return nic::post_one_receive(*qp.nic, request.wr_id, {piece.address, piece.length, piece.key});
}

// The first of a list, as far as they are like most. As in post_small(), not all of a long one.
void post_receive_row(Qp& qp, ibv_recv_wr*& next) {
  nic::ReceivesInRow row(*qp.nic);
  for (std::size_t i = 0; i < kRow && next && next->num_sge == 1; ++i) {
    const Sge& piece = sges_from(next->sg_list, 1).front();
    if (!row.post(next->wr_id, {piece.address, piece.length, piece.key})) return;
    next = next->next;
  }
}

int post_any_receive(Qp& qp, const ibv_recv_wr& request) {
  if (request.num_sge < 0) return EINVAL;
  const auto done = nic::post_receive(*qp.nic, request.wr_id, sges_of(request));
  return done ? 0 : errno_of(done.error());
}

[[gnu::noinline]] int post_receives(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  ibv_recv_wr* next = first;
  int error = is_inherited(qp) ? EIO : qp->srq ? EINVAL : 0;
  while (next && !error) {
    const ibv_recv_wr* const before = next;
    post_receive_row(own(qp), next);
    if (next != before) continue;
    error = post_any_receive(own(qp), *next);
    if (!error) next = next->next;
  }
  if (error && bad) *bad = next;
  return error;
}

}  // namespace

// What most programs post comes first.
int post_receive(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) noexcept {
  if (first && !first->next && !qp->srq && own(qp->context).nic->is_surely_usable()) [[likely]] {
    if (post_one_receive(own(qp), *first)) [[likely]]
      return 0;
  }
  return post_receives(qp, first, bad);
}

int post_shared_receive(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) noexcept {
  const bool is_refused = is_inherited(srq);
  return post_each(first, bad, [&](const ibv_recv_wr& request) {
    if (is_refused) return EIO;
    const auto error = own(srq).nic->queue.post(request.wr_id, sges_of(request));
    return error ? errno_of(*error) : 0;
  });
}

}  // namespace verbena::verbs
