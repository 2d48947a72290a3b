// SPDX-License-Identifier: MIT
// Lists of work requests, of which most are like the one before and the others are not: each is
// what it would be if it were posted by itself.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

constexpr std::size_t kListBytes = 64 * 1024;
constexpr std::uint32_t kListDepth = 128;
constexpr std::uint32_t kListSlot = 64;

// Pages of their own, which a peer may map, and registered.
class ListMemory {
 public:
  explicit ListMemory(ibv_pd* pd)
      : bytes_(static_cast<std::uint8_t*>(mmap(nullptr, kListBytes, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(bytes_, MAP_FAILED);
    region_.reset(
        ibv_reg_mr(pd, bytes_, kListBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    EXPECT_TRUE(region_);
  }
  ~ListMemory() {
    region_.reset();
    munmap(bytes_, kListBytes);
  }
  ListMemory(const ListMemory&) = delete;
  ListMemory& operator=(const ListMemory&) = delete;
  std::uint8_t* at(std::size_t offset) const { return bytes_ + offset; }
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(bytes_ + offset);
  }
  ibv_sge sge(std::size_t offset, std::uint32_t length) const {
    return {.addr = address(offset), .length = length, .lkey = region_->lkey};
  }
  std::uint32_t rkey() const { return region_->rkey; }

 private:
  std::uint8_t* bytes_;
  Own<ibv_mr> region_;
};

class PostList : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    // Of either end, so that what they complete is told apart.
    received.reset(ibv_create_cq(context.get(), 2 * kListDepth, nullptr, nullptr, 0));
    ASSERT_TRUE(received);
    for (auto* each : {&from, &other_from, &to, &other_to})
      *each = std::make_unique<ListMemory>(pd.get());
    for (std::size_t i = 0; i < kListBytes; ++i) {
      *from->at(i) = static_cast<std::uint8_t>(i * 7 + i / 251);
      *other_from->at(i) = static_cast<std::uint8_t>(i * 11 + i / 241 + 1);
    }
  }
  void TearDown() override {
    qp.reset();
    peer.reset();
    received.reset();
  }
  // `qp` sends, `peer` receives.
  void make_pair(ibv_qp_type type = IBV_QPT_RC, bool signal_all = false) {
    for (Own<ibv_qp>* each : {&qp, &peer}) {
      *each = make_qp(type, [&](ibv_qp_init_attr_ex& wanted) {
        wanted.recv_cq = received.get();
        wanted.cap.max_send_wr = wanted.cap.max_recv_wr = kListDepth;
        wanted.sq_sig_all = signal_all;
      });
      ASSERT_TRUE(*each);
    }
    connect(qp.get(), peer.get());
    connect(peer.get(), qp.get());
  }
  // A list of `count` SENDs of 8 bytes, one behind the other, the last one signaled.
  void make_list(std::size_t count, ibv_wr_opcode opcode = IBV_WR_SEND) {
    pieces.resize(count);
    list.assign(count, {});
    for (std::size_t i = 0; i < count; ++i) {
      pieces[i] = from->sge(i * 8, 8);
      list[i] = send(pieces[i], i, opcode);
      list[i].send_flags = i + 1 == count ? IBV_SEND_SIGNALED : 0;
      list[i].wr.rdma = {.remote_addr = to->address(i * kListSlot), .rkey = to->rkey()};
      list[i].next = i + 1 < count ? &list[i + 1] : nullptr;
    }
  }
  int post() {
    bad = nullptr;
    return ibv_post_send(qp.get(), list.data(), &bad);
  }
  void post_receive(ibv_sge place, std::uint64_t wr_id) {
    ibv_recv_wr request = receive(place, wr_id);
    ibv_recv_wr* refused = nullptr;
    ASSERT_EQ(0, ibv_post_recv(peer.get(), &request, &refused)) << wr_id;
  }
  void post_receives(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      post_receive(to->sge(i * kListSlot, kListSlot), i);
  }
  bool arrived(std::size_t i, std::uint32_t length = 8) const {
    return std::memcmp(to->at(i * kListSlot), from->at(i * 8), length) == 0;
  }
  ibv_wc next_sent() { return next_completion(); }
  ibv_wc next_received() {
    cq.swap(received);
    const ibv_wc completion = next_completion();
    cq.swap(received);
    return completion;
  }
  bool nothing_more() {
    ibv_wc completion;
    return no_completion() && ibv_poll_cq(received.get(), 1, &completion) == 0;
  }

  Own<ibv_cq> received;
  std::unique_ptr<ListMemory> from, other_from, to, other_to;
  Own<ibv_qp> qp;
  Own<ibv_qp> peer;
  std::vector<ibv_sge> pieces;
  std::vector<ibv_send_wr> list;
  ibv_send_wr* bad = nullptr;
};

// Runs of requests of one kind, length and region, with others between them, into receives of which
// most are alike, too.
class AnyList : public PostList, public ::testing::WithParamInterface<ibv_qp_type> {
 protected:
  struct Expected {
    const std::uint8_t* bytes;
    std::uint8_t* place;
    std::uint32_t length;
  };
  // What the next request has in common with the one before, most of the time.
  struct Run {
    std::uint32_t length = 8;
    bool is_inline = false;
    bool is_write = false;
    const ListMemory* source = nullptr;
    const ListMemory* target = nullptr;
  };

  // What is unreliable and sent before both ends have found each other is lost. Messages keep their
  // order, so nothing is on its way when the last one has come.
  void meet() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    post_receive(to->sge(0, kListSlot), 0);
    for (std::uint32_t length = 1;; length = length % kListSlot + 1) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit);
      make_list(1);
      pieces[0].length = length;
      ASSERT_EQ(0, post());
      ASSERT_EQ(IBV_WC_SUCCESS, next_sent().status);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ibv_wc completion = {};
      if (ibv_poll_cq(received.get(), 1, &completion) == 0) continue;
      ASSERT_EQ(IBV_WC_SUCCESS, completion.status);
      if (completion.byte_len == length) return;
      post_receive(to->sge(0, kListSlot), 0);
    }
  }
  void make_any_list() {
    const auto count = static_cast<std::uint32_t>(1 + random.below(kListDepth));
    std::fill_n(to->at(0), kListBytes, std::uint8_t{0});
    std::fill_n(other_to->at(0), kListBytes, std::uint8_t{0});
    pieces.assign(count, {});
    list.assign(count, {});
    expected.assign(count, {});
    Run run{.source = from.get(), .target = to.get()};
    for (std::uint32_t i = 0; i < count; ++i) {
      go_on(run);
      make(i, run);
      list[i].next = i + 1 < count ? &list[i + 1] : nullptr;
    }
    list.back().send_flags |= IBV_SEND_SIGNALED;
  }
  void go_on(Run& run) {
    constexpr std::uint32_t kLengths[] = {8, 8, 8, 1, 2, 4, 7, 16, 24, 31, 32, 33, 48, 64};
    if (random.one_in(12)) run.length = kLengths[random.below(std::size(kLengths))];
    if (random.one_in(20)) run.is_inline = !run.is_inline;
    if (random.one_in(20)) run.is_write = !run.is_write;
    if (random.one_in(20)) run.source = run.source == from.get() ? other_from.get() : from.get();
    if (random.one_in(20)) run.target = run.target == to.get() ? other_to.get() : to.get();
  }
  void make(std::uint32_t i, const Run& run) {
    // Also up to the last byte of the region.
    const std::size_t at =
        random.one_in(9) ? kListBytes - run.length : random.below(kListBytes - run.length);
    pieces[i] = run.source->sge(at, run.length);
    list[i] = send(pieces[i], i, run.is_write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND);
    const auto flag_if = [](bool is_set, ibv_send_flags flag) { return is_set ? flag + 0u : 0u; };
    list[i].send_flags = flag_if(random.one_in(4), IBV_SEND_SIGNALED) |
                         flag_if(run.is_inline, IBV_SEND_INLINE) |
                         flag_if(!run.is_write && random.one_in(15), IBV_SEND_SOLICITED) |
                         flag_if(random.one_in(15), IBV_SEND_FENCE);
    list[i].wr.rdma = {.remote_addr = run.target->address(i * kListSlot),
                       .rkey = run.target->rkey()};
    expected[i] = {run.source->at(at), run.target->at(i * kListSlot), run.length};
    if (run.is_write) return;
    ibv_sge parts[] = {run.target->sge(i * kListSlot, kListSlot),
                       run.target->sge(i * kListSlot + 3, kListSlot - 3)};
    ibv_recv_wr request = receive(parts[0], i);
    if (random.one_in(15)) {
      parts[0].length = 3;
      request.num_sge = 2;
    }
    ibv_recv_wr* refused = nullptr;
    ASSERT_EQ(0, ibv_post_recv(peer.get(), &request, &refused));
  }

  void expect_completions() {
    for (const ibv_send_wr& each : list) {
      if (!(each.send_flags & IBV_SEND_SIGNALED)) continue;
      const ibv_wc done = next_sent();
      ASSERT_EQ(IBV_WC_SUCCESS, done.status) << done.vendor_err;
      ASSERT_EQ(each.wr_id, done.wr_id);
      EXPECT_EQ(each.opcode == IBV_WR_SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE, done.opcode);
    }
    for (const ibv_send_wr& each : list) {
      if (each.opcode != IBV_WR_SEND) continue;
      const ibv_wc done = next_received();
      ASSERT_EQ(IBV_WC_SUCCESS, done.status) << done.vendor_err;
      ASSERT_EQ(each.wr_id, done.wr_id);
      EXPECT_EQ(IBV_WC_RECV, done.opcode);
      EXPECT_EQ(each.sg_list->length, done.byte_len);
      EXPECT_EQ(0u, done.wc_flags);
      EXPECT_EQ(peer->qp_num, done.qp_num);
    }
    EXPECT_TRUE(nothing_more());
  }
  void expect_bytes() {
    for (const Expected& each : expected) {
      const auto is_there = [&] { return std::memcmp(each.place, each.bytes, each.length) == 0; };
      // What is unreliable is done when it is on its way.
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (GetParam() == IBV_QPT_UC && !is_there() && std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
      EXPECT_TRUE(is_there());
      EXPECT_TRUE(std::all_of(each.place + each.length, each.place + kListSlot,
                              [](std::uint8_t byte) { return byte == 0; }))
          << "more than was sent";
    }
  }

  SeededRandom random{test_seed()};
  std::vector<Expected> expected;
};

INSTANTIATE_TEST_SUITE_P(, AnyList, ::testing::Values(IBV_QPT_RC, IBV_QPT_UC),
                         [](const auto& each) { return each.param == IBV_QPT_RC ? "Rc" : "Uc"; });

TEST_P(AnyList, OfAnyRequestsIsDoneInOrder) {
  make_pair(GetParam());
  ASSERT_NO_FATAL_FAILURE(meet());
  // The first lists find nothing mapped, and the general way.
  for (int round = 0; round < 200 && !HasFatalFailure(); ++round) {
    SCOPED_TRACE(round);
    make_any_list();
    ASSERT_EQ(0, post());
    expect_completions();
    expect_bytes();
  }
}

TEST_F(PostList, AllAreSignaledWhereTheQueuePairSaysSo) {
  make_pair(IBV_QPT_RC, true);
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE}) {
    for (int round = 0; round < 20; ++round) {
      make_list(50, opcode);
      if (opcode == IBV_WR_SEND) post_receives(50);
      ASSERT_EQ(0, post());
      for (std::size_t i = 0; i < list.size(); ++i)
        ASSERT_EQ(i, next_sent().wr_id);
      for (std::size_t i = 0; opcode == IBV_WR_SEND && i < list.size(); ++i)
        ASSERT_EQ(i, next_received().wr_id);
    }
  }
  EXPECT_TRUE(nothing_more());
}

// One of a list that are all alike but for this.
struct Spoiled {
  const char* name;
  void (*spoil)(ibv_send_wr&, ibv_sge&, const ListMemory&);
  ibv_wr_opcode opcode;
  ibv_wc_status status;
};
std::ostream& operator<<(std::ostream& out, const Spoiled& spoiled) { return out << spoiled.name; }

class OneBad : public PostList, public ::testing::WithParamInterface<Spoiled> {};

constexpr auto kSpoilNoKey = [](ibv_send_wr&, ibv_sge& piece, const ListMemory&) {
  piece.lkey ^= 0x55;
};
constexpr auto kSpoilBehind = [](ibv_send_wr&, ibv_sge& piece, const ListMemory& memory) {
  piece.addr = memory.address(kListBytes - 7);
};
constexpr auto kSpoilBefore = [](ibv_send_wr&, ibv_sge& piece, const ListMemory& memory) {
  piece.addr = memory.address(0) - 1;
};
constexpr auto kSpoilFar = [](ibv_send_wr&, ibv_sge& piece, const ListMemory& memory) {
  piece.addr = memory.address(0) + (std::uint64_t{1} << 63);
};
constexpr auto kSpoilNoRemoteKey = [](ibv_send_wr& request, ibv_sge&, const ListMemory&) {
  request.wr.rdma.rkey ^= 0x55;
};
constexpr auto kSpoilRemoteBehind = [](ibv_send_wr& request, ibv_sge&, const ListMemory&) {
  request.wr.rdma.remote_addr += kListBytes;
};

INSTANTIATE_TEST_SUITE_P(
    , OneBad,
    ::testing::Values(
        Spoiled{"SendNoKey", kSpoilNoKey, IBV_WR_SEND, IBV_WC_LOC_PROT_ERR},
        Spoiled{"SendBehind", kSpoilBehind, IBV_WR_SEND, IBV_WC_LOC_PROT_ERR},
        Spoiled{"SendBefore", kSpoilBefore, IBV_WR_SEND, IBV_WC_LOC_PROT_ERR},
        Spoiled{"SendFar", kSpoilFar, IBV_WR_SEND, IBV_WC_LOC_PROT_ERR},
        Spoiled{"WriteNoKey", kSpoilNoKey, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR},
        Spoiled{"WriteBehind", kSpoilBehind, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR},
        Spoiled{"WriteBefore", kSpoilBefore, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR},
        Spoiled{"WriteNoRemoteKey", kSpoilNoRemoteKey, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR},
        Spoiled{"WriteRemoteBehind", kSpoilRemoteBehind, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR}),
    [](const auto& each) { return each.param.name; });

TEST_P(OneBad, FailsByItselfAndThoseBehindItAreFlushed) {
  constexpr std::size_t kCount = 20;
  constexpr std::size_t kBad = 13;
  make_pair();
  const bool is_send = GetParam().opcode == IBV_WR_SEND;
  for (int warm = 0; warm < 50; ++warm) {
    make_list(kCount, GetParam().opcode);
    if (is_send) post_receives(kCount);
    ASSERT_EQ(0, post());
    ASSERT_EQ(IBV_WC_SUCCESS, next_sent().status);
    for (std::size_t i = 0; is_send && i < kCount; ++i)
      ASSERT_EQ(IBV_WC_SUCCESS, next_received().status);
  }
  std::fill_n(to->at(0), kListBytes, std::uint8_t{0});
  if (is_send) post_receives(kCount);
  GetParam().spoil(list[kBad], pieces[kBad], *from);
  ASSERT_EQ(0, post());
  const ibv_wc failed = next_sent();
  EXPECT_EQ(kBad, failed.wr_id);
  EXPECT_EQ(GetParam().status, failed.status);
  EXPECT_NE(0u, failed.vendor_err);
  for (std::size_t i = kBad + 1; i < kCount; ++i) {
    const ibv_wc flushed = next_sent();
    EXPECT_EQ(i, flushed.wr_id);
    EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, flushed.status);
  }
  for (std::size_t i = 0; i < kCount; ++i)
    EXPECT_EQ(i < kBad, arrived(i)) << i;
  for (std::size_t i = 0; is_send && i < kBad; ++i) {
    const ibv_wc done = next_received();
    EXPECT_EQ(i, done.wr_id);
    EXPECT_EQ(IBV_WC_SUCCESS, done.status);
  }
  EXPECT_TRUE(nothing_more());
}

struct BadReceive {
  const char* name;
  void (*spoil)(ibv_sge&, const ListMemory&);
  ibv_wc_status received;
  ibv_wc_status sent;
};
std::ostream& operator<<(std::ostream& out, const BadReceive& bad) { return out << bad.name; }

class OneBadReceive : public PostList, public ::testing::WithParamInterface<BadReceive> {};

INSTANTIATE_TEST_SUITE_P(
    , OneBadReceive,
    ::testing::Values(
        BadReceive{"NoKey", [](ibv_sge& place, const ListMemory&) { place.lkey ^= 0x55; },
                   IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
        BadReceive{"Behind",
                   [](ibv_sge& place, const ListMemory& memory) {
                     place.addr = memory.address(kListBytes - 7);
                   },
                   IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
        BadReceive{
            "Before",
            [](ibv_sge& place, const ListMemory& memory) { place.addr = memory.address(0) - 1; },
            IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR},
        BadReceive{"Short", [](ibv_sge& place, const ListMemory&) { place.length = 7; },
                   IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR}),
    [](const auto& each) { return each.param.name; });

TEST_P(OneBadReceive, FailsWithItsMessageAndThoseBehindAreFlushed) {
  constexpr std::size_t kCount = 20;
  constexpr std::size_t kBad = 13;
  make_pair();
  for (int warm = 0; warm < 5; ++warm) {
    make_list(kCount);
    post_receives(kCount);
    ASSERT_EQ(0, post());
    ASSERT_EQ(IBV_WC_SUCCESS, next_sent().status);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(IBV_WC_SUCCESS, next_received().status);
  }
  std::fill_n(to->at(0), kListBytes, std::uint8_t{0});
  for (std::size_t i = 0; i < kCount; ++i) {
    ibv_sge place = to->sge(i * kListSlot, kListSlot);
    if (i == kBad) GetParam().spoil(place, *to);
    post_receive(place, i);
  }
  ASSERT_EQ(0, post());
  for (std::size_t i = 0; i < kCount; ++i) {
    const ibv_wc done = next_received();
    EXPECT_EQ(i, done.wr_id);
    const ibv_wc_status expected = i < kBad    ? IBV_WC_SUCCESS
                                   : i == kBad ? GetParam().received
                                               : IBV_WC_WR_FLUSH_ERR;
    EXPECT_EQ(expected, done.status) << i;
    EXPECT_EQ(i < kBad, arrived(i)) << i;
  }
  const ibv_wc failed = next_sent();
  EXPECT_EQ(kBad, failed.wr_id);
  EXPECT_EQ(GetParam().sent, failed.status);
}

// Nothing completes before there are receives, so there is no more room than that.
TEST_F(PostList, TheFirstThatHasNoRoomIsNamed) {
  make_pair();
  ibv_qp_attr attributes;
  ibv_qp_init_attr initial;
  ASSERT_EQ(0, ibv_query_qp(qp.get(), &attributes, IBV_QP_CAP, &initial));
  const std::size_t room = initial.cap.max_send_wr;
  for (const std::size_t too_many : {std::size_t{1}, std::size_t{40}}) {
    make_list(room + too_many);
    list[room - 1].send_flags = IBV_SEND_SIGNALED;
    EXPECT_EQ(ENOMEM, post());
    EXPECT_EQ(&list[room], bad);
    post_receives(room);
    EXPECT_EQ(room - 1, next_sent().wr_id);
    for (std::size_t i = 0; i < room; ++i) {
      EXPECT_EQ(i, next_received().wr_id);
      EXPECT_TRUE(arrived(i)) << i;
    }
  }
  EXPECT_TRUE(nothing_more());
}

}  // namespace
}  // namespace verbena::verbs::testing
