// SPDX-License-Identifier: MIT
#include "port/socket_group.h"

#include <algorithm>

#include "base/test_seed.h"
#include "port/test_group.h"

namespace verbena::port {
namespace {

class SocketGroupTest : public ::testing::Test {
 protected:
  std::unique_ptr<Member> start(std::uint16_t slot, int die_after_holds = -1) {
    return std::make_unique<Member>(
        Member::Setup{prefix, number, {slot}, die_after_holds, patience});
  }
  void start_joined(std::uint16_t slot) {
    members.push_back(start(slot));
    ASSERT_TRUE(members.back()->wait_joined());
  }
  // Everybody gets just what is sent to it, by IPv4 and IPv6, and nothing else.
  void expect_steered(const char* when) {
    constexpr std::uint32_t kEach = 6;
    for (const auto& member : members) {
      for (const bool ipv4 : {true, has_ipv6_sockets() ? false : true}) {
        const Gid here = ipv4 ? kLoopback4 : kLoopback6;
        send_packets(sender, {.from = here, .to = here, .slot = member->slot()}, kEach, 400);
      }
    }
    for (const auto& member : members) {
      const MemberState state = member->ask();
      EXPECT_EQ(state.came, 2 * kEach) << when << ", slot " << member->slot().value;
      EXPECT_EQ(state.misdelivered, 0u) << when << ", slot " << member->slot().value;
      EXPECT_EQ(state.conflicts, 0u);
    }
  }

  const std::string prefix = "verbena-test/group/" + std::to_string(getpid()) + "/" +
                             std::to_string(real_now().nanoseconds()) + "/";
  const std::uint16_t number = free_port();
  Duration patience = GroupOptions().patience;
  UdpPort sender{{.port = number}};
  std::vector<std::unique_ptr<Member>> members;
};

TEST_F(SocketGroupTest, MembersComeOneByOneAndEachHoldsEverySocket) {
  for (std::uint16_t slot = 0; slot < 5; ++slot) {
    start_joined(static_cast<std::uint16_t>(60 - 7 * slot));
    expect_steered("after a join");
  }
  for (const auto& member : members)
    EXPECT_EQ(member->ask().positions, 5u);
  for (const auto& member : members)
    EXPECT_EQ(member->finish(), 0);
}

TEST_F(SocketGroupTest, FortyMembersComeGoAndAreKilled) {
  // Nobody is stopped here, and forty that start at once on few processors are slow.
  patience = Duration::seconds(10);
  SeededRandom random(test_seed());
  std::vector<std::uint16_t> unused(Links::kSlots);
  for (std::uint16_t i = 0; i < Links::kSlots; ++i)
    unused[i] = i;
  const auto start_some = [&](std::size_t count) {
    const std::size_t first = members.size();
    for (std::size_t i = 0; i < count; ++i) {
      std::swap(unused[random.below(unused.size())], unused.back());
      members.push_back(start(unused.back()));
      unused.pop_back();
    }
    for (std::size_t i = first; i < members.size(); ++i)
      ASSERT_TRUE(members[i]->wait_joined());
  };
  start_some(40);
  if (HasFatalFailure()) return;
  expect_steered("at first");
  for (int round = 0; round < 4; ++round) {
    // A third is killed at once, the first among them.
    for (int i = 0; i < 13; ++i) {
      const std::size_t victim = i == 0 ? 0 : random.below(members.size());
      members[victim]->signal(SIGKILL);
      unused.push_back(members[victim]->slot().value);
      members.erase(members.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    expect_steered("after deaths");
    start_some(13);
    if (HasFatalFailure()) return;
    expect_steered("after newcomers");
  }
  for (const auto& member : members)
    EXPECT_EQ(member->ask().positions, 40u) << "the dead were replaced";
}

// Whoever is there as others join is given their sockets, long before it has its turn.
TEST_F(SocketGroupTest, TenWaitForTheirTurnTogether) {
  for (std::uint16_t slot = 0; slot < 10; ++slot) {
    members.push_back(std::make_unique<Member>(
        Member::Setup{.prefix = prefix, .port = number, .slot = {slot}, .waits = true}));
    ASSERT_TRUE(members.back()->wait_reachable());
  }
  for (const auto& member : members)
    member->let_join();
  for (const auto& member : members)
    ASSERT_TRUE(member->wait_joined());
  expect_steered("when all have joined");
}

TEST_F(SocketGroupTest, ANewcomerMayDieAtAnyStep) {
  for (const std::uint16_t slot : std::to_array<std::uint16_t>({3, 50, 20}))
    start_joined(slot);
  for (int holds = 0; holds < 3; ++holds) {
    const auto dying = start(static_cast<std::uint16_t>(10 + holds), holds);
    EXPECT_FALSE(dying->wait_joined());
    expect_steered("after a death in the middle");
    start_joined(static_cast<std::uint16_t>(30 + holds));
    expect_steered("after the next join");
  }
  for (const auto& member : members)
    EXPECT_EQ(member->ask().positions, 6u) << "what was never bound is forgotten";
}

TEST_F(SocketGroupTest, AStoppedMemberIsNotWaitedForAndMissesNothing) {
  for (const std::uint16_t slot : std::to_array<std::uint16_t>({3, 50, 20}))
    start_joined(slot);
  members[1]->signal(SIGSTOP);
  start_joined(40);
  EXPECT_GT(members.back()->ask().silent, 0u);
  members[1]->signal(SIGCONT);
  expect_steered("after it goes on");
  // It holds the new socket, too: nobody else does.
  for (const std::size_t other : {3u, 2u, 0u})
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(other));
  expect_steered("alone");
  start_joined(41);
  expect_steered("after a join");
}

TEST_F(SocketGroupTest, WhoHearsOfTheGroupFromNobodyDoesNotJoin) {
  start_joined(3);
  members[0]->signal(SIGSTOP);
  EXPECT_FALSE(start(40)->wait_joined());
  members[0]->signal(SIGCONT);
  start_joined(40);
  expect_steered("after the only one goes on");
}

TEST_F(SocketGroupTest, TheLastOneToGoLeavesNothing) {
  start_joined(3);
  start_joined(4);
  members.clear();
  start_joined(9);
  expect_steered("anew");
  EXPECT_EQ(members[0]->ask().positions, 1u);
}

TEST_F(SocketGroupTest, ARestartInTheSameSlotTakesItsSocket) {
  for (const std::uint16_t slot : std::to_array<std::uint16_t>({3, 50, 20}))
    start_joined(slot);
  members.erase(members.begin());
  start_joined(3);
  expect_steered("after the restart");
  EXPECT_EQ(members[0]->ask().positions, 3u);
}

TEST_F(SocketGroupTest, ServicesAreKnownToAll) {
  for (const std::uint16_t slot : std::to_array<std::uint16_t>({3, 50, 20}))
    start_joined(slot);
  members[1]->ask('v');
  start_joined(21);
  std::vector<std::byte> request(300);
  request[0] = std::byte{0x64};
  request[7] = std::byte{1};
  request[21] = std::byte{7};
  request[37] = std::byte{0x10};
  request[59] = std::byte{50};
  const Train train{{.from = kLoopback4, .to = kLoopback4, .slot = {0}}, request, 300};
  ASSERT_EQ(sender.send({&train, 1}, {}), 1u);
  for (const auto& member : members) {
    const MemberState state = member->ask();
    EXPECT_EQ(state.services, 1u);
    EXPECT_EQ(state.came, member->slot().value == 50 ? 1u : 0u);
  }
  // Its death takes the service along when the next one comes in its place.
  members.erase(members.begin() + 1);
  start_joined(22);
  for (const auto& member : members)
    EXPECT_EQ(member->ask().services, 0u);
}

// ----------------------------------------------------------------------- without other processes

class Alone final : public GroupEvents {
 public:
  bool send(host::PeerId, std::span<const std::byte> bytes, const host::PrivateFd*) override {
    sent.push_back(*parse_group_message(bytes));
    return true;
  }
  bool is_held(SlotNumber slot) override { return slot != gone; }
  void joined(SlotNumber, const host::PrivateFd&) override { ++joins; }
  void not_joined(SlotNumber, GroupError why) override { failure = why; }
  void steering_changed(const Steering&) override {}
  std::vector<GroupMessage> sent;
  int joins = 0;
  std::optional<SlotNumber> gone;
  std::optional<GroupError> failure;
};

constexpr host::PeerId kPeer{7, 7};
constexpr host::PeerId kOtherPeer{7, 8};

class GroupAloneTest : public ::testing::Test {
 protected:
  GroupAloneTest() { group.join({5}, {}, {}); }
  void say(GroupMessage message, int fd = -1) {
    group.message(kPeer, bytes_of(message), fd < 0 ? host::PrivateFd() : host::PrivateFd(fd), {});
  }
  Alone events;
  const std::uint16_t number = free_port();
  SocketGroup group{events, {.port = number}};
};

TEST_F(GroupAloneTest, TheFirstOneJoinsAtOnce) {
  EXPECT_EQ(events.joins, 1);
  EXPECT_EQ(group.size(), 1u);
  EXPECT_NE(group.socket_of({5}), nullptr);
  EXPECT_EQ(group.socket_of({6}), nullptr);
  group.join({6}, {}, {});  // a second slot of ours
  EXPECT_EQ(events.joins, 2);
  EXPECT_EQ(group.size(), 2u);
  EXPECT_EQ(group.steering().position({6}), 1u);
}

TEST_F(GroupAloneTest, OneJoinAtATime) {
  group.join({6}, {&kPeer, 1}, {});
  EXPECT_TRUE(group.is_joining());
  group.join({7}, {}, {});
  EXPECT_EQ(events.failure, GroupError::kBusy);
  EXPECT_EQ(group.next_deadline(), Instant() + GroupOptions().patience);
  group.peer_down(kPeer, {});
  EXPECT_FALSE(group.is_joining());
  EXPECT_EQ(events.joins, 2);
}

TEST_F(GroupAloneTest, WaitsLongerWhereNobodyAnswers) {
  const Duration patience = GroupOptions().patience;
  group.join({6}, {&kPeer, 1}, {});
  group.tick(Instant() + patience);
  EXPECT_TRUE(group.is_joining());
  EXPECT_EQ(group.next_deadline(), Instant() + patience * 2);
  group.tick(Instant() + patience * 4);
  EXPECT_EQ(group.next_deadline(), Instant() + patience * 5) << "for the socket to be held";
  group.tick(Instant() + patience * 5);
  EXPECT_EQ(events.joins, 2);
}

// Members that are slow are not taken for ones that are stopped.
class GroupSlownessTest : public GroupAloneTest {
 protected:
  void join() {
    const std::vector<host::PeerId> members{kPeer, kOtherPeer};
    newcomer.join({6}, members, {});
  }
  void hear(host::PeerId from, int patiences, GroupMessage says, int fd = -1) {
    says.round = 1;
    newcomer.message(from, bytes_of(says), fd < 0 ? host::PrivateFd() : host::PrivateFd(fd),
                     after(patiences));
  }
  void hear_all(host::PeerId from, int patiences) {
    hear(from, patiences, {.says = GroupSays::kSocket, .slot = 9}, dup(sockets[0].get()));
    hear(from, patiences, {.says = GroupSays::kAll});
  }
  static Instant after(int patiences) { return Instant() + GroupOptions().patience * patiences; }
  void wait(int first, int last) {
    for (int passed = first; passed <= last; ++passed)
      newcomer.tick(after(passed));
  }
  std::size_t count(GroupSays says) const {
    return static_cast<std::size_t>(std::ranges::count(around.sent, says, &GroupMessage::says));
  }

  const std::uint16_t theirs = free_port();
  const std::vector<UniqueFd> sockets = make_group(theirs, 1);
  Alone around;
  SocketGroup newcomer{around, {.port = theirs}};
};

TEST_F(GroupSlownessTest, WhoKnowsNothingIsNoReasonToGoOn) {
  join();
  hear(kPeer, 0, {.says = GroupSays::kHolding, .count = 0});
  wait(1, 3);
  ASSERT_TRUE(newcomer.is_joining());
  hear(kOtherPeer, 3, {.says = GroupSays::kHolding, .count = 1, .value = 7});
  hear_all(kOtherPeer, 3);
  EXPECT_EQ(count(GroupSays::kHold), 2u);
  EXPECT_EQ(newcomer.size(), 1u);
}

TEST_F(GroupSlownessTest, TheOnlyOneWithAnOpinionHasTime) {
  join();
  for (const host::PeerId member : {kPeer, kOtherPeer})
    hear(member, 3,
         {.says = GroupSays::kHolding,
          .count = static_cast<std::uint16_t>(member == kPeer ? 1 : 0),
          .value = 7});
  wait(4, 6);
  ASSERT_TRUE(newcomer.is_joining());
  hear_all(kPeer, 6);
  EXPECT_EQ(count(GroupSays::kFetch), 1u);
  EXPECT_EQ(count(GroupSays::kHold), 2u);
}

// As it waits for its turn, those before it give it theirs.
TEST_F(GroupSlownessTest, WhoHoldsAllSocketsBeforeItJoinsAsksToo) {
  hear(kPeer, 0, {.says = GroupSays::kHold, .slot = 9, .value = 1}, dup(sockets[0].get()));
  newcomer.message(kPeer, bytes_of(GroupMessage{.says = GroupSays::kAsk}), host::PrivateFd(), {});
  const GroupMessage theirs_too = around.sent.back();  // who holds the same says the same
  around.sent.clear();
  join();
  for (const host::PeerId member : {kPeer, kOtherPeer})
    hear(member, 0,
         {.says = GroupSays::kHolding, .count = theirs_too.count, .value = theirs_too.value});
  ASSERT_EQ(around.failure, std::nullopt);
  EXPECT_EQ(count(GroupSays::kFetch), 1u);
  hear_all(kPeer, 0);
  EXPECT_EQ(count(GroupSays::kHold), 2u);
}

class GroupFirstAnswerTest : public GroupSlownessTest,
                             public ::testing::WithParamInterface<host::PeerId> {};

TEST_P(GroupFirstAnswerTest, OfOneOpinionIsEnough) {
  join();
  for (const host::PeerId member : {kPeer, kOtherPeer})
    hear(member, 0, {.says = GroupSays::kHolding, .count = 1, .value = 7});
  EXPECT_EQ(count(GroupSays::kFetch), 1u);
  wait(1, 2);
  EXPECT_EQ(count(GroupSays::kFetch), 2u) << "who is slow may still answer";
  EXPECT_EQ(count(GroupSays::kHold), 0u);
  hear_all(GetParam(), 2);
  EXPECT_EQ(count(GroupSays::kHold), 2u);
}
INSTANTIATE_TEST_SUITE_P(Whose, GroupFirstAnswerTest, ::testing::Values(kPeer, kOtherPeer),
                         [](const auto& whose) {
                           return whose.param == kPeer ? "TheFirstAsked" : "TheSecond";
                         });

// The first of a group knows all of it; a newcomer that is told nothing, or half, knows nothing.
TEST_F(GroupAloneTest, ANewcomerThatIsToldNothingGivesUp) {
  const std::uint16_t theirs = free_port();
  const auto sockets = make_group(theirs, 1);
  const Duration patience = GroupOptions().patience;
  for (const int heard : {0, 1, 2}) {
    Alone around;
    SocketGroup newcomer(around, {.port = theirs});
    newcomer.join({6}, {&kPeer, 1}, {});
    const auto hear = [&](GroupMessage says, int fd) {
      says.round = 1;
      newcomer.message(kPeer, bytes_of(says), fd < 0 ? host::PrivateFd() : host::PrivateFd(fd), {});
    };
    if (heard > 0) hear({.says = GroupSays::kHolding, .count = 1, .value = 7}, -1);
    if (heard > 1) hear({.says = GroupSays::kSocket, .slot = 9}, dup(sockets[0].get()));
    for (int passed = 1; passed <= 5 && newcomer.is_joining(); ++passed)
      newcomer.tick(Instant() + patience * passed);
    EXPECT_EQ(around.failure, GroupError::kSilent) << heard;
    EXPECT_EQ(around.joins, 0) << heard;
    EXPECT_EQ(newcomer.size(), 0u) << "it would keep a position that nobody knows of: " << heard;
  }
}

TEST_F(GroupAloneTest, AStrangersPortIsRefused) {
  const int stranger = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage name{};
  const std::uint16_t other = free_port();
  const socklen_t size = to_socket_address({}, 0, other, name);
  ASSERT_EQ(bind(stranger, reinterpret_cast<const sockaddr*>(&name), size), 0);
  Alone quiet;
  SocketGroup refused(quiet, {.port = other});
  refused.join({5}, {}, {});
  EXPECT_EQ(quiet.failure, GroupError::kInUse);
  EXPECT_EQ(refused.size(), 0u);
  close(stranger);
}

TEST_F(GroupAloneTest, OnlySocketsOfTheGroupAreHeld) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const GroupMessage hold{.says = GroupSays::kHold, .position = 1, .slot = 9, .round = 3};
  say(hold);  // none at all
  say(hold, pipe_ends[0]);
  say(hold, pipe_ends[1]);
  say(hold, socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  say(hold, socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // cannot be in a group
  say(hold, make_group(free_port(), 1)[0].release());         // of another port
  EXPECT_EQ(group.stats().bad_sockets, 6u);
  EXPECT_EQ(group.size(), 1u);
  say(hold, make_group(number, 1)[0].release());
  EXPECT_EQ(group.size(), 2u);
  ASSERT_EQ(events.sent.size(), 7u);
  EXPECT_EQ(events.sent[5].count, 0u);
  EXPECT_EQ(events.sent[6].count, 1u);
}

TEST_F(GroupAloneTest, OurPositionIsNotGivenAway) {
  say({.says = GroupSays::kHold, .position = 0, .slot = 9}, make_group(number, 1)[0].release());
  EXPECT_EQ(group.stats().conflicts, 1u);
  EXPECT_EQ(group.steering().position({5}), 0u);
  EXPECT_EQ(group.steering().position({9}), std::nullopt);
}

TEST_F(GroupAloneTest, OldNewsOfAPositionChangeNothing) {
  const auto sockets = make_group(number, 1);
  say({.says = GroupSays::kHold, .position = 1, .slot = 9, .value = 2}, dup(sockets[0].get()));
  say({.says = GroupSays::kHold, .position = 1, .slot = 8, .value = 1}, dup(sockets[0].get()));
  EXPECT_EQ(group.steering().position({9}), 1u);
  EXPECT_EQ(group.steering().position({8}), std::nullopt);
}

// A member that was stopped while another one took a dead one's socket says the dead one has it.
class GroupOpinionsTest : public GroupAloneTest, public ::testing::WithParamInterface<bool> {};

TEST_P(GroupOpinionsTest, ANewcomerTakesNoSocketOfTheLiving) {
  constexpr SlotNumber kLiving{9}, kDead{8};
  const std::uint16_t theirs = free_port();
  const auto sockets = make_group(theirs, 1);
  Alone around;
  around.gone = kDead;
  SocketGroup newcomer(around, {.port = theirs});
  const std::vector<host::PeerId> members{kPeer, kOtherPeer};
  newcomer.join({6}, members, {});
  const auto hear = [&](host::PeerId from, GroupMessage says, int fd = -1) {
    says.round = 1;
    newcomer.message(from, bytes_of(says), fd < 0 ? host::PrivateFd() : host::PrivateFd(fd), {});
  };
  for (const host::PeerId member : members)
    hear(member, {.says = GroupSays::kHolding, .count = 1, .value = member == kPeer ? 7u : 8u});
  for (const host::PeerId member : members) {
    const bool is_right = (member == kPeer) == GetParam();
    hear(member,
         {.says = GroupSays::kSocket,
          .slot = (is_right ? kLiving : kDead).value,
          .value = is_right ? 2u : 1u},
         dup(sockets[0].get()));
    hear(member, {.says = GroupSays::kAll});
  }
  ASSERT_EQ(GroupSays::kHold, around.sent.back().says);
  EXPECT_EQ(1u, around.sent.back().position) << "0 is the living one's";
}
INSTANTIATE_TEST_SUITE_P(Orders, GroupOpinionsTest, ::testing::Bool());

TEST_F(GroupAloneTest, AnswersThatNobodyAskedForChangeNothing) {
  for (const GroupSays says : {GroupSays::kHolding, GroupSays::kSocket, GroupSays::kService,
                               GroupSays::kAll, GroupSays::kHeld})
    say({.says = says, .position = 3, .slot = 3, .round = 1, .value = 3});
  EXPECT_EQ(group.stats().unexpected, 5u);
  EXPECT_EQ(group.size(), 1u);
  EXPECT_TRUE(group.steering().services().empty());
}

TEST_F(GroupAloneTest, RubbishIsCountedAndChangesNothing) {
  SeededRandom random(test_seed());
  for (int i = 0; i < 20'000; ++i) {
    GroupMessage message;
    std::array<std::byte, sizeof message + 4> bytes;
    for (std::byte& each : bytes)
      each = static_cast<std::byte>(random.next());
    if (random.one_in(2)) std::memcpy(bytes.data(), &message.magic, sizeof message.magic);
    const std::size_t size = random.one_in(4) ? random.below(bytes.size()) : sizeof message;
    group.message(kPeer, std::span(bytes).first(size), host::PrivateFd(), {});
  }
  EXPECT_GT(group.stats().malformed, 10'000u);
  EXPECT_EQ(group.size(), 1u);
}

TEST(JoinLock, IsHeldByOne) {
  const std::string name = "verbena-test/join/" + std::to_string(getpid());
  auto first = JoinLock::try_take(name);
  ASSERT_TRUE(first);
  EXPECT_FALSE(JoinLock::try_take(name));
  first.reset();
  EXPECT_TRUE(JoinLock::try_take(name));
}

}  // namespace
}  // namespace verbena::port
