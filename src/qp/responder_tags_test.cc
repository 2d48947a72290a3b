// SPDX-License-Identifier: MIT
// A queue pair on a shared receive queue that matches tags, with the bytes of peers that may be
// hostile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "base/test_seed.h"
#include "qp/queue_pair.h"
#include "qp/test_bench.h"
#include "wire/tag_matching.h"

namespace verbena::qp {
namespace {

using queues::Completion;
using queues::CompletionKind;
using queues::Status;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using wire::TagOpcode;

constexpr std::uint64_t kFree = 100;    // wr_id of receives of the queue
constexpr std::uint64_t kTagged = 200;  // and of entries, with the tag
constexpr std::size_t kHeader = sizeof(wire::TagHeader);

class Tags : public ::testing::Test {
 protected:
  Tags() {
    start({});
    for (int i = 0; i < 3; ++i)
      post(1000 + i * 1000, 512);
  }
  void start(const QpAttributes& change) {
    QpAttributes wanted = change;
    wanted.path_mtu = 5;
    wanted.port = 1;
    wanted.path = {.has_grh = true, .port = 1};
    wanted.destination = {0x654321};
    wanted.access = kAllAccess;
    wanted.reads_out_max = reads_out_max;
    wanted.reads_in_max = 4;
    const auto step = [&](QpState to, std::uint32_t mask) {
      wanted.state = to;
      ASSERT_TRUE(qp.modify(wanted, mask | kState));
    };
    step(QpState::kInit, kPkeyIndex | kPort | kAccessFlags);
    step(QpState::kReadyToReceive,
         kAddressVector | kPathMtu | kDestinationQp | kReceivePsn | kReadsInMax | kRnrTimer);
    step(QpState::kReadyToSend, kSendPsn | kTimeout | kRetryCount | kRnrRetry | kReadsOutMax);
  }
  void restart(std::uint8_t reads) {
    reads_out_max = reads;
    QpAttributes reset;
    reset.state = QpState::kReset;
    ASSERT_TRUE(qp.modify(reset, kState));
    start({});
  }
  void post(std::size_t offset, std::uint32_t length) {
    const Sge sge = memory.sge(offset, length);
    ASSERT_FALSE(queue.post(kFree, {&sge, 1}));
  }
  TagHandle add(std::uint64_t tag, std::size_t offset, std::uint32_t length) {
    const Sge sge = memory.sge(offset, length);
    const auto added =
        tags.add({}, {.wr_id = kTagged + tag, .tag = tag, .mask = ~0ULL, .sges = {&sge, 1}});
    EXPECT_TRUE(added.has_value());
    return *added;
  }
  static std::vector<std::byte> message(TagOpcode opcode, std::uint64_t tag, std::size_t length,
                                        std::uint8_t value = 0x5a) {
    wire::TagHeader header;
    header.opcode = static_cast<std::uint8_t>(opcode);
    header.context = wire::be32(0xabcd);
    header.tag = wire::be64(tag);
    std::vector<std::byte> bytes(kHeader + length, std::byte{value});
    std::memcpy(bytes.data(), &header, sizeof header);
    return bytes;
  }
  std::vector<std::byte> rendezvous(std::uint64_t tag, std::uint32_t length,
                                    std::size_t more = 0) const {
    std::vector<std::byte> bytes =
        message(TagOpcode::kRendezvous, tag, sizeof(wire::RendezvousHeader) + more);
    wire::RendezvousHeader header;
    header.address = wire::be64(0x12345000);
    header.key = wire::be32(0x77);
    header.length = wire::be32(length);
    std::memcpy(bytes.data() + kHeader, &header, sizeof header);
    return bytes;
  }
  // In pieces, as carriers bring it.
  std::optional<Refusal> receive(std::span<const std::byte> bytes, std::size_t piece = 256,
                                 const Arrived& arrived = {}) {
    Responder& responder = qp.responder();
    const auto begun = bytes.size() > piece ? responder.begin_receive_of_any_length()
                                            : responder.begin_receive(bytes.size());
    if (!begun) return begun.error();
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      const auto part = bytes.subspan(at, std::min(piece, bytes.size() - at));
      if (auto placed = responder.place(at, part); !placed) return placed.error();
    }
    responder.length_known(bytes.size());
    if (auto done = responder.finish_receive(arrived); !done) return done.error();
    return std::nullopt;
  }
  Completion only() {
    const auto all = poll_all(completions);
    EXPECT_THAT(all, SizeIs(1));
    return all.empty() ? Completion{} : all.front();
  }
  const Operation* next() { return qp.window().next(now); }
  void issue() { qp.window().issued(now); }

  TestMemory memory;
  queues::CompletionQueue completions{256, nullptr};
  queues::CompletionQueue sends{64, nullptr};
  queues::ReceiveQueue queue{8, 2};
  TagMatcher tags{32, completions};
  std::uint8_t reads_out_max = 4;
  QueuePair qp{{.number = kTestQp,
                .pd = kTestPd,
                .receive_pd = kTestPd,
                .send_depth = 0,
                .send_sge_max = 0,
                .send_completions = &sends,
                .receive_completions = &completions,
                .shared_receives = &queue,
                .tags = &tags,
                .regions = &memory.table}};
  Instant now = Instant::at(1'000'000);
};

TEST_F(Tags, AnEagerMessageGoesToItsEntryWithoutItsHeader) {
  add(3, 8192, 600);
  for (const std::size_t piece : {1024UL, 256UL, 16UL, 20UL, 17UL}) {
    add(4, 9000, 600);
    memory.fill(9000, 700, 0);
    ASSERT_FALSE(receive(message(TagOpcode::kEager, 4, 600), piece));
    const Completion completion = only();
    EXPECT_EQ(CompletionKind::kTagReceive, completion.kind);
    EXPECT_EQ(queues::kTagMatched | queues::kTagDataValid, completion.flags);
    EXPECT_EQ(kTagged + 4, completion.wr_id);
    EXPECT_EQ(600U, completion.byte_length);
    EXPECT_EQ(4U, queues::tag_of(completion));
    EXPECT_EQ(0xabcdU, completion.flow_tag);
    EXPECT_TRUE(memory.holds(9000, 600, 0x5a) && memory.holds(9600, 100, 0));
  }
  EXPECT_EQ(3U, queue.waiting());
}

TEST_F(Tags, AnUnexpectedMessageComesWhole) {
  const auto bytes = message(TagOpcode::kEager, 5, 100);
  ASSERT_FALSE(receive(bytes, 256, {.has_immediate = true, .immediate = 17}));
  const Completion completion = only();
  EXPECT_EQ(CompletionKind::kTagReceive, completion.kind);
  EXPECT_EQ(queues::kHasImmediate, completion.flags);
  EXPECT_EQ(17U, completion.immediate);
  EXPECT_EQ(kFree, completion.wr_id);
  EXPECT_EQ(116U, completion.byte_length);
  EXPECT_EQ(0, std::memcmp(memory.bytes.data() + 1000, bytes.data(), bytes.size()));
  // It counts.
  add(5, 9000, 200);
  ASSERT_FALSE(receive(bytes));
  EXPECT_EQ(kFree, only().wr_id);
  tags.synchronize({.unexpected_seen = 2});
  ASSERT_FALSE(receive(bytes));
  EXPECT_EQ(kTagged + 5, only().wr_id);
}

TEST_F(Tags, WhatHasNoTagIsMatchedByNothing) {
  add(0, 9000, 200);
  for (const TagOpcode opcode : {TagOpcode::kNoTag, TagOpcode::kFinished, TagOpcode{200}}) {
    ASSERT_FALSE(receive(message(opcode, 0, 50)));
    const Completion completion = only();
    EXPECT_EQ(CompletionKind::kNoTag, completion.kind);
    EXPECT_EQ(0, completion.flags);
    EXPECT_EQ(66U, completion.byte_length);
    post(1000, 512);
  }
}

TEST_F(Tags, TooShortForAHeaderIsAMessageWithoutTag) {
  add(0, 9000, 200);
  auto bytes = message(TagOpcode::kEager, 0, 0);
  for (const std::size_t length : {0UL, 1UL, 15UL}) {
    ASSERT_FALSE(receive(std::span(bytes).first(length)));
    const Completion completion = only();
    EXPECT_EQ(CompletionKind::kNoTag, completion.kind);
    EXPECT_EQ(length, completion.byte_length);
  }
  bytes = rendezvous(0, 10);
  post(1000, 512);
  ASSERT_FALSE(receive(std::span(bytes).first(31)));
  EXPECT_EQ(CompletionKind::kNoTag, only().kind);
}

TEST_F(Tags, WithoutAReceiveThePeerHasToWait) {
  queues::Receive taken;
  while (queue.take(taken)) {
  }
  const auto bytes = message(TagOpcode::kEager, 1, 10);
  EXPECT_EQ(Refusal::kNotReady, receive(bytes));
  EXPECT_EQ(Refusal::kNotReady, receive(message(TagOpcode::kNoTag, 1, 10)));
  EXPECT_EQ(Refusal::kNotReady, receive({}));
  EXPECT_THAT(poll_all(completions), IsEmpty());
  // What was refused was not counted: so this matches.
  add(1, 9000, 10);
  ASSERT_FALSE(receive(bytes));
  EXPECT_EQ(kTagged + 1, only().wr_id);
}

TEST_F(Tags, AMessageThatBeginsAgainFindsItsEntryAgain) {
  add(1, 9000, 600);
  const auto bytes = message(TagOpcode::kEager, 1, 600);
  ASSERT_TRUE(qp.responder().begin_receive(bytes.size()));
  ASSERT_TRUE(qp.responder().place(0, std::span(bytes).first(256)));
  ASSERT_FALSE(receive(bytes));
  EXPECT_EQ(kTagged + 1, only().wr_id);
  EXPECT_TRUE(memory.holds(9000, 600, 0x5a));
}

TEST_F(Tags, AnEntryThatIsTooShortFailsTheConnection) {
  add(1, 9000, 99);
  EXPECT_EQ(Refusal::kInvalidRequest, receive(message(TagOpcode::kEager, 1, 100)));
  const Completion completion = only();
  EXPECT_EQ(Status::kLocalLength, completion.status);
  EXPECT_EQ(kTagged + 1, completion.wr_id);
  EXPECT_EQ(CompletionKind::kTagReceive, completion.kind);
  EXPECT_EQ(QpState::kError, qp.state());
  EXPECT_TRUE(memory.holds(9000, 200, 0));
}

TEST_F(Tags, ARendezvousIsFetchedAndThePeerIsTold) {
  add(1, 9000, 600);
  ASSERT_FALSE(receive(rendezvous(1, 500, 20)));
  const Completion matched = only();
  EXPECT_EQ(queues::kTagMatched, matched.flags);
  EXPECT_EQ(kTagged + 1, matched.wr_id);
  EXPECT_EQ(500U, matched.byte_length);
  EXPECT_EQ(1U, queues::tag_of(matched));
  EXPECT_TRUE(memory.holds(9000, 600, 0));

  const Operation* op = next();
  ASSERT_TRUE(op);
  EXPECT_EQ(OpKind::kRead, op->kind);
  EXPECT_EQ(0x12345000U, op->remote_address);
  EXPECT_EQ(0x77U, op->remote_key.value);
  EXPECT_EQ(500U, op->length);
  const OpIndex read = op->index;
  issue();
  EXPECT_FALSE(next());  // the peer is told when it is done
  const std::vector<std::byte> answer(500, std::byte{9});
  ASSERT_TRUE(qp.window().scatter(read, 0, answer));
  qp.window().answered(read, Answer::kDone, now);
  const Completion fetched = only();
  EXPECT_EQ(Status::kSuccess, fetched.status);
  EXPECT_EQ(queues::kTagDataValid, fetched.flags);
  EXPECT_EQ(kTagged + 1, fetched.wr_id);
  EXPECT_EQ(500U, fetched.byte_length);
  EXPECT_TRUE(memory.holds(9000, 500, 9) && memory.holds(9500, 100, 0));

  op = next();
  ASSERT_TRUE(op);
  EXPECT_EQ(OpKind::kSend, op->kind);
  wire::TagHeader told;
  ASSERT_EQ(sizeof told, op->length);
  std::array<std::byte, sizeof told> bytes;
  ASSERT_TRUE(qp.window().gather(op->index, 0, bytes));
  std::memcpy(&told, bytes.data(), sizeof told);
  EXPECT_EQ(static_cast<std::uint8_t>(TagOpcode::kFinished), told.opcode);
  EXPECT_EQ(0xabcdU, told.context.value());
  EXPECT_EQ(1U, told.tag.value());
  const OpIndex finish = op->index;
  issue();
  qp.window().answered(finish, Answer::kDone, now);
  EXPECT_THAT(poll_all(completions), IsEmpty());
  EXPECT_THAT(poll_all(sends), IsEmpty());
  EXPECT_EQ(0U, qp.send_queue().used());
}

TEST_F(Tags, ARendezvousTakesNoMoreOnceItIsHere) {
  add(1, 5000, 512);
  ASSERT_FALSE(receive(rendezvous(1, 500)));
  const std::array<std::byte, 8> more{};
  EXPECT_FALSE(qp.responder().place(0, more));
  EXPECT_FALSE(qp.responder().finish_receive({}));
}

TEST_F(Tags, ManyAreFetchedAFewAtATime) {
  constexpr std::uint64_t kCount = 30;
  for (std::uint64_t tag = 0; tag < kCount; ++tag) {
    add(tag, 8192 + tag * 64, 64);
    ASSERT_FALSE(receive(rendezvous(tag, 64)));
  }
  EXPECT_THAT(poll_all(completions), SizeIs(kCount));
  EXPECT_EQ(qp.send_queue().used(), RendezvousQueue::kPlaces);
  // Answers in trains: what one brings is posted while its places are still taken.
  std::vector<std::uint64_t> done;
  for (int turns = 0; turns < 200 && done.size() < kCount; ++turns) {
    std::optional<OpIndex> last;
    while (const Operation* op = next()) {
      last = op->index;
      issue();
    }
    ASSERT_TRUE(last);
    qp.window().answered(*last, Answer::kDone, now);
    for (const Completion& completion : poll_all(completions)) {
      EXPECT_EQ(Status::kSuccess, completion.status);
      done.push_back(completion.wr_id - kTagged);
    }
  }
  ASSERT_EQ(kCount, done.size());
  for (std::uint64_t tag = 0; tag < kCount; ++tag)
    EXPECT_EQ(tag, done[tag]);
}

TEST_F(Tags, WhatCannotBeFetchedIsLeftToTheProgram) {
  add(1, 9000, 40);
  ASSERT_FALSE(receive(rendezvous(1, 41, 8)));  // longer than the entry
  const Completion completion = only();
  EXPECT_EQ(Status::kRendezvousIncomplete, completion.status);
  EXPECT_EQ(queues::kTagMatched, completion.flags);
  EXPECT_EQ(24U, completion.byte_length);
  wire::RendezvousHeader header;
  std::memcpy(&header, memory.bytes.data() + 9000, sizeof header);
  EXPECT_EQ(0x12345000U, header.address.value());
  EXPECT_EQ(41U, header.length.value());
  EXPECT_TRUE(memory.holds(9016, 8, 0x5a));
  EXPECT_FALSE(next());
  EXPECT_EQ(QpState::kReadyToSend, qp.state());

  add(2, 9000, 4);  // no room even for what says where it is
  ASSERT_FALSE(receive(rendezvous(2, 0xffffffff)));
  EXPECT_EQ(4U, only().byte_length);

  restart(0);  // no READs
  add(3, 9000, 40);
  ASSERT_FALSE(receive(rendezvous(3, 40)));
  EXPECT_EQ(Status::kRendezvousIncomplete, only().status);
}

TEST_F(Tags, WhatThePeerRefusesFailsTheEntry) {
  add(1, 9000, 600);
  ASSERT_FALSE(receive(rendezvous(1, 500)));
  only();
  const Operation* op = next();
  ASSERT_TRUE(op);
  const OpIndex read = op->index;
  issue();
  qp.window().answered(read, Answer::kAccess, now);
  const Completion completion = only();
  EXPECT_EQ(Status::kRemoteAccess, completion.status);
  EXPECT_EQ(static_cast<std::uint32_t>(Reason::kPeerAccess), completion.vendor_error);
  EXPECT_EQ(kTagged + 1, completion.wr_id);
  EXPECT_EQ(CompletionKind::kTagReceive, completion.kind);
  EXPECT_EQ(QpState::kError, qp.state());
}

TEST_F(Tags, TheErrorStateFlushesWhatIsFetched) {
  for (std::uint64_t tag = 0; tag < 20; ++tag) {
    add(tag, 9000, 100);
    ASSERT_FALSE(receive(rendezvous(tag, 100)));
  }
  poll_all(completions);
  add(50, 9000, 600);  // in the middle of this one
  const auto bytes = message(TagOpcode::kEager, 50, 600);
  ASSERT_TRUE(qp.responder().begin_receive(bytes.size()));
  ASSERT_TRUE(qp.responder().place(0, std::span(bytes).first(100)));
  qp.fail(QpEvent::kFatal);
  const auto flushed = poll_all(completions);
  ASSERT_THAT(flushed, SizeIs(21));
  for (const Completion& completion : flushed) {
    EXPECT_EQ(Status::kFlushed, completion.status);
    EXPECT_GE(completion.wr_id, kTagged);
  }
  EXPECT_THAT(poll_all(sends), IsEmpty());
  // All places are free.
  for (std::uint64_t tag = 0; tag < 32; ++tag)
    add(tag, 9000, 100);
}

TEST_F(Tags, ResetForgets) {
  add(1, 9000, 100);
  ASSERT_FALSE(receive(rendezvous(1, 100)));
  add(2, 9000, 600);
  const auto bytes = message(TagOpcode::kEager, 2, 600);
  ASSERT_TRUE(qp.responder().begin_receive(bytes.size()));
  ASSERT_TRUE(qp.responder().place(0, std::span(bytes).first(100)));
  restart(4);
  poll_all(completions);
  EXPECT_FALSE(next());
  ASSERT_FALSE(receive(bytes));  // its entry is there again
  EXPECT_EQ(kTagged + 2, only().wr_id);
}

// Whatever comes: one completion or a refusal each, and memory outside stays as it is.
TEST_F(Tags, HostileBytesStayWhereTheyMay) {
  SeededRandom random(test_seed());
  constexpr std::size_t kEntries = 16384;
  constexpr std::size_t kRoom = 4096;
  for (int round = 0; round < 3000; ++round) {
    while (queue.waiting() < 3)
      post(1000, 512);
    static_cast<void>(tags.add({.unexpected_seen = 0}, {.wr_id = kTagged}));
    const Sge sge = memory.sge(kEntries, static_cast<std::uint32_t>(random.next() % kRoom));
    static_cast<void>(tags.add({}, {.wr_id = kTagged, .tag = 0, .mask = 0, .sges = {&sge, 1}}));
    std::vector<std::byte> bytes(random.next() % 600);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random.next());
    if (!bytes.empty() && random.next() % 4 != 0)
      bytes[0] = static_cast<std::byte>(random.next() % 5);
    if (bytes.size() > 30 && random.next() % 2 == 0) std::memset(bytes.data() + 28, 0, 3);
    const auto refused = receive(bytes, 1 + random.next() % 300);
    while (const Operation* op = next()) {
      const OpIndex index = op->index;
      issue();
      qp.window().answered(index, Answer::kDone, now);
    }
    poll_all(completions);
    if (qp.state() == QpState::kError) restart(4);
    ASSERT_TRUE(!refused || *refused != Refusal::kNotReady);
  }
  EXPECT_TRUE(memory.holds(0, 1000, 0) && memory.holds(4000, 12000, 0));
  EXPECT_TRUE(memory.holds(kEntries + kRoom, 65536 - kEntries - kRoom, 0));
}

}  // namespace
}  // namespace verbena::qp
