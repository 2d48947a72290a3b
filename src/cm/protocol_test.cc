// SPDX-License-Identifier: MIT
// What a peer may say that does not fit: late, twice, to nobody, in other versions, or with the
// identity of something that we know already.
#include <gtest/gtest.h>

#include "cm/test_world.h"

namespace verbena::cm {
namespace {

using Does = Habits::Does;
using wire::CmMessage;

// Our engine, and a peer whose every word the test chooses.
class CmProtocol : public testing::Test {
 protected:
  CmProtocol() { EXPECT_TRUE(engine.listen({.service_id = kService})); }

  void hear(const CmMessage& message, std::uint64_t transaction = 77) {
    engine.receive(route, wire::encode_cm({.transaction_id = transaction, .message = message}),
                   now);
  }
  // What we say, in order.
  std::vector<CmMessage> said() {
    std::vector<CmMessage> all;
    Mad mad;
    while (engine.next_mad(mad)) {
      EXPECT_EQ(mad.route, route);
      all.push_back(wire::parse_cm(mad.bytes)->message);
      last_transaction = wire::parse_cm(mad.bytes)->transaction_id;
    }
    return all;
  }
  template <class Message>
  Message only() {
    const auto all = said();
    EXPECT_EQ(all.size(), 1u);
    const auto* const message = all.empty() ? nullptr : std::get_if<Message>(&all[0]);
    EXPECT_NE(message, nullptr);
    return message != nullptr ? *message : Message{};
  }
  void expect_silence() { EXPECT_TRUE(said().empty()); }
  std::vector<EventKind> told() {
    std::vector<EventKind> all;
    Event event;
    while (engine.next_event(event)) {
      all.push_back(event.kind);
      last = event;
    }
    return all;
  }
  void expect_told(std::initializer_list<EventKind> kinds) {
    EXPECT_EQ(told(), std::vector<EventKind>(kinds));
  }
  void wait(Duration time) {
    now = now + time;
    engine.advance(now);
  }

  wire::Req request(QpNum qp = {0x50}, std::uint32_t id = 0x1000) {
    wire::Req req = request_for(host_gid(2), host_gid(1), qp);
    req.local_comm_id = id;
    return req;
  }
  // A passive connection of ours with the peer's id 0x1000 and queue pair 0x50.
  CommId standing() {
    const CommId id = accepted();
    hear(wire::Rtu{.local_comm_id = 0x1000, .remote_comm_id = id.value});
    expect_told({EventKind::kEstablished});
    return id;
  }
  CommId accepted() {
    const CommId id = requested();
    EXPECT_TRUE(engine.accept(id, {.local_qp = {0x60}}, now));
    EXPECT_EQ(only<wire::Rep>().local_comm_id, id.value);
    return id;
  }
  CommId requested() {
    hear(request());
    expect_told({EventKind::kRequest});
    return last.id;
  }
  // An active one whose peer has the id 0x2000 and queue pair 0x70.
  CommId asking() {
    wire::Req req = request_for(host_gid(1), host_gid(2), {0x80});
    const auto id = engine.connect(route, req, 3, now);
    EXPECT_TRUE(id);
    only<wire::Req>();
    return *id;
  }
  wire::Rep reply_to(CommId id, QpNum qp = {0x70}) {
    return {.local_comm_id = 0x2000, .remote_comm_id = id.value, .local_qp = qp};
  }

  SeededRandom random{1};
  Engine engine{{.slot = {5}, .early_resend = {}}, random};
  Route route{.port = 9, .local = host_gid(1), .remote = host_gid(2), .traffic_class = 4};
  Instant now = Instant::at(1'000'000);
  Event last;
  std::uint64_t last_transaction = 0;
};

TEST_F(CmProtocol, AReplyToNobodyIsDenied) {
  hear(wire::Rep{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  const auto rej = only<wire::Rej>();
  EXPECT_EQ(rej.reason, wire::RejReason::kInvalidCommId);
  EXPECT_EQ(rej.message, wire::RejOf::kRep);
  EXPECT_EQ(rej.remote_comm_id, 0x2000u);
  EXPECT_EQ(rej.local_comm_id, 0x1234u);
  EXPECT_EQ(last_transaction, 77u) << "an answer has the transaction of the question";
}

TEST_F(CmProtocol, ADisconnectToNobodyIsAnswered) {
  hear(wire::Dreq{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  EXPECT_EQ(only<wire::Drep>().remote_comm_id, 0x2000u);
}

TEST_F(CmProtocol, AReadyToUseToNobodyIsDenied) {
  hear(wire::Rtu{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  EXPECT_EQ(only<wire::Rej>().message, wire::RejOf::kOther);
}

TEST_F(CmProtocol, NothingElseToNobodyIsAnswered) {
  hear(wire::Rej{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  hear(wire::Mra{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  hear(wire::Drep{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  hear(wire::Apr{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  hear(wire::SidrRep{.request_id = 0x1234});
  expect_silence();
  expect_told({});
  EXPECT_EQ(engine.counters().unmatched, 5u);
}

TEST_F(CmProtocol, OtherPathsAreRefused) {
  const CommId id = standing();
  hear(wire::Lap{.local_comm_id = 0x1000, .remote_comm_id = id.value});
  EXPECT_EQ(only<wire::Apr>().status, 2) << "not supported";
  hear(wire::Lap{.local_comm_id = 0x2000, .remote_comm_id = 0x1234});
  EXPECT_EQ(only<wire::Apr>().status, 1) << "of no connection";
  expect_told({});
}

TEST_F(CmProtocol, AnAlternatePathIsNotSupported) {
  wire::Req req = request();
  req.alternate.remote_gid = host_gid(9);
  hear(req);
  expect_told({EventKind::kRequest});
  ASSERT_TRUE(engine.accept(last.id, {.local_qp = {0x60}}, now));
  EXPECT_EQ(only<wire::Rep>().failover_accepted, 1);
}

TEST_F(CmProtocol, ARequestForAListenerThatIsGoneIsNotTold) {
  const auto listener = engine.listen({.service_id = kDatagramService});
  hear(wire::SidrReq{.request_id = 0x55, .service_id = kDatagramService});
  engine.unlisten(*listener, now);
  expect_told({});
  EXPECT_EQ(only<wire::SidrRep>().status, wire::SidrStatus::kRejected);
}

TEST_F(CmProtocol, OtherVersionsAreRefusedByReason) {
  const auto of_version = [&](const CmMessage& message, unsigned version) {
    auto bytes = wire::encode_cm({.transaction_id = 77, .message = message});
    bytes[2] = static_cast<std::byte>(version);
    engine.receive(route, bytes, now);
  };
  of_version(request(), 3);
  const auto rej = only<wire::Rej>();
  EXPECT_EQ(rej.reason, wire::RejReason::kInvalidClassVersion);
  EXPECT_EQ(rej.remote_comm_id, 0x1000u);
  of_version(wire::SidrReq{.request_id = 0x55}, 1);
  const auto rep = only<wire::SidrRep>();
  EXPECT_EQ(rep.status, wire::SidrStatus::kUnsupportedVersion);
  EXPECT_EQ(rep.request_id, 0x55u);
  of_version(wire::Rtu{}, 3);
  expect_silence();
  expect_told({});
}

TEST_F(CmProtocol, WhatIsNoMessageIsCountedAndDropped) {
  engine.receive(route, {}, now);
  auto bytes = wire::encode_cm({.transaction_id = 77, .message = request()});
  engine.receive(route, std::span(bytes).first(255), now);
  bytes[17] = std::byte{0x1B};
  engine.receive(route, bytes, now);
  expect_silence();
  EXPECT_EQ(engine.counters().malformed, 3u);
}

TEST_F(CmProtocol, ARequestAgainIsNoNewOne) {
  const CommId id = requested();
  hear(request());
  const auto mra = only<wire::Mra>();
  EXPECT_EQ(mra.message, wire::MraOf::kReq);
  EXPECT_EQ(mra.local_comm_id, id.value);
  EXPECT_EQ(mra.remote_comm_id, 0x1000u);
  ASSERT_TRUE(engine.accept(id, {.local_qp = {0x60}}, now));
  const auto rep = only<wire::Rep>();
  hear(request());
  EXPECT_EQ(only<wire::Rep>(), rep) << "the same reply again";
  hear(wire::Rtu{.local_comm_id = 0x1000, .remote_comm_id = id.value});
  hear(request());
  expect_silence();
  expect_told({EventKind::kEstablished});
}

TEST_F(CmProtocol, ARequestThatWasRejectedStaysRejected) {
  const CommId id = requested();
  ASSERT_TRUE(engine.reject(id, {.reason = wire::RejReason::kConsumer}, now));
  engine.release(id, now);
  const auto rej = only<wire::Rej>();
  hear(request());
  EXPECT_EQ(only<wire::Rej>(), rej);
  expect_told({});
}

TEST_F(CmProtocol, AReplyAgainIsAnsweredByTheSameReadyToUse) {
  const CommId id = asking();
  hear(reply_to(id));
  expect_told({EventKind::kReply});
  hear(reply_to(id));
  EXPECT_EQ(only<wire::Mra>().message, wire::MraOf::kRep) << "the program has not said";
  const std::array data{std::byte{7}};
  ASSERT_TRUE(engine.confirm(id, data, now));
  const auto rtu = only<wire::Rtu>();
  EXPECT_EQ(rtu.private_data[0], std::byte{7});
  hear(reply_to(id));
  EXPECT_EQ(only<wire::Rtu>(), rtu);
  expect_told({});
}

TEST_F(CmProtocol, AReplyAgainIsAnsweredByTheDisconnectThatFollowed) {
  const CommId id = asking();
  hear(reply_to(id));
  ASSERT_TRUE(engine.confirm(id, {}, now));
  ASSERT_TRUE(engine.disconnect(id, {}, now));
  EXPECT_EQ(said().size(), 2u);
  hear(reply_to(id));
  EXPECT_EQ(only<wire::Dreq>().remote_comm_id, 0x2000u);
}

TEST_F(CmProtocol, ADisconnectAgainIsAnsweredAgain) {
  const CommId id = standing();
  const wire::Dreq dreq{.local_comm_id = 0x1000, .remote_comm_id = id.value, .remote_qp = {0x60}};
  hear(dreq);
  const auto drep = only<wire::Drep>();
  expect_told({EventKind::kDisconnected});
  hear(dreq);
  EXPECT_EQ(only<wire::Drep>(), drep);
  expect_told({});
}

TEST_F(CmProtocol, ADisconnectOfAnotherQueuePairIsDropped) {
  const CommId id = standing();
  hear(wire::Dreq{.local_comm_id = 0x1000, .remote_comm_id = id.value, .remote_qp = {0x61}});
  expect_silence();
  expect_told({});
}

TEST_F(CmProtocol, ADisconnectSaysThatTheReplyArrived) {
  const CommId id = accepted();
  hear(wire::Dreq{.local_comm_id = 0x1000, .remote_comm_id = id.value, .remote_qp = {0x60}});
  only<wire::Drep>();
  expect_told({EventKind::kEstablished, EventKind::kDisconnected});
}

TEST_F(CmProtocol, OthersCannotSpeakForThePeer) {
  const CommId id = standing();
  const Route stranger{.local = host_gid(1), .remote = host_gid(99)};
  const auto bytes = wire::encode_cm(
      {.transaction_id = 1,
       .message =
           wire::Dreq{.local_comm_id = 0x1000, .remote_comm_id = id.value, .remote_qp = {0x60}}});
  engine.receive(stranger, bytes, now);
  expect_told({});
  Mad mad;
  ASSERT_TRUE(engine.next_mad(mad)) << "that connection it may have";
  EXPECT_EQ(mad.route, stranger);
  hear(wire::Dreq{.local_comm_id = 0x1001, .remote_comm_id = id.value, .remote_qp = {0x60}});
  expect_told({});
}

TEST_F(CmProtocol, AQueuePairThatIsReusedShowsAStaleConnection) {
  const CommId id = standing();
  hear(request({0x50}, 0x1001));
  const auto all = said();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(std::get<wire::Dreq>(all[0]).remote_comm_id, 0x1000u) << "the old one ends";
  EXPECT_EQ(std::get<wire::Rej>(all[1]).reason, wire::RejReason::kStaleConnection);
  EXPECT_EQ(std::get<wire::Rej>(all[1]).remote_comm_id, 0x1001u);
  expect_told({});
  hear(wire::Drep{.local_comm_id = 0x1000, .remote_comm_id = id.value});
  expect_told({EventKind::kDisconnected});
  EXPECT_EQ(last.ending, Ending::kStale);
  hear(request({0x50}, 0x1002));
  expect_told({EventKind::kRequest});
}

TEST_F(CmProtocol, AnIdThatIsReusedShowsAStaleConnection) {
  standing();
  hear(request({0x51}));
  ASSERT_EQ(said().size(), 2u);
  expect_told({});
  EXPECT_EQ(engine.counters().stale, 1u);
}

TEST_F(CmProtocol, AReplyFromAQueuePairInUseIsStale) {
  const CommId first = asking();
  hear(reply_to(first));
  ASSERT_TRUE(engine.confirm(first, {}, now));
  said();
  told();
  const CommId second = asking();
  wire::Rep rep = reply_to(second);
  rep.local_comm_id = 0x2001;
  hear(rep);
  const auto all = said();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(std::get<wire::Dreq>(all[0]).remote_comm_id, 0x2000u);
  EXPECT_EQ(std::get<wire::Rej>(all[1]).reason, wire::RejReason::kStaleConnection);
  expect_told({EventKind::kRejected});
  EXPECT_EQ(last.id, second);
}

// A process that was killed never answers; its successor may have its queue pair, or its id.
TEST_F(CmProtocol, AStaleConnectionThatWeDisconnectHasItsAnswer) {
  for (const auto& [qp, comm_id] : {std::pair(0x50u, 0x1001u), std::pair(0x51u, 0x1000u)}) {
    const CommId id = standing();
    ASSERT_TRUE(engine.disconnect(id, {}, now));
    only<wire::Dreq>();
    hear(request({qp}, comm_id));
    expect_silence();
    expect_told({EventKind::kDisconnected, EventKind::kRequest});
    engine.release(id, now);
    engine.release(last.id, now);
    said();
    wait(Duration::seconds(100));
  }
}

TEST_F(CmProtocol, HalfOpenConnectionsThatAreStaleAreRejected) {
  const CommId id = accepted();
  hear(request({0x50}, 0x1001));
  ASSERT_EQ(said().size(), 2u);
  expect_told({EventKind::kRejected});
  EXPECT_FALSE(last.has_message);
  EXPECT_EQ(engine.established(id, now).error(), Refusal::kWrongState);
}

TEST_F(CmProtocol, AReplyIsStaleWhenItsQueuePairAsksForMore) {
  const CommId id = asking();
  hear(reply_to(id));
  expect_told({EventKind::kReply});
  hear(request({0x70}, 0x2001));
  const auto all = said();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(std::get<wire::Rej>(all[0]).remote_comm_id, 0x2000u);
  EXPECT_EQ(std::get<wire::Rej>(all[1]).remote_comm_id, 0x2001u);
  expect_told({EventKind::kRejected});
  EXPECT_EQ(last.id, id);
}

TEST_F(CmProtocol, TimeWaitIsNoStaleConnection) {
  const CommId id = standing();
  hear(wire::Dreq{.local_comm_id = 0x1000, .remote_comm_id = id.value, .remote_qp = {0x60}});
  told();
  said();
  hear(request({0x50}, 0x1001));
  expect_told({EventKind::kRequest});
}

TEST_F(CmProtocol, AnMraOfTheWrongMessageIsDropped) {
  const CommId id = asking();
  hear(wire::Mra{.local_comm_id = 0x2000,
                 .remote_comm_id = id.value,
                 .message = wire::MraOf::kRep,
                 .service_timeout = 31});
  wait(Duration::milliseconds(1200));
  only<wire::Req>();
}

TEST_F(CmProtocol, APeerCannotPutUsOffForEver) {
  const CommId id = asking();
  int heard = 0;
  for (; told().empty() && heard < 1'000; ++heard) {
    hear(wire::Mra{.local_comm_id = 0x2000, .remote_comm_id = id.value, .service_timeout = 31});
    wait(Duration::seconds(299));
    said();
  }
  EXPECT_LT(heard, 40);
}

TEST_F(CmProtocol, WhatWaitsForAnAnswerCanBeAskedAgainAndCountsNothing) {
  const CommId id = asking();
  hear(wire::Mra{.local_comm_id = 0x2000, .remote_comm_id = id.value, .service_timeout = 24});
  for (int i = 0; i < 100; ++i) {
    engine.ask_again(id);
    EXPECT_EQ(only<wire::Req>().local_comm_id, id.value);
  }
  hear(reply_to(id));
  expect_told({EventKind::kReply});
  engine.ask_again(id);
  engine.ask_again(CommId{12345});
  expect_silence();
}

TEST_F(CmProtocol, ARejectionNeedNotKnowUs) {
  requested();
  hear(wire::Rej{.local_comm_id = 0x1000, .reason = wire::RejReason::kTimeout});
  expect_told({EventKind::kRejected});
  const CommId id = asking();
  hear(wire::Rej{.remote_comm_id = id.value, .reason = wire::RejReason::kInvalidServiceId});
  expect_told({EventKind::kRejected});
}

TEST_F(CmProtocol, AWithdrawalNamesOurChannelAdapter) {
  engine.release(asking(), now);
  const auto rej = only<wire::Rej>();
  EXPECT_EQ(rej.reason, wire::RejReason::kTimeout);
  EXPECT_EQ(rej.info_length, 8);
  EXPECT_EQ(rej.info[0], std::byte{0x12});
  EXPECT_EQ(rej.info[7], std::byte{0xF0});
}

TEST_F(CmProtocol, EventsOfWhatIsReleasedAreNotTold) {
  hear(request());
  const auto id = [&] {
    Event event;
    EXPECT_TRUE(engine.next_event(event));
    return event.id;
  }();
  hear(wire::Rej{.local_comm_id = 0x1000, .remote_comm_id = id.value});
  engine.release(id, now);
  expect_told({});
}

TEST_F(CmProtocol, SlowWithdrawnAnswersAreHarmless) {
  const CommId id = asking();
  engine.release(id, now);
  said();
  hear(reply_to(id));
  EXPECT_EQ(only<wire::Rej>().reason, wire::RejReason::kTimeout) << "as it was said";
  wait(Duration::seconds(100));
  hear(reply_to(id));
  EXPECT_EQ(only<wire::Rej>().reason, wire::RejReason::kInvalidCommId);
  expect_told({});
  EXPECT_EQ(engine.connections(), 0u);
}

TEST_F(CmProtocol, WhatIsNotFetchedIsLostAndNotGathered) {
  Engine small{{.outgoing_max = 4}, random};
  for (int i = 0; i < 100; ++i) {
    small.receive(route, wire::encode_cm({.transaction_id = 1, .message = request()}), now);
  }
  EXPECT_EQ(small.counters().outgoing_lost, 96u);
}

TEST_F(CmProtocol, TooManyInTimeWaitEndTheOldest) {
  Engine small{{.time_wait_max = 2}, random};
  std::vector<CommId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(*small.connect(route, request_for(route.local, route.remote, {0x80}), 0, now));
    small.receive(route,
                  wire::encode_cm({.transaction_id = 1,
                                   .message = wire::Rej{.remote_comm_id = ids.back().value}}),
                  now);
  }
  std::vector<std::pair<CommId, EventKind>> heard;
  for (Event event; small.next_event(event);)
    heard.emplace_back(event.id, event.kind);
  ASSERT_EQ(heard.size(), 4u);
  EXPECT_EQ(heard[3], std::pair(ids[0], EventKind::kTimeWaitOver));
  EXPECT_EQ(small.counters().time_wait_cut, 1u);
}

TEST(CmResolving, NoMoreWaitThanTheBacklogHolds) {
  World world;
  world[1].listen(2);
  world[1].habits.on_resolve = Does::kNothing;
  for (int i = 0; i < 3; ++i)
    world[0].resolve(world[1]);
  world.run(Duration::milliseconds(10));
  ASSERT_EQ(world[0].heard.size(), 1u) << "the first two wait";
  EXPECT_EQ(std::get<wire::SidrRep>(world[0].heard[0].message).status, wire::SidrStatus::kRejected);
}

}  // namespace
}  // namespace verbena::cm
