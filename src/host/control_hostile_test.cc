// SPDX-License-Identifier: MIT
// What a hostile process of the same user can send to a control thread, byte by byte.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/random.h"
#include "host/control.h"
#include "host/greeting.h"
#include "host/slots.h"
#include "host/test_node.h"
#include "host/test_raw_link.h"

namespace verbena::host {
namespace {

class ControlHostile : public ::testing::Test {
 protected:
  SlotNumber slot() const { return node.control->first_slot(); }
  SlotAddress address() const { return {test_options().slot_name, slot()}; }
  Bytes hello() const { return frame(FrameType::kHello, greeting_to(slot())); }
  int page_fd() const { return page.fd.get(); }

  // Links as a decent peer does, up to kReady.
  void shake_hands(Raw& raw, ProcessId id = {7, 7}) {
    Greeting greeting = greeting_to(slot());
    greeting.id = id;
    ASSERT_TRUE(raw.send(frame(FrameType::kHello, greeting), {page_fd()}));
    const auto parsed = parse_frame(raw.receive());
    ASSERT_TRUE(parsed && parsed->type == FrameType::kWelcome);
    ASSERT_TRUE(raw.send(frame(FrameType::kReady)));
  }
  // Sends one frame on a new connection, and gives how it is refused.
  std::optional<RefuseReason> answer_to(const Bytes& bytes, std::vector<int> fds = {}) {
    Raw raw(address());
    EXPECT_TRUE(raw.send(bytes, std::move(fds)));
    return raw.refusal();
  }

  void TearDown() override {
    // Whatever happened: it serves others, and all it received is closed again.
    Node other;
    EXPECT_TRUE(other.reach(slot()));
    EXPECT_TRUE(other.send(node.control->id(), "still well?"));
    EXPECT_TRUE(eventually([&] { return node.received("still well?"); }));
    other.control->stop();
    EXPECT_TRUE(eventually([&] { return node.count_down() == node.count_up(); }));
    EXPECT_TRUE(eventually([&] { return descriptors() <= at_first; }));
  }
  std::size_t descriptors() {
    return node.on_thread([] { return count_descriptors(gettid()); });
  }

  Node node{[] {
    ControlOptions options = test_options();
    options.patience = Duration::seconds(2);
    return options;
  }()};
  SharedMemory::Created page = std::move(*SharedMemory::create(sizeof(ProcessPage)));
  std::size_t at_first = descriptors() + 2;  // it fills its reserve later
};

TEST_F(ControlHostile, AcceptsAGoodGreeting) {
  Raw raw(address());
  shake_hands(raw);
  ASSERT_TRUE(eventually([&] { return node.count_up() == 1; }));
  EXPECT_EQ(node.peer(0).id(), (ProcessId{7, 7}));
  EXPECT_EQ(node.peer(0).pid(), getpid());
  EXPECT_FALSE(node.peer(0).memory_readable());  // the nonce is not there
}

TEST_F(ControlHostile, TellsAnotherVersion) {
  Bytes bytes = hello();
  FrameHead head{.layout = kLayoutVersion + 1, .type = FrameType::kHello};
  std::memcpy(bytes.data(), &head, sizeof head);
  bytes.resize(bytes.size() + 40);
  EXPECT_EQ(answer_to(bytes, {page_fd()}), RefuseReason::kOtherLayout);
}

TEST_F(ControlHostile, RefusesRubbish) {
  const std::byte zero{};
  const Bytes good = hello();
  EXPECT_EQ(answer_to(Bytes(1, zero)), RefuseReason::kMalformed);
  EXPECT_EQ(answer_to(Bytes(15, zero)), RefuseReason::kMalformed);
  EXPECT_EQ(answer_to(Bytes(kFrameMax, zero)), RefuseReason::kMalformed);
  EXPECT_EQ(answer_to(Bytes(kFrameMax + 1, zero)), RefuseReason::kMalformed);
  EXPECT_EQ(answer_to(Bytes(100'000, zero)), RefuseReason::kMalformed);
  EXPECT_EQ(answer_to(Bytes(good.begin(), good.end() - 1), {page_fd()}), RefuseReason::kMalformed);
  Bytes longer = good;
  longer.push_back(zero);
  EXPECT_EQ(answer_to(longer, {page_fd()}), RefuseReason::kMalformed);
  for (const std::uint32_t type : {0u, 2u, 3u, 5u, 6u, 7u, 0xffffffffu}) {
    Bytes bytes = frame(static_cast<FrameType>(type), greeting_to(slot()));
    EXPECT_EQ(answer_to(bytes, {page_fd()}), RefuseReason::kMalformed) << type;
  }
  answer_to({});
}

TEST_F(ControlHostile, ChecksEveryFieldOfAGreeting) {
  auto refusal_of = [&](auto change) {
    Greeting greeting = greeting_to(slot());
    change(greeting);
    return answer_to(frame(FrameType::kHello, greeting), {page_fd()});
  };
  EXPECT_EQ(refusal_of([](Greeting& g) { g.id = {}; }), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of([&](Greeting& g) { g.id = node.control->id(); }), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of([](Greeting& g) { g.flags = 0x80000000; }), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of([](Greeting& g) { g.flags = Greeting::kSendsPidfd; }),
            RefuseReason::kMalformed);  // and sends none
  EXPECT_EQ(refusal_of([](Greeting& g) { g.wanted_slot = kSlotCount; }), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of([](Greeting& g) { g.wanted_slot = ~0u; }), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of([](Greeting& g) { g.wanted_slot ^= 1; }), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of([](Greeting& g) { g.slots = {}; }), RefuseReason::kMalformed);
}

TEST_F(ControlHostile, RefusesPagesThatAreNone) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  auto refusal_of = [&](off_t size, int seals) {
    const PrivateFd fd(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), size), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return answer_to(hello(), {fd.get()});
  };
  constexpr off_t kSize = sizeof(ProcessPage);
  EXPECT_EQ(refusal_of(kSize, kSeals), std::nullopt);  // a good one: it waits for kReady, and ends
  EXPECT_EQ(refusal_of(kSize - 4096, kSeals), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of(kSize + 4096, kSeals), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of(0, kSeals), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of(kSize, F_SEAL_GROW | F_SEAL_SEAL), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of(kSize, F_SEAL_SHRINK | F_SEAL_SEAL), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of(kSize, F_SEAL_SHRINK | F_SEAL_GROW), RefuseReason::kMalformed);
  EXPECT_EQ(refusal_of(kSize, kSeals | F_SEAL_WRITE), RefuseReason::kMalformed);
  EXPECT_EQ(answer_to(hello()), RefuseReason::kMalformed);
  EXPECT_EQ(answer_to(hello(), {node.on_thread([] { return 0; })}), RefuseReason::kMalformed);
}

TEST_F(ControlHostile, ClosesSurplusDescriptors) {
  for (const std::size_t count : {2, 3, 17, 64}) {
    EXPECT_EQ(answer_to(hello(), std::vector<int>(count, page_fd())), RefuseReason::kMalformed);
  }
  // Where a peer that is up attaches to what has no attachment.
  Raw raw(address());
  shake_hands(raw);
  Bytes slots = frame(FrameType::kSlots);
  append(slots, greeting_to(slot()).slots);
  raw.send(slots, {page_fd()});
  EXPECT_EQ(raw.refusal(), RefuseReason::kMalformed);
  Raw another(address());
  shake_hands(another);
  another.send(frame(FrameType::kMessage), {page_fd(), page_fd()});
  EXPECT_EQ(another.refusal(), RefuseReason::kMalformed);
}

// It looks like the end of the link, and the system hands over what it brings all the same.
TEST_F(ControlHostile, ClosesDescriptorsThatNothingComesWith) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Raw raw(address());
  ASSERT_TRUE(raw.send({}, {writer.get()}));
  writer.reset();
  EXPECT_EQ(raw.refusal(), std::nullopt);
  constexpr int kMilliseconds = 20'000;
  pollfd end{.fd = reader.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&end, 1, kMilliseconds), 1) << "somebody holds the other end";
}

TEST_F(ControlHostile, EndsALinkThatBreaksTheRules) {
  const Bytes wrong[] = {frame(FrameType::kReady),      frame(FrameType::kSlots), hello(),
                         frame(FrameType::kRefuse),     frame(FrameType{99}),     Bytes(3),
                         frame(FrameType::kMessage, 1), Bytes(kFrameMax + 1)};
  std::uint64_t id = 100;
  for (const Bytes& bytes : wrong) {
    Raw raw(address());
    shake_hands(raw, {id, id});
    ASSERT_TRUE(eventually([&] { return node.count_up() == id - 99; }));
    EXPECT_TRUE(raw.send(bytes));
    EXPECT_TRUE(eventually([&] { return node.count_down() == id - 99; })) << id;
    EXPECT_EQ(node.gone(node.count_down() - 1), (ProcessId{id, id}));
    ++id;
  }
}

TEST_F(ControlHostile, BelievesTheFirstOfTwoWithOneId) {
  Raw first(address()), second(address());
  shake_hands(first);
  ASSERT_TRUE(second.send(hello(), {page_fd()}));
  EXPECT_EQ(second.refusal(), RefuseReason::kDuplicate);
  ASSERT_TRUE(eventually([&] { return node.count_up() == 1; }));
  EXPECT_TRUE(node.send({7, 7}, "for you"));
  EXPECT_EQ(first.receive().size(), sizeof(FrameHead) + 7);
}

TEST_F(ControlHostile, GivesUpOnThoseWhoDoNotFinish) {
  // More than it lets wait, some silent, some half way.
  std::vector<std::unique_ptr<Raw>> raws;
  for (std::uint64_t i = 0; i < 200; ++i) {
    raws.push_back(std::make_unique<Raw>(address()));
    Greeting greeting = greeting_to(slot());
    greeting.id = {i + 1, i};
    if (i % 2 == 0) raws.back()->send(frame(FrameType::kHello, greeting), {page_fd()});
  }
  for (const auto& raw : raws)
    raw->refusal();  // all are closed after a while
  EXPECT_EQ(node.count_up(), 0u);
}

TEST_F(ControlHostile, IsNotHeldUpByAFlood) {
  Raw raw(address());
  shake_hands(raw);
  std::atomic<bool> stop = false;
  std::thread flood([&, fd = page_fd()] {
    Bytes bytes = frame(FrameType::kMessage);
    bytes.resize(kFrameMax);
    while (!stop && raw.send(bytes, {fd})) {
    }
  });
  for (int i = 0; i < 5; ++i) {
    Node other;
    EXPECT_TRUE(other.reach(slot()));
    EXPECT_TRUE(other.send(node.control->id(), "in between"));
    EXPECT_TRUE(eventually([&] { return node.received("in between"); }));
    node.with([&] { return node.messages.clear(), node.memories.clear(), 0; });
  }
  stop = true;
  flood.join();
}

TEST_F(ControlHostile, SurvivesAnyBytes) {
  SeededRandom random(3);
  const Bytes good[] = {hello(), frame(FrameType::kReady), frame(FrameType::kMessage),
                        frame(FrameType::kRefuse, 4)};
  for (int round = 0; round < 2000; ++round) {
    Raw raw(address());
    for (int i = 0; i < 3; ++i) {
      Bytes bytes = good[random.below(std::size(good))];
      if (random.one_in(3)) bytes.resize(random.below(kFrameMax + 10));
      for (auto changes = random.below(4); changes > 0 && !bytes.empty(); --changes) {
        bytes[random.below(bytes.size())] = std::byte(random.next());
      }
      raw.send(bytes, random.one_in(2) ? std::vector<int>{page_fd()} : std::vector<int>{});
    }
  }
}

// A listener that answers connect() as it likes.
class Impostor {
 public:
  Impostor() : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const SlotAddress address(test_options().slot_name, kSlot);
    EXPECT_EQ(bind(fd_.get(), address.address(), address.size), 0);
    EXPECT_EQ(listen(fd_.get(), 16), 0);
  }
  Raw accept() { return Raw(::accept(fd_.get(), nullptr, nullptr)); }

  static constexpr SlotNumber kSlot{1023};

 private:
  PrivateFd fd_;
};

TEST_F(ControlHostile, ReportsAHolderOfAnotherVersion) {
  if (slot() == Impostor::kSlot) return;
  Impostor impostor;
  node.connect(Impostor::kSlot);
  Raw raw = impostor.accept();
  EXPECT_EQ(parse_frame(raw.receive())->type, FrameType::kHello);
  Bytes bytes = frame(FrameType::kWelcome);
  FrameHead head{.layout = kLayoutVersion + 1, .type = FrameType::kWelcome};
  std::memcpy(bytes.data(), &head, sizeof head);
  raw.send(bytes);
  EXPECT_FALSE(node.reach(Impostor::kSlot));
  EXPECT_EQ(node.why, Refusal::kOtherLayout);
}

TEST_F(ControlHostile, BelievesARefusalOfAnotherVersion) {
  if (slot() == Impostor::kSlot) return;
  Impostor impostor;
  node.connect(Impostor::kSlot);
  Raw raw = impostor.accept();
  Bytes bytes;
  append(bytes, FrameHead{.layout = kLayoutVersion + 7,
                          .type = FrameType::kRefuse,
                          .detail = std::uint32_t(RefuseReason::kOtherLayout)});
  raw.send(bytes);
  EXPECT_FALSE(node.reach(Impostor::kSlot));
  EXPECT_EQ(node.why, Refusal::kOtherLayout);
}

TEST_F(ControlHostile, GivesUpOnAHolderThatDoesNotAnswer) {
  if (slot() == Impostor::kSlot) return;
  Impostor impostor;
  EXPECT_FALSE(node.reach(Impostor::kSlot));
  EXPECT_EQ(node.why, Refusal::kBusy);
  // Or that lies about the slot.
  node.connect(Impostor::kSlot);
  for (int i = 0; i < 2; ++i) {
    Raw raw = impostor.accept();
    raw.send(frame(FrameType::kWelcome, greeting_to(slot())), {page_fd()});
  }
  EXPECT_FALSE(node.reach(Impostor::kSlot));
  EXPECT_EQ(node.why, Refusal::kBusy);
}

}  // namespace
}  // namespace verbena::host
