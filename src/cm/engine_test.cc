// SPDX-License-Identifier: MIT
// What happens between two who keep to the protocol, on a network that loses nothing.
#include "cm/engine.h"

#include <gtest/gtest.h>

#include "cm/test_world.h"

namespace verbena::cm {
namespace {

using Does = Habits::Does;

struct Pair : World {
  Pair() { b.listen(); }
  Side& a = (*this)[0];
  Side& b = (*this)[1];
};

std::vector<EventKind> kinds(std::initializer_list<EventKind> kinds) { return kinds; }

TEST(CmEngine, AConnectionTakesThreeMessages) {
  Pair pair;
  pair.a.connect(pair.b);
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.sent(), "REQ REP RTU");
  EXPECT_EQ(pair.a.story().events, kinds({EventKind::kReply}));
  EXPECT_EQ(pair.b.story().events, kinds({EventKind::kRequest, EventKind::kEstablished}));
  EXPECT_TRUE(pair.a.story().stands() && pair.b.story().stands());
  EXPECT_EQ(pair.a.engine.next_deadline(), Instant::never()) << "nothing is left to do";
  EXPECT_EQ(pair.b.engine.next_deadline(), Instant::never());
}

TEST(CmEngine, EventsBringWhatTheMessagesSaid) {
  Pair pair;
  wire::Req req = request_for(pair.a.gid, pair.b.gid, {0x123});
  req.private_data[91] = std::byte{9};
  req.ece = {.vendor_id = 0x15B3, .options = 3};
  const CommId id = pair.a.connect(pair.b, req);
  pair.run(Duration::seconds(1));
  const Event& asked = pair.b.heard.at(0);
  wire::Req got = std::get<wire::Req>(asked.message);
  EXPECT_EQ(got.local_comm_id, id.value);
  got.local_comm_id = 0;
  EXPECT_EQ(got, req);
  EXPECT_EQ(asked.route, (Route{.local = pair.b.gid, .remote = pair.a.gid}));
  EXPECT_TRUE(asked.has_message);
  const auto& rep = std::get<wire::Rep>(pair.a.heard.at(0).message);
  EXPECT_EQ(rep.remote_comm_id, id.value);
  EXPECT_EQ(rep.local_comm_id, pair.b.only().value);
  EXPECT_EQ(pair.a.heard.at(0).tag, 7u);
}

TEST(CmEngine, IdsBeginWithTheSlot) {
  Pair pair;
  EXPECT_EQ(pair.a.connect(pair.b).value >> 22, 1u);
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.b.only().value >> 22, 2u);
  EXPECT_EQ(CommId::of({0x3FF}, ~0ull).value, ~0u);
}

TEST(CmEngine, EitherSideDisconnects) {
  for (const bool by_active : {true, false}) {
    Pair pair;
    pair.a.connect(pair.b);
    pair.run(Duration::seconds(1));
    Side& first = by_active ? pair.a : pair.b;
    Side& other = by_active ? pair.b : pair.a;
    first.disconnect(first.only());
    pair.run(Duration::milliseconds(10));
    EXPECT_EQ(pair.sent(), "REQ REP RTU DREQ DREP");
    EXPECT_EQ(first.story().ending, Ending::kAnswered);
    EXPECT_EQ(other.story().ending, Ending::kPeer);
    EXPECT_FALSE(first.story().had(EventKind::kTimeWaitOver)) << "not yet: 67 ms";
    pair.run(Duration::seconds(1));
    EXPECT_TRUE(first.story().had(EventKind::kTimeWaitOver));
    EXPECT_TRUE(other.story().had(EventKind::kTimeWaitOver));
    EXPECT_EQ(first.engine.connections(), 1u) << "until it is released";
    first.release_all();
    other.release_all();
    EXPECT_EQ(first.engine.connections() + other.engine.connections(), 0u);
  }
}

TEST(CmEngine, CrossingDisconnectsAnswerEachOther) {
  Pair pair;
  pair.a.connect(pair.b);
  pair.run(Duration::seconds(1));
  pair.a.disconnect(pair.a.only());
  pair.b.disconnect(pair.b.only());
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.sent(), "REQ REP RTU DREQ DREQ DREP DREP");
  EXPECT_EQ(pair.a.story().ending, Ending::kPeer);
  EXPECT_EQ(pair.b.story().ending, Ending::kPeer);
}

TEST(CmEngine, ARejectionArrivesWithReasonAndData) {
  Pair pair;
  pair.b.habits.on_request = Does::kReject;
  pair.a.connect(pair.b);
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.sent(), "REQ REJ");
  const Event& told = pair.a.heard.at(0);
  ASSERT_EQ(told.kind, EventKind::kRejected);
  const auto& rej = std::get<wire::Rej>(told.message);
  EXPECT_EQ(rej.reason, wire::RejReason::kConsumer);
  EXPECT_EQ(rej.message, wire::RejOf::kReq);
  EXPECT_EQ(rej.private_data[1], std::byte{2});
}

TEST(CmEngine, AReplyMayBeRejected) {
  Pair pair;
  pair.a.habits.on_reply = Does::kReject;
  pair.a.connect(pair.b);
  pair.run(Duration::seconds(2));
  EXPECT_EQ(pair.sent(), "REQ REP REJ");
  EXPECT_EQ(pair.b.story().events,
            kinds({EventKind::kRequest, EventKind::kRejected, EventKind::kTimeWaitOver}));
}

TEST(CmEngine, NobodyListensIsSaidAtOnce) {
  Pair pair;
  wire::Req req = request_for(pair.a.gid, pair.b.gid, {5});
  req.service_id = 1;
  pair.a.connect(pair.b, req);
  pair.run(Duration::milliseconds(10));
  EXPECT_EQ(pair.a.story().reason, wire::RejReason::kInvalidServiceId);
  EXPECT_EQ(pair.b.engine.connections(), 0u);
}

TEST(CmEngine, WhatWeDoNotHaveIsRefusedByReason) {
  const auto refused = [](auto change) {
    Pair pair;
    wire::Req req = request_for(pair.a.gid, pair.b.gid, {5});
    change(req);
    Mad mad{{.local = pair.a.gid, .remote = pair.b.gid}, {}};
    mad.bytes = wire::encode_cm({.transaction_id = 1, .message = req});
    pair.arrive(mad);
    pair.b.pump();
    EXPECT_EQ(pair.sent(), "REJ");
    EXPECT_TRUE(pair.b.heard.empty());
  };
  refused([](wire::Req& req) { req.transport_type = wire::TransportType::kRd; });
  refused([](wire::Req& req) { req.path_mtu = 6; });
  refused([](wire::Req& req) { req.path_mtu = 0; });
  refused([](wire::Req& req) { req.service_id = 0; });
}

TEST(CmEngine, AListenerThatGoesLeavesItsConnections) {
  World world;
  const auto listener = world[1].engine.listen({.service_id = kService});
  ASSERT_TRUE(listener);
  world[0].connect(world[1]);
  world.run(Duration::milliseconds(10));
  world[1].engine.unlisten(*listener, world.clock.now);
  EXPECT_TRUE(world[1].story().stands());
  world.run(Duration::seconds(1));
  const CommId late = world[0].connect(world[1]);
  world.run(Duration::milliseconds(10));
  EXPECT_EQ(world[0].stories[late].reason, wire::RejReason::kInvalidServiceId);
}

// Whom it does not reach is answered neither way until it is known: no refusal, which is for good.
TEST(CmEngine, AListenerThatGoesMayComeBack) {
  for (const bool comes_back : {true, false}) {
    World world;
    const Listening what{.service_id = kService};
    const auto listener = world[1].engine.listen(what);
    world[1].engine.unlisten(*listener, world.clock.now);
    const CommId early = world[0].connect(world[1]);
    const CommId resolving = world[0].resolve(world[1], kService);
    wire::Req other = request_for(world[0].gid, world[1].gid, {5});
    other.service_id = kService + 1;
    const CommId elsewhere = world[0].connect(world[1], other);
    world.run(Duration::milliseconds(10));
    EXPECT_EQ(world[0].stories[elsewhere].reason, wire::RejReason::kInvalidServiceId);
    EXPECT_TRUE(world[0].stories[early].events.empty());
    EXPECT_TRUE(world[0].stories[resolving].events.empty());
    EXPECT_EQ(world[1].engine.counters().too_late, 2u);
    if (comes_back) {
      ASSERT_TRUE(world[1].engine.listen(what));
    }
    world.run(Duration::seconds(20));
    EXPECT_EQ(world[0].stories[early].stands(), comes_back);
    EXPECT_EQ(world[0].stories[early].has_ended(), !comes_back);
    EXPECT_EQ(world[0].stories[resolving].events, kinds({EventKind::kResolved}));
  }
}

TEST(CmEngine, ASlowProgramIsWaitedFor) {
  Pair pair;
  pair.b.habits.request_time = Duration::seconds(40);
  pair.a.habits.reply_time = Duration::seconds(40);
  pair.a.connect(pair.b);
  pair.run(Duration::seconds(100));
  EXPECT_EQ(pair.sent(), "REQ REQ MRA REP REP MRA RTU") << "one MRA says enough";
  EXPECT_TRUE(pair.a.story().stands() && pair.b.story().stands());
}

TEST(CmEngine, AProgramMayAskForTimeItself) {
  Pair pair;
  pair.b.habits.on_request = Does::kNothing;
  pair.a.connect(pair.b);
  pair.run(Duration::milliseconds(1));
  ASSERT_TRUE(pair.b.engine.ask_for_time(pair.b.only(), 20, pair.clock.now));
  pair.b.pump();
  pair.run(Duration::milliseconds(4294 + 1000));
  EXPECT_EQ(pair.sent(), "REQ MRA") << "4.3 s of the MRA, then 1.1 s as usual";
  pair.run(Duration::milliseconds(200));
  EXPECT_EQ(pair.sent(), "REQ MRA REQ MRA");
}

TEST(CmEngine, TrafficIsAsGoodAsReadyToUse) {
  Pair pair;
  pair.fate = [](const Sent& sent) {
    return sent.attribute == wire::CmAttribute::kRtu ? std::vector<Duration>{} : std::vector{kWay};
  };
  pair.a.connect(pair.b);
  pair.run(Duration::milliseconds(10));
  ASSERT_TRUE(pair.b.engine.established(pair.b.only(), pair.clock.now));
  pair.b.pump();
  EXPECT_TRUE(pair.b.story().stands());
  EXPECT_EQ(pair.b.engine.next_deadline(), Instant::never());
  EXPECT_EQ(pair.b.engine.established(pair.b.only(), pair.clock.now).error(), Refusal::kWrongState);
}

TEST(CmEngine, ADeadPeerIsGivenUpInBoundedTime) {
  Pair pair;
  pair.fate = [](const Sent&) { return std::vector<Duration>{}; };
  wire::Req req = request_for(pair.a.gid, pair.b.gid, {5});
  req.max_cm_retries = 3;
  pair.a.connect(pair.b, req);
  pair.run(Duration::milliseconds(4 * 1141 - 100));
  EXPECT_TRUE(pair.a.heard.empty());
  EXPECT_EQ(pair.sent(), "REQ REQ REQ REQ REQ") << "three retries, and an early one";
  pair.run(Duration::milliseconds(200));
  EXPECT_EQ(pair.a.story().events, kinds({EventKind::kUnreachable}));
  EXPECT_EQ(pair.sent(), "REQ REQ REQ REQ REQ REJ");
}

TEST(CmEngine, APeerThatDiesHalfWayIsGivenUp) {
  for (const auto last : {wire::CmAttribute::kReq, wire::CmAttribute::kRtu}) {
    Pair pair;
    bool is_dead = false;
    pair.fate = [&](const Sent& sent) {
      if (sent.attribute == last) is_dead = true;
      return is_dead && sent.from == 0 && sent.attribute != wire::CmAttribute::kReq
                 ? std::vector<Duration>{}
                 : std::vector{kWay};
    };
    pair.a.connect(pair.b);
    pair.run(Duration::milliseconds(10));
    if (last == wire::CmAttribute::kRtu) {
      EXPECT_TRUE(pair.a.story().stands());
    }
    pair.run(Duration::seconds(60));
    EXPECT_TRUE(pair.b.story().had(EventKind::kUnreachable)) << text_of(pair.b.story());
    EXPECT_EQ(pair.a.story().ending, Ending::kUnknown) << "our REJ told it";
  }
}

TEST(CmEngine, ServicesAreResolved) {
  Pair pair;
  const CommId id = pair.a.resolve(pair.b);
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.sent(), "SIDR_REQ SIDR_REP");
  const Event& told = pair.a.heard.at(0);
  ASSERT_EQ(told.kind, EventKind::kResolved);
  const auto& rep = std::get<wire::SidrRep>(told.message);
  EXPECT_EQ(rep.status, wire::SidrStatus::kValid);
  EXPECT_EQ(rep.qp, QpNum{77});
  EXPECT_EQ(rep.qkey, 0x1234u);
  EXPECT_EQ(rep.service_id, kDatagramService);
  pair.a.release(id);
  pair.run(Duration::seconds(20));
  EXPECT_EQ(pair.a.engine.connections() + pair.b.engine.connections(), 0u);
}

TEST(CmEngine, ServicesThatAreNotThereAreSaid) {
  Pair pair;
  pair.a.resolve(pair.b, 99);
  pair.run(Duration::milliseconds(10));
  EXPECT_EQ(std::get<wire::SidrRep>(pair.a.heard.at(0).message).status,
            wire::SidrStatus::kUnsupportedServiceId);
  pair.b.habits.on_resolve = Does::kRelease;
  pair.a.resolve(pair.b);
  pair.run(Duration::milliseconds(10));
  EXPECT_EQ(std::get<wire::SidrRep>(pair.a.heard.at(1).message).status,
            wire::SidrStatus::kRejected);
}

TEST(CmEngine, ReleaseEndsWhatStands) {
  Pair pair;
  pair.a.connect(pair.b);
  pair.run(Duration::seconds(1));
  pair.a.release_all();
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.sent(), "REQ REP RTU DREQ DREP");
  EXPECT_EQ(pair.b.story().ending, Ending::kPeer);
  EXPECT_EQ(pair.a.engine.connections(), 0u);
}

// What is sent once more for want of an answer says so, and nothing else does.
TEST(CmEngine, RequestsThatAreRepeatedAreMarked) {
  Pair pair;
  pair.b.habits.on_request = Does::kNothing;
  unsigned repeated = 0;
  pair.watch = [&](const Mad& mad) { repeated += mad.asks != CommId{}; };
  pair.fate = [](const Sent&) { return std::vector<Duration>(); };
  const CommId id = pair.a.connect(pair.b);
  EXPECT_TRUE(pair.a.engine.is_unanswered(id));
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.sent(), "REQ REQ");
  EXPECT_EQ(repeated, 1u);
}

TEST(CmEngine, NobodyIsThereWhereNobodyAnswered) {
  for (const bool is_datagram : {false, true}) {
    Pair pair;
    pair.fate = [](const Sent&) { return std::vector<Duration>(); };
    const CommId id = is_datagram ? pair.a.resolve(pair.b) : pair.a.connect(pair.b);
    pair.a.engine.nobody_there(id, pair.clock.now);
    pair.a.pump();
    EXPECT_EQ(pair.a.story().events.front(), EventKind::kUnreachable);
    EXPECT_EQ(pair.a.heard.front().ending, Ending::kNobody);
    pair.a.engine.nobody_there(id, pair.clock.now);
    pair.a.release_all();
    pair.run(Duration::seconds(60));
    EXPECT_EQ(pair.a.engine.connections(), 0u);
  }
}

TEST(CmEngine, WhoHasSaidSomethingIsThere) {
  Pair pair;
  pair.b.habits.on_request = Does::kNothing;
  const CommId id = pair.a.connect(pair.b);
  pair.run(Duration::seconds(1));
  ASSERT_EQ(pair.sent(), "REQ REQ MRA") << "asked for time";
  pair.a.engine.nobody_there(id, pair.clock.now);
  pair.a.pump();
  EXPECT_TRUE(pair.a.heard.empty());

  Pair other;
  other.a.connect(other.b);
  other.run(Duration::seconds(1));
  other.a.engine.nobody_there(other.a.only(), other.clock.now);
  other.a.pump();
  EXPECT_TRUE(other.a.story().stands());
}

// However often the peer asks for time; and what comes about stands as long as it likes.
TEST(CmEngine, AskingEnds) {
  const Settings settings{.asking_max = Duration::seconds(100)};
  World world(2, 1, settings);
  world[1].listen();
  world[1].habits.on_request = Does::kNothing;
  world[0].connect(world[1]);
  world.run(Duration::seconds(99));
  EXPECT_TRUE(world[0].heard.empty());
  world.run(Duration::seconds(2));
  EXPECT_TRUE(world[0].story().had(EventKind::kUnreachable));
  EXPECT_EQ(world[0].story().ending, Ending::kNone);

  World lasting(2, 1, settings);
  lasting[1].listen();
  lasting[0].connect(lasting[1]);
  lasting.run(Duration::seconds(200));
  lasting[0].disconnect(lasting[0].only());
  lasting.run(Duration::seconds(1));
  EXPECT_EQ(lasting[0].story().ending, Ending::kAnswered);
}

TEST(CmEngine, ARequestCanBeWithdrawn) {
  Pair pair;
  pair.b.habits.on_request = Does::kNothing;
  pair.a.connect(pair.b);
  pair.run(Duration::milliseconds(10));
  pair.a.release_all();
  pair.run(Duration::milliseconds(10));
  EXPECT_EQ(pair.sent(), "REQ REJ");
  EXPECT_EQ(pair.b.story().events, kinds({EventKind::kRequest, EventKind::kRejected}));
  EXPECT_EQ(pair.b.story().reason, wire::RejReason::kTimeout);
}

TEST(CmEngine, AProcessConnectsToItself) {
  World world(1);
  world[0].listen();
  const CommId id = world[0].connect(world[0]);
  world.run(Duration::seconds(1));
  ASSERT_EQ(world[0].stories.size(), 2u);
  for (const auto& [each, story] : world[0].stories)
    EXPECT_TRUE(story.stands()) << text_of(story);
  world[0].disconnect(id);
  world.run(Duration::seconds(1));
  for (const auto& [each, story] : world[0].stories)
    EXPECT_TRUE(story.has_ended());
}

TEST(CmEngine, BothMayAskAtOnce) {
  Pair pair;
  pair.a.listen();
  pair.a.connect(pair.b);
  pair.b.connect(pair.a);
  pair.run(Duration::seconds(1));
  EXPECT_EQ(pair.a.stories.size() + pair.b.stories.size(), 4u) << "two connections, not one";
  for (Side* const side : {&pair.a, &pair.b}) {
    for (const auto& [id, story] : side->stories)
      EXPECT_TRUE(story.stands());
  }
}

TEST(CmEngine, CommandsThatDoNotFitChangeNothing) {
  Pair pair;
  pair.b.habits.on_request = Does::kNothing;
  const CommId id = pair.a.connect(pair.b);
  pair.run(Duration::milliseconds(10));
  Engine& engine = pair.a.engine;
  const Instant now = pair.clock.now;
  EXPECT_EQ(engine.confirm(id, {}, now).error(), Refusal::kWrongState);
  EXPECT_EQ(engine.accept(id, {}, now).error(), Refusal::kWrongState);
  EXPECT_EQ(engine.disconnect(id, {}, now).error(), Refusal::kWrongState);
  EXPECT_EQ(engine.answer(id, {}, now).error(), Refusal::kWrongState);
  EXPECT_EQ(engine.accept({12345}, {}, now).error(), Refusal::kNoSuchId);
  const std::array<std::byte, 149> much{};
  const CommId theirs = pair.b.only();
  EXPECT_EQ(pair.b.engine.reject(theirs, {.private_data = much}, now).error(), Refusal::kTooLong);
  wire::Req bad = request_for(pair.a.gid, pair.b.gid, {9});
  bad.path_mtu = 0;
  EXPECT_EQ(engine.connect({}, bad, 0, now).error(), Refusal::kInvalid);
  EXPECT_TRUE(pair.b.engine.accept(theirs, {.local_qp = {8}}, now));
  pair.b.pump();
  pair.run(Duration::milliseconds(10));
  EXPECT_TRUE(pair.a.story().stands());
}

TEST(CmEngine, ATimeoutHasFiveBits) {
  World world;
  Engine& engine = world[0].engine;
  const Instant now = world.clock.now;
  const wire::SidrReq asked{.service_id = kDatagramService};
  EXPECT_TRUE(engine.resolve({}, asked, {.response_timeout = 31}, 0, now));
  EXPECT_EQ(engine.resolve({}, asked, {.response_timeout = 32}, 0, now).error(), Refusal::kInvalid);
}

TEST(CmEngine, WhoHasAskedMayAskOnceMoreBeforeItKnows) {
  // The passive end waits for a REQ that comes late, the active end only for packets.
  Pair pair;
  pair.a.habits.on_reply = Does::kReject;
  pair.a.connect(pair.b);
  pair.run(Duration::milliseconds(500));
  EXPECT_TRUE(pair.b.story().had(EventKind::kRejected));
  EXPECT_FALSE(pair.b.story().had(EventKind::kTimeWaitOver));
  pair.run(Duration::seconds(2));
  EXPECT_TRUE(pair.b.story().had(EventKind::kTimeWaitOver));

  Pair other;
  other.b.habits.on_request = Does::kReject;
  other.a.connect(other.b);
  other.run(Duration::milliseconds(500));
  EXPECT_TRUE(other.a.story().had(EventKind::kTimeWaitOver));
}

TEST(CmEngine, ConnectionsHaveALimit) {
  World world(2, 1, {.connections_max = 3});
  world[1].listen();
  for (int i = 0; i < 3; ++i)
    world[0].connect(world[1]);
  const auto more = world[0].engine.connect({}, request_for({}, {}, {9}), 0, world.clock.now);
  EXPECT_EQ(more.error(), Refusal::kNoRoom);
  world.run(Duration::seconds(1));
  world[0].release(world[0].stories.begin()->first);
  world.run(Duration::seconds(1));
  EXPECT_TRUE(world[0].engine.connect({}, request_for({}, {}, {9}), 0, world.clock.now));
}

}  // namespace
}  // namespace verbena::cm
