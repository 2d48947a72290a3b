// SPDX-License-Identifier: MIT
// Where management datagrams go, and what becomes of those that nobody should have sent. One
// process that has both ends.
#include "nic/gsi.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "nic/nic.h"
#include "nic/sharing.h"
#include "nic/test_world.h"
#include "nic/wire_nic.h"
#include "port/port.h"
#include "port/steering.h"
#include "wire/datagram.h"
#include "wire/ip.h"
#include "wire/mad.h"

namespace verbena::nic {
namespace {

constexpr std::uint64_t kService = 0x0106'7000;
// Long enough for any machine; nothing waits for it but what has failed.
constexpr std::chrono::seconds kPatience{20};

Gid loopback() { return wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 1}); }
Gid other_loopback() { return wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 2}); }

GsiMad mad_of(const wire::CmMessage& message, std::uint64_t transaction = 1) {
  return {.from = loopback(),
          .to = loopback(),
          .interface = 1,
          .bytes = wire::encode_cm({.transaction_id = transaction, .message = message})};
}

// What a connection manager gets.
class Receiver {
 public:
  GsiEvents events() {
    return {.context = this,
            .arrived = [](void* self, const GsiMad* mad) { of(self).take(*mad); },
            .gone = [](void*, std::uint32_t) {},
            .interfaces_changed = [](void* self) { of(self).hear(); }};
  }
  // The next one; fails the test when none comes.
  GsiMad next() {
    std::unique_lock guard(lock_);
    if (!came_.wait_for(guard, kPatience, [this] { return !mads_.empty(); })) {
      ADD_FAILURE() << "nothing came";
      return {};
    }
    const GsiMad mad = mads_.front();
    mads_.erase(mads_.begin());
    return mad;
  }
  std::size_t count() {
    const std::lock_guard guard(lock_);
    return mads_.size();
  }
  unsigned heard() {
    const std::lock_guard guard(lock_);
    return heard_;
  }

 private:
  static Receiver& of(void* self) { return *static_cast<Receiver*>(self); }
  void take(const GsiMad& mad) {
    const std::lock_guard guard(lock_);
    mads_.push_back(mad);
    came_.notify_all();
  }
  void hear() {
    const std::lock_guard guard(lock_);
    ++heard_;
  }
  std::mutex lock_;
  std::condition_variable came_;
  std::vector<GsiMad> mads_;
  unsigned heard_ = 0;
};

class GsiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = Nic::current().start_engine();
    ASSERT_TRUE(started.has_value());
    engine = *started;
    if (Nic::current().sharing().policy().path == Path::kWire) {
      GTEST_SKIP() << "by the wire there is no link, of which these tests are";
    }
    gsi = &engine->gsi();
    gsi->open(receiver.events());
  }
  void TearDown() override {
    if (gsi) gsi->open({});
  }
  ServicePlace place(std::uint64_t service) const {
    return {.service = service, .address = loopback()};
  }
  void serve(std::uint64_t service) {
    ASSERT_EQ(gsi->names().claim(place(service)), ServiceNames::Claimed::kYes);
    ASSERT_EQ(gsi->names().serve(place(service), gsi->slot()), ServiceNames::Claimed::kYes);
  }
  std::uint32_t own_id(std::uint32_t low) const {
    return std::uint32_t{gsi->slot().value} << 22 | low;
  }
  // Of a slot that nobody holds.
  std::uint32_t strange_id(std::uint32_t low) const {
    return std::uint32_t{(gsi->slot().value + 511u) % kSlotCount} << 22 | low;
  }
  // All that was sent to the control thread so far has been dealt with.
  void settle() {
    ASSERT_TRUE(engine->control().call([] {}));
  }

  Receiver receiver;
  Engine* engine = nullptr;
  Gsi* gsi = nullptr;
};

TEST_F(GsiTest, ARequestGoesToWhoeverServesIt) {
  serve(kService);
  const GsiMad req = mad_of(wire::Req{.local_comm_id = own_id(7), .service_id = kService});
  gsi->send(req);
  EXPECT_EQ(std::memcmp(receiver.next().bytes.data(), req.bytes.data(), req.bytes.size()), 0);
  const GsiMad sidr = mad_of(wire::SidrReq{.request_id = own_id(8), .service_id = kService});
  gsi->send(sidr);
  EXPECT_EQ(receiver.next().bytes, sidr.bytes);
  gsi->names().release(place(kService));
}

TEST_F(GsiTest, WhatNobodyServesIsRejected) {
  gsi->send(mad_of(wire::Req{.local_comm_id = own_id(1), .service_id = kService + 1}, 0x99));
  const auto rejected = wire::parse_cm(receiver.next().bytes);
  ASSERT_TRUE(rejected && std::holds_alternative<wire::Rej>(rejected->message));
  const auto& rej = std::get<wire::Rej>(rejected->message);
  EXPECT_EQ(rejected->transaction_id, 0x99u);
  EXPECT_EQ(rej.remote_comm_id, own_id(1));
  EXPECT_EQ(rej.local_comm_id, 0u);
  EXPECT_EQ(rej.message, wire::RejOf::kReq);
  EXPECT_EQ(rej.reason, wire::RejReason::kInvalidServiceId);

  gsi->send(mad_of(wire::SidrReq{.request_id = own_id(2), .service_id = kService + 1}));
  const auto answered = wire::parse_cm(receiver.next().bytes);
  ASSERT_TRUE(answered && std::holds_alternative<wire::SidrRep>(answered->message));
  const auto& rep = std::get<wire::SidrRep>(answered->message);
  EXPECT_EQ(rep.request_id, own_id(2));
  EXPECT_EQ(rep.status, wire::SidrStatus::kUnsupportedServiceId);
}

TEST_F(GsiTest, ARefusalComesFromWhereTheRequestWent) {
  GsiMad request = mad_of(wire::Req{.local_comm_id = own_id(3), .service_id = kService + 2});
  request.to = other_loopback();
  request.traffic_class = 32;
  gsi->send(request);
  const GsiMad refusal = receiver.next();
  EXPECT_EQ(refusal.from, other_loopback());
  EXPECT_EQ(refusal.to, loopback());
  EXPECT_EQ(refusal.interface, 1u);
  EXPECT_EQ(refusal.traffic_class, 32);
}

TEST_F(GsiTest, AnswersGoToTheSlotOfTheirId) {
  const std::uint32_t ours = own_id(11);
  const std::uint32_t theirs = strange_id(12);
  const std::vector<wire::CmMessage> answers = {
      wire::Rep{.local_comm_id = theirs, .remote_comm_id = ours},
      wire::Rtu{.local_comm_id = theirs, .remote_comm_id = ours},
      wire::Mra{.local_comm_id = theirs, .remote_comm_id = ours},
      wire::Rej{.local_comm_id = theirs, .remote_comm_id = ours},
      wire::Dreq{.local_comm_id = theirs, .remote_comm_id = ours},
      wire::Drep{.local_comm_id = theirs, .remote_comm_id = ours},
      wire::SidrRep{.request_id = ours},
  };
  for (const wire::CmMessage& each : answers) {
    const GsiMad mad = mad_of(each);
    gsi->send(mad);
    EXPECT_EQ(receiver.next().bytes, mad.bytes);
  }
}

// A process that has ended says nothing; what it would have said is said for it.
TEST_F(GsiTest, TheLastWordOfWhoIsGone) {
  const std::uint32_t ours = own_id(21);
  const std::uint32_t gone = strange_id(22);
  gsi->send(mad_of(wire::Rep{.local_comm_id = ours, .remote_comm_id = gone}));
  auto told = wire::parse_cm(receiver.next().bytes);
  ASSERT_TRUE(told && std::holds_alternative<wire::Rej>(told->message));
  EXPECT_EQ(std::get<wire::Rej>(told->message).reason, wire::RejReason::kInvalidCommId);
  EXPECT_EQ(std::get<wire::Rej>(told->message).remote_comm_id, ours);

  gsi->send(mad_of(wire::Dreq{.local_comm_id = ours, .remote_comm_id = gone}));
  told = wire::parse_cm(receiver.next().bytes);
  ASSERT_TRUE(told && std::holds_alternative<wire::Drep>(told->message));
  EXPECT_EQ(std::get<wire::Drep>(told->message).remote_comm_id, ours);

  // Who confirms has not heard of the end.
  gsi->send(mad_of(wire::Rtu{.local_comm_id = ours, .remote_comm_id = gone}));
  told = wire::parse_cm(receiver.next().bytes);
  ASSERT_TRUE(told && std::holds_alternative<wire::Rej>(told->message));
  EXPECT_EQ(std::get<wire::Rej>(told->message).reason, wire::RejReason::kInvalidCommId);
  EXPECT_EQ(std::get<wire::Rej>(told->message).message, wire::RejOf::kOther);
  EXPECT_EQ(std::get<wire::Rej>(told->message).remote_comm_id, ours);
  EXPECT_EQ(std::get<wire::Rej>(told->message).local_comm_id, gone);

  // And nothing to what needs no answer.
  gsi->send(mad_of(wire::Drep{.local_comm_id = ours, .remote_comm_id = gone}));
  gsi->send(mad_of(wire::Dreq{.local_comm_id = ours, .remote_comm_id = gone}, 5));
  EXPECT_EQ(wire::parse_cm(receiver.next().bytes)->transaction_id, 5u);
  EXPECT_EQ(receiver.count(), 0u);
}

// A process that is only stopped will speak for itself.
TEST_F(GsiTest, NothingIsSaidForWhoIsBusy) {
  const std::uint32_t busy = strange_id(62);
  std::promise<void> go;
  ASSERT_TRUE(engine->control().submit([&] { go.get_future().wait(); }));
  gsi->send(mad_of(wire::Rep{.local_comm_id = own_id(61), .remote_comm_id = busy}));
  ASSERT_TRUE(engine->control().submit(
      [&] { gsi->slot_refused(port::slot_of_id(busy), host::Refusal::kBusy); }));
  go.set_value();
  settle();
  EXPECT_EQ(receiver.count(), 0u);
  // Nor later, when it is known to have gone: only what is sent then is answered.
  gsi->send(mad_of(wire::Dreq{.local_comm_id = own_id(61), .remote_comm_id = busy}, 5));
  EXPECT_EQ(wire::parse_cm(receiver.next().bytes)->transaction_id, 5u);
  EXPECT_EQ(receiver.count(), 0u);
}

// Programs stop listening while a connection comes about (perftest does).
TEST_F(GsiTest, ARequestThatComesAgainGoesWhereItWent) {
  serve(kService);
  const GsiMad req = mad_of(wire::Req{.local_comm_id = own_id(31), .service_id = kService});
  gsi->send(req);
  receiver.next();
  gsi->names().release(place(kService));
  gsi->send(req);
  EXPECT_EQ(receiver.next().bytes, req.bytes);
  // Its withdrawal, by somebody who never heard an id, as well.
  const GsiMad withdrawal = mad_of(wire::Rej{.local_comm_id = own_id(31)});
  gsi->send(withdrawal);
  EXPECT_EQ(receiver.next().bytes, withdrawal.bytes);
}

TEST_F(GsiTest, AnIdThatIsUsedAgainGoesWhereItNowAsks) {
  serve(kService);
  gsi->send(mad_of(wire::Req{.local_comm_id = own_id(35), .service_id = kService}, 1));
  receiver.next();
  gsi->names().release(place(kService));
  gsi->send(mad_of(wire::Req{.local_comm_id = own_id(35), .service_id = kService + 7}, 2));
  const auto rejected = wire::parse_cm(receiver.next().bytes);
  ASSERT_TRUE(rejected && std::holds_alternative<wire::Rej>(rejected->message));
  EXPECT_EQ(std::get<wire::Rej>(rejected->message).reason, wire::RejReason::kInvalidServiceId);
  // And so does what comes again of that use.
  serve(kService + 7);
  const GsiMad req = mad_of(wire::Req{.local_comm_id = own_id(35), .service_id = kService + 7}, 3);
  gsi->send(req);
  EXPECT_EQ(receiver.next().bytes, req.bytes);
  gsi->names().release(place(kService + 7));
  gsi->send(req);
  EXPECT_EQ(receiver.next().bytes, req.bytes);
}

TEST_F(GsiTest, AWithdrawalOfWhatNeverCameIsForNobody) {
  gsi->send(mad_of(wire::Rej{.local_comm_id = own_id(41)}));
  settle();
  EXPECT_EQ(receiver.count(), 0u);
}

TEST_F(GsiTest, NamesAreExclusive) {
  using enum ServiceNames::Claimed;
  // What was found a moment ago is believed without another look.
  const std::uint64_t service = kService + 6;
  ServiceNames& names = gsi->names();
  const ServicePlace all{.service = service, .kind = ServicePlace::Kind::kAllIpv4};
  EXPECT_EQ(names.serve(place(service), gsi->slot()), kGone) << "not claimed yet";
  EXPECT_EQ(names.claim(place(service)), kYes);
  EXPECT_EQ(names.claim(place(service)), kTaken);
  EXPECT_EQ(names.claim(all), kYes) << "another name; whoever wants both looks";
  EXPECT_TRUE(ServiceNames::is_claimed(place(service)));
  EXPECT_FALSE(names.find(service, loopback(), clock_now())) << "claimed, and not served";
  names.release(all);
  names.release(place(service));
  EXPECT_FALSE(ServiceNames::is_claimed(place(service)));
  EXPECT_EQ(names.claim(place(service)), kYes);
  names.release(place(service));
}

TEST_F(GsiTest, OneAddressGoesBeforeAll) {
  ServiceNames& names = gsi->names();
  const ServicePlace all{.service = kService + 5, .kind = ServicePlace::Kind::kAllIpv4};
  ASSERT_EQ(names.claim(all), ServiceNames::Claimed::kYes);
  ASSERT_EQ(names.serve(all, gsi->slot()), ServiceNames::Claimed::kYes);
  EXPECT_EQ(names.find(kService + 5, other_loopback(), clock_now()), gsi->slot());
  Gid ipv6;
  ipv6.bytes[15] = 1;
  EXPECT_FALSE(names.find(kService + 5, ipv6, clock_now())) << "of the other family";
  names.release(all);
}

TEST_F(GsiTest, InterfacesThatChangeAreTold) {
  const unsigned before = receiver.heard();
  gsi->interfaces_changed();
  EXPECT_GT(receiver.heard(), before);
}

// exit() waits for what was sent, and for nothing else.
TEST_F(GsiTest, NothingIsUnsentWhereTheControlThreadTakesNothing) {
  EXPECT_FALSE(gsi->has_unsent());
  std::promise<void> go;
  std::promise<void> busy;
  ASSERT_TRUE(engine->control().submit([&] {
    busy.set_value();
    go.get_future().wait();
  }));
  busy.get_future().wait();
  const auto filling = [&] { return engine->control().submit([] {}); };
  while (filling()) {
  }
  gsi->send(mad_of(wire::Dreq{.local_comm_id = own_id(51), .remote_comm_id = strange_id(52)}));
  EXPECT_FALSE(gsi->has_unsent());
  go.set_value();
  while (!engine->control().call([] {})) {
  }
  // And later it goes on as ever.
  gsi->send(mad_of(wire::Dreq{.local_comm_id = own_id(53), .remote_comm_id = strange_id(54)}));
  EXPECT_TRUE(std::holds_alternative<wire::Drep>(wire::parse_cm(receiver.next().bytes)->message));
}

// ----------------------------------------------------------------------------- hostile senders

class HostileTest : public GsiTest {
 protected:
  void SetUp() override {
    GsiTest::SetUp();
    if (IsSkipped()) return;
    serve(kService + 9);
    wire = std::make_unique<WireNic>(Nic::current(), *engine);
  }
  void TearDown() override {
    if (wire) gsi->names().release(place(kService + 9));
    GsiTest::TearDown();
  }
  std::vector<std::byte> packet_of(std::span<const std::byte> payload, wire::Head head) const {
    std::vector<std::byte> bytes(wire::datagram_bytes(head.opcode, payload.size()));
    wire::DatagramBuilder datagram(bytes, head, payload.size());
    std::ranges::copy(payload, datagram.payload().begin());
    wire::FlowIcrc icrc({.source = loopback(), .destination = loopback(), .source_port = 1000});
    datagram.finish(icrc);
    return bytes;
  }
  static wire::Head head() {
    wire::Head head{};
    head.opcode = wire::Opcode::of(wire::Service::kUd, wire::Code::kSendOnly);
    head.dest_qp = {1};
    head.qkey = wire::kGsiQkey;
    head.source_qp = {1};
    return head;
  }
  GsiMad request() const {
    return mad_of(wire::Req{.local_comm_id = 0x123, .service_id = kService + 9});
  }
  void take(std::span<const std::byte> bytes) {
    gsi->take_packet(*wire, {.payload = bytes, .from = loopback(), .to = loopback()});
  }
  std::unique_ptr<WireNic> wire;
};

TEST_F(HostileTest, AGoodPacketIsTaken) {
  take(packet_of(request().bytes, head()));
  EXPECT_EQ(receiver.next().bytes, request().bytes);
}

TEST_F(HostileTest, OthersAreNot) {
  const GsiMad whole = request();
  const std::vector<std::byte> good = packet_of(whole.bytes, head());
  for (std::size_t size = 0; size < good.size(); ++size)
    take(std::span(good).first(size));
  wire::Head wrong = head();
  wrong.qkey = 0x11111111;
  take(packet_of(request().bytes, wrong));
  wrong = head();
  wrong.opcode = wire::Opcode::of(wire::Service::kRc, wire::Code::kSendOnly);
  take(packet_of(request().bytes, wrong));
  take(packet_of(std::span(whole.bytes).first(252), head()));
  const std::vector<std::byte> longer(wire::kMadBytes + 4);
  take(packet_of(longer, head()));
  const std::vector<std::byte> zeros(wire::kMadBytes);
  take(packet_of(zeros, head()));
  settle();
  EXPECT_EQ(receiver.count(), 0u);
}

// Whatever the bits: what arrives can be read, and is what was sent, or the answer to one that has
// become an RTU.
TEST_F(HostileTest, EveryBitMayBeWrong) {
  const GsiMad good = request();
  std::set<std::array<std::byte, wire::kMadBytes>> sent;
  for (std::size_t bit = 0; bit < good.bytes.size() * 8; ++bit) {
    GsiMad bad = good;
    bad.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    sent.insert(bad.bytes);
    take(packet_of(bad.bytes, head()));
  }
  ASSERT_GT(receiver.count(), 0u);
  while (receiver.count() > 0) {
    const GsiMad taken = receiver.next();
    const auto parsed = wire::parse_cm(taken.bytes);
    ASSERT_TRUE(parsed);
    const auto* const rej = std::get_if<wire::Rej>(&parsed->message);
    const bool is_answer = rej && rej->reason == wire::RejReason::kInvalidCommId;
    EXPECT_TRUE(is_answer || sent.contains(taken.bytes));
  }
}

// From another process of the host, which may be anybody's.
TEST_F(HostileTest, MessagesOfOtherProcesses) {
  std::vector<std::byte> message(8 + 3 * sizeof(GsiMad) + 5);
  const std::uint32_t magic = 0x56'47'53'01;
  std::memcpy(message.data(), &magic, sizeof magic);
  const std::uint32_t lie = 0xFFFF'FFFF;  // how many there are
  std::memcpy(message.data() + 4, &lie, sizeof lie);
  EXPECT_TRUE(Gsi::is_message(message));
  EXPECT_FALSE(Gsi::is_message(std::span(message).first(7)));
  message[0] ^= std::byte{1};
  EXPECT_FALSE(Gsi::is_message(message));
  gsi->message(message);
  EXPECT_EQ(receiver.count(), 3u) << "as many as are there";
  gsi->message(std::span(message).first(8));
  EXPECT_EQ(receiver.count(), 3u);
}

}  // namespace
}  // namespace verbena::nic
